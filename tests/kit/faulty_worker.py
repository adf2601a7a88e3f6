"""One of several processes for the tests of `anadil.pretrain.resilience`."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist

from anadil.core import log as logs
from anadil.core.errors import AnadilError
from anadil.model.process_group import Group, group, peers
from anadil.pretrain.resilience import watchdog
from anadil.pretrain.resilience.burn_in import burn_in, check_replicas, summary
from anadil.pretrain.resilience.out_of_memory import micro_batch_size, note
from anadil.recipe.sections import Recipe

HANG_AFTER_S = 1.5


def watched(folder: Path, case: str) -> None:
    """Ten steps a second with a sum over the processes; in step 5 the last one does as `case` says."""
    with group(torch.device("cpu")) as processes:
        store = watchdog.connect_store(processes.rank)
        watch = watchdog.Watchdog(
            folder, HANG_AFTER_S, rank=processes.rank, size=processes.size, store=store, start_after_s=30
        )
        with watch.running():
            for step in range(1, 40):
                watch.heartbeat("forward", step)
                time.sleep(0.1)
                if step == 5 and processes.rank == (0 if case == "first stopped" else processes.size - 1):
                    misbehave(case, folder)
                watch.heartbeat("reduce")
                dist.all_reduce(torch.ones(1))
                watch.heartbeat("optimizer")


def misbehave(case: str, folder: Path) -> None:
    """Hang in some way, after the pid and the time were written down."""
    (folder / "began.json").write_text(json.dumps({"pid": os.getpid(), "at": time.time()}))
    while case == "loop":
        pass
    while case in ("stopped", "first stopped"):  # by the test
        time.sleep(0.01)
    if case == "lock":
        # A regular expression that backtracks for ever computes in C and keeps Python's lock.
        import re

        re.match(r"(a+)+$", "a" * 60 + "b")
    if case == "slow":
        time.sleep(0.8 * HANG_AFTER_S)


def replica(rank: int, flipped: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """The same tensors everywhere, but for one bit on some ranks."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "model.embed_tokens.weight": torch.randn(300, 32, generator=generator),
        "model.norm.weight": torch.randn(33, generator=generator).bfloat16(),
        "lm_head.weight": torch.randn(70, 100, generator=generator),
    }
    if rank in flipped:
        tensors["model.norm.weight"].view(torch.int16)[17] ^= 1 << rank
    return tensors


def checked(folder: Path) -> None:
    """What three processes say to replicas that differ, to the burn-in, and to the end of one of them."""
    said: dict[str, str] = {}

    def hear(name: str, work: Callable[[], object]) -> None:
        try:
            said[name] = f"fine: {work()}"
        except AnadilError as error:
            said[name] = f"{error.exit_code}: {error}"

    with group(torch.device("cpu")) as processes:
        rank, all_ranks = processes.rank, [[0, 1, 2]]
        cases = {"equal": (), "one": (1,), "each": (0, 1, 2)}
        for name, flipped in cases.items():
            mine = replica(rank, flipped)
            hear(name, lambda: check_replicas(mine, all_ranks, processes, step=200))  # noqa: B023  called at once
        mine = replica(rank, (2,))
        hear("two groups", lambda: check_replicas(mine, [[0, 1], [2]], processes, step=200))
        hear("burn-in", lambda: summary(burn_in(processes, torch.device("cpu"), torch.float32, folder)))
        recipe = Recipe.model_validate({"pretrain": {"faults": {"on_out_of_memory": "halve"}}})
        own = folder / str(rank)
        own.mkdir()
        if rank == 1:
            note(own, recipe, 3, 1)
        hear("micro-batch", lambda: micro_batch_size(recipe, own, processes))
        processes.wait()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with contextlib.suppress(RuntimeError):  # of the group's end
            hear("lost", lambda: _sum_for_ever(processes))
            (folder / f"said-{rank}.json").write_text(json.dumps(said))


def _sum_for_ever(processes: Group) -> None:
    with peers(processes.rank):
        while True:
            dist.all_reduce(torch.ones(1))


def main(case: str, folder: Path) -> None:
    """Run the case, with the log on stderr."""
    logs.set_up("pretrain")
    if case == "alone":
        watch = watchdog.Watchdog(folder, HANG_AFTER_S, start_after_s=HANG_AFTER_S)
        with watch.running():
            misbehave("loop", folder)
    elif case == "alone with the lock":
        watchdog.GATHER_S = 0.5
        watch = watchdog.Watchdog(folder, HANG_AFTER_S, start_after_s=HANG_AFTER_S)
        with watch.running():
            time.sleep(0.3)
            misbehave("lock", folder)
    elif case == "checked":
        checked(folder)
    else:
        watched(folder, case)
