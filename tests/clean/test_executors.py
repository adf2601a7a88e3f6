"""Tasks in processes, and runs that end in the middle."""

import json
import multiprocessing.process
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from anadil.clean.filters.judge_record import ExtractedDocument, FilterResult, Settings, judge_prepared
from anadil.clean.shards.map_shard import NOTE, CrashGuard, MapTask, Phase, Place, map_shard
from anadil.clean.shards.shards import plan_shards
from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.recipe.sections import Recipe
from anadil.runtime.executors import process_limits
from anadil.runtime.executors.process_limits import (
    OUT_OF_MEMORY,
    RECORD_CPU_S,
    allow_one_more_record,
    death_alone,
    describe_exit,
    limit_process,
)
from anadil.runtime.executors.processes import Processes
from anadil.runtime.signals import Stop, handle_signals
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, clean, content, documents, stats, write_jsonl
from tests.kit.harm import HARMFUL, install_harm
from tests.kit.harness import wait_for
from tests.kit.marks import matrix, slow
from tests.kit.process_tasks import Work, work


def test_every_task_is_done_once_by_processes_that_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Processes(2) as executor:
        for names in ("abc", "de"):
            executor.map(work, [Work(name, "", tmp_path) for name in names])

    pids = [path.read_text().split() for path in sorted(tmp_path.glob("*.tries"))]
    assert [len(each) for each in pids] == [1] * 5
    assert len({pid for each in pids for pid in each}) <= 2
    assert "done with a" in caplog.text


def test_kernels_are_loaded_once_before_processes_are_copies_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    class Here(Processes):
        def map(self, function: Any, tasks: Any, tick: Any = None) -> None:
            steps.append(function.__name__)
            InThisProcess().map(function, tasks)

    monkeypatch.setattr("anadil.clean.run.warm_kernels", lambda: steps.append("kernels"))

    clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts(12)), executor=Here())

    assert steps[:2] == ["kernels", "map_shard"]
    assert steps.count("kernels") == 1


COPIED = """
import logging, signal, sys, threading
from dataclasses import dataclass
from pathlib import Path
from anadil.runtime.executors.processes import Processes

@dataclass
class Work:
    name: str
    folder: Path = Path("made")

def note(task):
    handler = signal.Handlers(signal.getsignal(signal.SIGTERM)).name
    Path(task.name).write_text(f"{hasattr(sys, 'driver')} {handler} {len(logging.getLogger().handlers)}")

if __name__ == "__main__":
    sys.driver = True
    logging.basicConfig()
    signal.signal(signal.SIGTERM, print)
    stop = threading.Event()
    for name in ("alone", "beside"):
        with Processes(1) as executor:
            executor.map(note, [Work(name)])
        threading.Thread(target=stop.wait).start()
    stop.set()
"""
"""Notes whether a process holds what its driver held, what SIGTERM does to it, and how often it logs a line."""


IMPORTING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from anadil.runtime.executors.processes import Processes

@dataclass
class Work:
    name: str
    folder: Path = Path("made")

def note(task):
    import numba
    import numpy as np
    import pyarrow as pa

    numba.njit(lambda n: np.arange(n).sum())(3)
    assert pa.array([1.0, None], from_pandas=True).null_count == 1
    Path(task.name).write_text(" ".join(sorted({"pandas", "scipy"} & {*sys.modules})))

if __name__ == "__main__":
    with Processes(1) as executor:
        executor.map(note, [Work("imported")])
