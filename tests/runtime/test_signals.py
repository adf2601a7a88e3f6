import subprocess
import sys

import pytest

from tests.kit.harness import PATIENCE_S

CODE = """
import os, signal, time
from anadil.core.errors import Stopped
from anadil.runtime.signals import Stop

sent = []

def send():
    if not sent:
        sent.append(True)
        signal.raise_signal(signal.{name})

os.register_at_fork(**{{{moment!r}: send}})
stop = Stop()
stop.listen()
parent = os.getpid()
try:
    if os.fork() == 0:
        os._exit(0)
    time.sleep(10 * {patience})
except (Stopped, KeyboardInterrupt) as error:
    if os.getpid() == parent:
        print(type(error).__name__, stop.signal)
"""


@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
@pytest.mark.parametrize(("name", "words"), [("SIGTERM", "Stopped 15"), ("SIGINT", "KeyboardInterrupt 2")])
def test_a_signal_in_the_instant_of_a_fork_is_neither_lost_nor_printed_as_a_bug(
    moment: str, name: str, words: str
) -> None:
    code = CODE.format(moment=moment, name=name, patience=PATIENCE_S)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert (done.stdout.strip(), done.stderr) == (words, "")
