import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anadil.core.errors import DataError, RecipeError
from anadil.runtime.termination import exit_code_of
from tests.kit.harness import PATIENCE_S

LISTENING = """

import os, signal, time
from anadil.core.errors import Stopped
from anadil.runtime.signals import Stop

sent = []
kill = signal.pthread_kill

def send():
    if not sent:
        sent.append(True)
        signal.raise_signal(signal.{name})

os.register_at_fork(**{{{moment!r}: send}})
stop = Stop()
stop.listen()
parent = os.getpid()
"""
WAITING = """
again = []

def late(*arguments):
    # As one that comes when a call has begun to wait, and is handled after it.
    again.append(True)
    if len(again) > {num_late}:
        kill(*arguments)

signal.pthread_kill = late
try:
    if os.fork() == 0:
        os._exit(0)
    time.sleep(10 * {patience})
except (Stopped, KeyboardInterrupt) as error:
    if os.getpid() == parent:
        print(type(error).__name__, stop.signal)
"""
SAVING = """
def twice(*arguments):
    kill(*arguments)
    time.sleep(0.001)
    kill(*arguments)

signal.pthread_kill = twice
with stop.deferred():
    if os.fork() == 0:
        os._exit(0)
    while stop.signal is None:
        time.sleep(0.001)
    time.sleep(0.1)
    print("saves")
"""


def run(code: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("num_late", [0, 2])
@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
@pytest.mark.parametrize(("name", "words"), [("SIGTERM", "Stopped 15"), ("SIGINT", "KeyboardInterrupt 2")])
def test_a_signal_in_the_instant_of_a_fork_is_neither_lost_nor_printed_as_a_bug(
    moment: str, name: str, words: str, num_late: int
) -> None:
    code = (LISTENING + WAITING).format(moment=moment, name=name, patience=PATIENCE_S, num_late=num_late)

    assert run(code) == (words, "")


def test_a_signal_that_has_to_be_sent_again_is_no_second_one_which_would_end_the_block_that_saves() -> None:
    assert run((LISTENING + SAVING).format(moment="before", name="SIGTERM")) == ("saves", "")


ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOOKS_AT_A_NAME = """
import os, sys
from anadil.runtime.termination import exit_code_of
sys.exit(exit_code_of(lambda: os.stat("/tmp/m\\u0259tn")))
"""


def test_a_name_that_the_locale_cannot_write_is_no_bug() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS_AT_A_NAME],
        env=os.environ | ASCII_LOCALE,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 4
    assert done.stderr.decode().strip() == (
        r"the encoding of this locale, ascii, has no way to write '/tmp/m\u0259tn', such as a name of a file; "
        "set PYTHONUTF8=1, or LC_ALL=C.UTF-8, and run the same command again"
    )


def test_a_machine_without_a_temporary_directory_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])

    assert exit_code_of(lambda: len(tempfile.gettempdir())) == 4

    assert "No usable temporary directory found in ['/proc']; grant access or choose" in caplog.text


def test_a_file_that_has_gone_under_a_run_is_named_and_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "list.txt"

    assert exit_code_of(lambda: len(gone.read_text())) == DataError.exit_code
    assert f"{gone}: no such file or directory; if something has removed it since the start" in caplog.text
    assert "bug" not in caplog.text


@pytest.mark.parametrize("below", ["x", "x/y"])
def test_a_file_in_the_place_of_a_directory_is_a_usage_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, below: str
) -> None:
    file = tmp_path / "file"
    file.touch()

    def work() -> int:
        (file / below).parent.mkdir(parents=True, exist_ok=True)
        return 0

    assert exit_code_of(work) == RecipeError.exit_code
    assert f"{file}: is a file, not a directory. Choose another place, or remove it" in caplog.text
