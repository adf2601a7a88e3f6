import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anadil.pretrain.callback import Section
from anadil.pretrain.resilience.watchdog import RankProgress, Watchdog, culprits
from tests.kit import faulty_worker
from tests.kit.marks import matrix, slow
from tests.kit.ranks import Fork, variables_of_ranks

PATIENCE_S = 90


def start(case: str, folder: Path, num_processes: int = 1) -> list[Fork]:
    """Processes that train together, with the variables that torchrun would give them."""
    work = partial(faulty_worker.main, case, folder)
    several = variables_of_ranks(num_processes) if num_processes > 1 else [{}]
    return [Fork(work, folder / f"{rank}.log", variables) for rank, variables in enumerate(several)]


def told_by(process: Fork) -> str:
    """What it has said when it has ended."""
    process.wait(PATIENCE_S)
    return process.log.read_text()


def began(folder: Path) -> dict[str, float]:
    """When and where the fault began."""
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "began.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.05)
    told: dict[str, float] = json.loads((folder / "began.json").read_text())
    return told


def at(
    rank: int, section: str, *, step: int = 7, beats: int = 3, ticks: int = 9, **place: Any
) -> RankProgress:
    return RankProgress(
        rank=rank, host=f"node-{rank // 8}", pid=100 + rank, step=step, beats=beats, section=section,
        silent_s=600, ticks=ticks, **place,
    )  # fmt: skip


def test_the_process_that_did_not_reach_the_sum_is_named(tmp_path: Path) -> None:
    found = {0: at(0, "reduce", beats=4), 1: at(1, "backward"), 2: at(2, "reduce", beats=4)}

    text = culprits(found, 0, tmp_path)

    assert text.startswith(
        "the run hangs: rank 1 on node-0 (process 101) is stuck in backward of step 7, silent"
    )
    assert f"{tmp_path}/hang-rank-*.txt; run the same command again" in text
    assert "rank 0" not in text


INSIDE: dict[str, Any] = {"where": "distributed_c10d.py:all_reduce", "waits": True}


@pytest.mark.parametrize(
    "ranks",
    [
        # In an earlier micro-batch.
        [at(0, "data", beats=4), at(1, "backward", beats=3)],
        # The other waits without its last micro-batch.
        [at(0, "reduce", beats=4), at(1, "forward", beats=5)],
        # Equally far, but outside of the collective.
        [at(0, "forward", **INSIDE), at(1, "forward", where="attention.py:forward")],
        # Equally far, but in another place.
        [
            at(rank, "forward", where=f"trainer.py:{'hook' if rank == 1 else 'gradients'}")
            for rank in range(4)
        ],
    ],
)
def test_the_process_that_is_behind_or_elsewhere_is_named(tmp_path: Path, ranks: list[RankProgress]) -> None:
    text = culprits(dict(enumerate(ranks)), 0, tmp_path)

    assert text.startswith("the run hangs: rank 1 on node-0 (process 101) is stuck in ")
    assert "rank 0" not in text


def test_a_process_that_does_not_tick_is_named_whatever_it_said_last(tmp_path: Path) -> None:
    frozen = at(9, "reduce", beats=9).stopped_since(at(9, "reduce", beats=9))
    found = {0: at(0, "backward"), 9: frozen}

    text = culprits(found, 0, tmp_path)

    assert "rank 9 on node-1 (process 109) is stuck in reduce of step 7, and does not run" in text


def test_where_all_wait_in_the_same_place_it_is_the_network(tmp_path: Path) -> None:
    found = {rank: at(rank, "reduce") for rank in range(4)}

    text = culprits(found, 2, tmp_path)

    assert "all 4 processes wait in reduce of step 7, and none is behind: check the network" in text


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (["forward", "optimizer", "start"], [900, 60, 900]),
        (["optimizer", "save", "data"], [60, 900, 60]),
        (["load", "start"], [12 * 3_600, 900]),
    ],
)
def test_a_start_and_a_save_may_take_longer_than_a_step_and_loading_hours(
    tmp_path: Path, sections: list[Section], expected: list[float]
) -> None:
    watch = Watchdog(tmp_path, 60, start_after_s=900)
    allowed = []

    for section in sections:
        watch.heartbeat(section, 1)
        allowed.append(watch.allowance_s)

    assert allowed == expected


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    ended: list[str] = []
    watch = Watchdog(tmp_path, 0.5, start_after_s=0.5, end=ended.append)

    with watch.running():
        for step in range(10):
            watch.heartbeat("forward", step)
            time.sleep(0.1)

    assert not ended
    assert not list(tmp_path.iterdir())


def test_one_process_that_hangs_ends_with_138_and_leaves_its_stacks(tmp_path: Path) -> None:
    [process] = start("alone", tmp_path)
    since = began(tmp_path)["at"]

    told = told_by(process)

    assert time.time() - since < 10
    assert process.poll() == 138
    assert "rank 0 on" in told
    assert "is stuck in start of step 0" in told
    assert "in misbehave" in (tmp_path / "hang-rank-0.txt").read_text()
    assert "in misbehave" in told


@pytest.mark.parametrize("case", [slow("loop"), matrix("stopped")])
def test_a_process_that_holds_up_the_others_is_named_and_all_end(tmp_path: Path, case: str) -> None:
    processes = start(case, tmp_path, 3)
    fault = began(tmp_path)
    if case == "stopped":
        os.kill(int(fault["pid"]), signal.SIGSTOP)
    stuck = next(each for each in processes if each.pid == fault["pid"])
    others = [each for each in processes if each is not stuck]

    told = [told_by(each) for each in others]
    took = time.time() - fault["at"]
    if case == "stopped":
        stuck.kill()

    print(f"{case}: all ended {took:.2f} s after the fault began")
    assert took < 15
    assert [each.poll() for each in others] == [138, 138]
    assert stuck.wait(PATIENCE_S) == (-signal.SIGKILL if case == "stopped" else 138)
    errors = [line for text in told for line in text.splitlines() if "error: the run hangs" in line]
    if case == "stopped":
        assert len(errors) == 1
        assert "and does not run" in errors[0]
    place = " of step 5 at faulty_worker.py:misbehave" if case == "loop" else ""
    for line in errors:
        assert f"(process {stuck.pid}) is stuck in forward{place}" in line
    for rank in range(2):
        assert "all_reduce" in (tmp_path / f"hang-rank-{rank}.txt").read_text()


@pytest.mark.slow
def test_where_the_process_that_keeps_the_store_is_stopped_the_others_end_alone(tmp_path: Path) -> None:
    processes = start("first stopped", tmp_path, 2)
    fault = began(tmp_path)
    os.kill(int(fault["pid"]), signal.SIGSTOP)
    assert processes[0].pid == fault["pid"]

    told = told_by(processes[1])
    processes[0].kill()

    assert processes[1].poll() == 138, told
    assert "no answer in 10 s" in told
    assert "error: the run hangs" in told


@pytest.mark.slow
def test_a_process_slower_than_usual_is_no_hang(tmp_path: Path) -> None:
    processes = start("slow", tmp_path, 2)

    told = [told_by(each) for each in processes]

    assert [each.poll() for each in processes] == [0, 0]
    assert not any("hang" in text for text in told)


@pytest.mark.slow
def test_a_process_that_computes_with_pythons_lock_is_ended_by_the_kernel(tmp_path: Path) -> None:
    [process] = start("alone with the lock", tmp_path)
    since = began(tmp_path)["at"]

    assert process.wait(PATIENCE_S) == -signal.SIGALRM
    assert time.time() - since < 15
    assert "in misbehave" in (tmp_path / "hang-rank-0.held.txt").read_text()
