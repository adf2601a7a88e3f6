"""Tasks in processes, and runs that end in the middle."""

import json
import multiprocessing.process
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.runtime.executors.processes import Processes
from anadil.runtime.signals import Stop, handle_signals
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, clean, content, write_jsonl
from tests.kit.harness import wait_for
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
workspace.plan_shards = lambda uris, most, num_workers: plan(uris, 20_000, num_workers)
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


@pytest.mark.slow
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
