import re
import resource
import signal
from pathlib import Path

import pytest

from anadil.clean.process_limits import OUT_OF_MEMORY, describe_exit, limit_process


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


def test_where_nothing_tells_the_memory_of_a_process_none_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr("anadil.clean.process_limits.Path", lambda _: tmp_path / "no such file")
    # Or the next record that a test cleans limits the CPU time of the process of all tests.
    monkeypatch.setattr("anadil.clean.process_limits._limited_until", None)
    monkeypatch.setattr(resource, "setrlimit", lambda which, _: limits.append(which))

    limit_process()

    assert limits == [resource.RLIMIT_CORE]
