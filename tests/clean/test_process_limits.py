import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.runtime.executors import process_limits
from anadil.runtime.executors.process_limits import (
    OUT_OF_MEMORY,
    RECORD_CPU_S,
    allow_one_more_record,
    describe_exit,
    limit_process,
)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (OUT_OF_MEMORY, r"more than \d+ GiB of memory"), (-signal.SIGXCPU, r"more than \d+ s of CPU time"),
        (-signal.SIGSEGV, "SIGSEGV"), (3, "exit code 3"), (None, "exit code None"),
    ],
)  # fmt: skip
def test_how_a_process_ended_is_told_in_words(exit_code: int | None, words: str) -> None:
    assert re.fullmatch(words, describe_exit(exit_code))


def test_where_nothing_tells_the_memory_of_a_process_none_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr("anadil.core.processes.Path", lambda _: tmp_path / "no such file")
    # Or the next record that a test cleans limits the CPU time of the process of all tests.
    monkeypatch.setattr("anadil.runtime.executors.process_limits._limited_until", None)
    monkeypatch.setattr(resource, "setrlimit", lambda which, _: limits.append(which))

    limit_process()

    assert limits == [resource.RLIMIT_CORE]


LONG_RECORD = """
import resource, sys, time
from pathlib import Path
from anadil.runtime.executors import process_limits
from anadil.clean.shards.map_shard import Phase, Place, CrashGuard

process_limits.RECORD_CPU_S = 0
process_limits.limit_process()
with CrashGuard(Path(sys.argv[1]), lambda *_: "") as suspects:
    suspects.begin(Place(0, 7), Phase.JUDGE)
    until = time.process_time() + 5
    while time.process_time() < until:
        pass
"""


def test_the_system_ends_a_process_whose_record_takes_too_long(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LONG_RECORD, tmp_path / "shard"], timeout=120, check=False)

    assert done.returncode == -signal.SIGXCPU
    assert describe_exit(done.returncode) == f"more than {RECORD_CPU_S} s of CPU time"


def test_each_record_gets_its_own_cpu_time_and_no_other_process_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr("anadil.runtime.executors.process_limits.time.process_time", lambda: now)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append((which, limit[0])))
    monkeypatch.setattr(process_limits, "_limited_until", None)
    allow_one_more_record()
    assert limits == []

    monkeypatch.setattr(process_limits, "_limited_until", 0)
    for now in (0.5, 0.7, 30.2, 30.9, 89.0):  # noqa: B007  the clock above reads it
        allow_one_more_record()

    assert limits == [(resource.RLIMIT_CPU, second + RECORD_CPU_S) for second in (1, 31, 90)]