"""


@pytest.mark.slow
def test_a_process_does_without_what_libraries_import_because_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(IMPORTING)

    subprocess.run([sys.executable, "program.py"], check=True, cwd=tmp_path, timeout=120)

    assert (tmp_path / "imported").read_text() == ""


def test_a_process_is_a_copy_of_its_driver_unless_that_has_threads_that_may_hold_locks(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(COPIED)

    subprocess.run([sys.executable, "program.py"], check=True, cwd=tmp_path, timeout=120)

    assert (tmp_path / "alone").read_text() == "True SIG_DFL 1"
    assert (tmp_path / "beside").read_text() == "False SIG_DFL 1"


def test_a_process_that_dies_is_replaced_and_what_it_was_writing_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Processes(2) as executor:
        executor.map(
            work, [Work("a", "die once writing", tmp_path / "made"), Work("b", "", tmp_path / "made")]
        )

    assert len((tmp_path / "made" / "a.tries").read_text().split()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert "a: its process died (SIGKILL); another one continues" in caplog.text


def test_a_signal_while_a_process_starts_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = multiprocessing.process.BaseProcess.start
    others = workers_of(os.getpid())

    def start(process: multiprocessing.process.BaseProcess) -> None:
        started(process)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    stop = Stop()
    with handle_signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.SIG_DFL)):
        stop.listen()
        with pytest.raises(Stopped), Processes(1, stop=stop) as executor:
            executor.map(work, [Work("a", "", tmp_path)])

    assert workers_of(os.getpid()) == others
    assert not (tmp_path / "a.tries").exists()


def test_a_task_whose_processes_die_again_and_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.runtime.executors.processes.MAX_DEATHS", 2)

    with (
        Processes(1) as executor,
        pytest.raises(PreflightError, match="a: 2 processes died at it, the last one SIGSEGV"),
    ):
        executor.map(work, [Work("a", "die", tmp_path)])


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("refuse", DataError, "no good"),
        ("bug", RuntimeError, "Odd: onetwo"),
        ("fill", OSError, "File too large"),
    ],
)
def test_what_a_task_raises_is_raised_here(
    tmp_path: Path, what: str, kind: type[Exception], message: str
) -> None:
    others = workers_of(os.getpid())  # the fork server, if a file before has started it

    with Processes(1) as executor, pytest.raises(kind, match=message):
        executor.map(work, [Work("a", what, tmp_path), Work("b", "", tmp_path)])

    assert not (tmp_path / "b.tries").exists()
    assert workers_of(os.getpid()) == others


def workers_of(pid: int) -> list[int]:
    """Processes that an executor has started; Python starts one more, to keep account of shared memory."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "resource_tracker" not in command_of(int(child))]


def command_of(pid: int) -> str:
    """Its command line; empty if it is no more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


IN_SMALL_SHARDS = """
import sys
from anadil.clean.shards import workspace
from anadil.runtime.entry_point import main
plan = workspace.plan_shards
workspace.plan_shards = lambda uris, most, *others: plan(uris, 20_000, *others)
sys.exit(main("clean"))
"""
"""The stage with shards smaller than users may set them."""


def start(folder: Path, raw: Path, out: str) -> "subprocess.Popen[bytes]":
    recipe = {"language": "az", "clean": {"inputs": [str(raw)], "workers": 2}}
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe))
    command = [sys.executable, "-c", IN_SMALL_SHARDS, "--recipe", str(path), "--out", str(folder / out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def corpus_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if name != "manifest.json"}


def wait_for_shards(folder: Path, least: int, process: "subprocess.Popen[bytes]") -> int:
    """Wait until so many shards are done; how many they are."""
    while True:
        done = len(list(folder.glob("clean/*/shard-*/manifest.json")))
        if done >= least or process.poll() is not None:
            return done
        time.sleep(0.01)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a run; its workers end with it."""
    children = workers_of(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(command_of, children)))


@pytest.mark.matrix
def test_a_run_that_is_killed_at_any_point_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(600))
    whole = clean(tmp_path / "whole", raw)
    done = []

    for least in (4, 12):
        process = start(tmp_path, raw, "killed")
        done.append(wait_for_shards(tmp_path / "killed.work", least, process))
        kill(process)

    assert start(tmp_path, raw, "killed").wait() == 0
    assert done == sorted(done)
    assert corpus_bytes(tmp_path / "killed") == corpus_bytes(whole)


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


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("crash", "SIGSEGV"),
        slow("memory", "more than 2 GiB of memory"),
        matrix("batch", "SIGSEGV"),
        slow("processor", "more than 60 s of CPU time"),
    ],
)
def test_a_record_that_kills_its_process_is_left_out_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    good = texts(12)
    raw = write_jsonl(tmp_path / "a.jsonl", [*good[:5], HARMFUL, *good[6:]])
    install_harm(kind, tmp_path / "site", monkeypatch)

    corpus = clean(tmp_path / "corpus", raw, executor=Processes(1, may_fork=False), max_bad_records=0.5)

    found = stats(corpus)
    assert found["bad_records"]["first"] == [f"a.jsonl:6: kills the process that works on it ({how})"]
    assert (found["in"], found["bad"]) == (11, 1)
    assert {document.text for document in documents(corpus)} == {*good[:5], *good[6:]}


