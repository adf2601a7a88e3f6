import subprocess
import sys

import pytest

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
