import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anadil.core.errors import DataError
from anadil.runtime.termination import exit_code_of

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