def test_a_process_that_died_at_a_batch_judges_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = plan_shards([str(write_jsonl(tmp_path / "a.jsonl", texts(9)))], 10**9, 1)[0]
    sizes: list[int] = []

    def counted(batch: list[ExtractedDocument], settings: Settings) -> list[FilterResult]:
        sizes.append(len(batch))
        return judge_prepared(batch, settings)

    monkeypatch.setattr("anadil.clean.shards.map_shard.judge_prepared", counted)
    for name in ("whole", "died"):
        task = MapTask(shard=shard, recipe=Recipe(), lists=None, folder=tmp_path / name, key="key")
        map_shard(task)
        (tmp_path / "died.place").write_bytes(NOTE.pack(0, 0, Phase.BATCH))

    assert sizes == [9, *[1] * 9]
    whole, died = ((tmp_path / name / "documents.zst").read_bytes() for name in ("whole", "died"))
    assert whole == died


def test_a_record_that_harms_nobody_alone_is_tried_again_and_left_out_after_three_deaths(
    tmp_path: Path,
) -> None:
    tried = []

    def dies_alone(place: Place, phase: Phase) -> str:
        tried.append((place, phase))
        return ""

    place = Place(1, 7)
    for expected in ("", "", "3 processes died at it"):
        suspects = CrashGuard(tmp_path / "shard", dies_alone)
        with suppress(MemoryError), suspects:
            suspects.begin(place, Phase.JUDGE)
            raise MemoryError  # what stays of a process that was killed: its note
        again = CrashGuard(tmp_path / "shard", dies_alone)
        assert again.why_skipped(place, Phase.JUDGE) == expected
        with again:
            pass

    assert tried == [(place, Phase.JUDGE)] * 3


def test_a_record_that_kills_alone_is_left_out_after_one_death(tmp_path: Path) -> None:
    place = Place(1, 7)
    with suppress(MemoryError), CrashGuard(tmp_path / "shard", lambda *_: "") as suspects:
        suspects.begin(place, Phase.JUDGE)
        raise MemoryError

    again = CrashGuard(tmp_path / "shard", lambda *_: "SIGSEGV")

    why = "kills the process that works on it (SIGSEGV)"
    assert again.why_skipped(place, Phase.JUDGE) == why
    # Whoever comes next knows it without another death.
    assert CrashGuard(tmp_path / "shard", lambda *_: "").why_skipped(place, Phase.JUDGE) == why


def test_a_record_that_raises_an_error_alone_kills_nothing(tmp_path: Path) -> None:
    assert death_alone(os.rmdir, str(tmp_path / "missing")) == ""


def test_what_follows_a_place_that_kills_the_reader_is_left_out(tmp_path: Path) -> None:
    shard = plan_shards([str(write_jsonl(tmp_path / "a.jsonl", texts(9)))], 10**9, 1)[0]
    task = MapTask(shard=shard, recipe=Recipe(), lists=None, folder=tmp_path / "shard", key="key")
    (tmp_path / "shard.place").write_bytes(NOTE.pack(0, 4, Phase.READ))
    (tmp_path / "shard.suspects.json").write_text('{"0 4 READ": {"deaths": 2}}')

    map_shard(task)

    facts = json.loads((tmp_path / "shard/facts.json").read_text())
    assert facts["clean"]["counts"]["documents_in"] == 4
    assert facts["read"][0]["places"] == ["a.jsonl:4: the rest is skipped: 3 processes died at it"]
