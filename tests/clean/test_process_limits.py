import re
import signal

import pytest

from anadil.clean.process_limits import OUT_OF_MEMORY, describe_exit


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (OUT_OF_MEMORY, r"more than \d+ GiB of memory"),
        (-signal.SIGXCPU, r"more than \d+ s of CPU time"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (3, "exit code 3"),
        (None, "exit code None"),
    ],
)
def test_how_a_process_ended_is_told_in_words(exit_code: int | None, words: str) -> None:
    assert re.fullmatch(words, describe_exit(exit_code))
