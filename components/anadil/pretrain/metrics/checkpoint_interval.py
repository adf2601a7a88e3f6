"""The interval between checkpoints: as measured, beside the one that wastes least in theory."""

from dataclasses import dataclass

from anadil.core.format import human_seconds
from anadil.plan.reliability import NODE_MTBF_S, checkpoint_interval, effective_training_time_ratio, waste
from anadil.pretrain.metrics.goodput import Goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInterval:
    """The recipe's distance between checkpoints, measured, and the best one for the same stall."""

    every: int
    """Optimizer steps between checkpoints."""
    seconds: float
    """The same in time."""
    stall_s: float
    """Training waited this long for each, on average."""
    mtbf_s: float
    """Mean time between failures of the run, assumed."""
    waste: float
    """Share of the time that stalls and lost work take, expected."""
    best_every: int
    """Optimizer steps that would waste least."""
    best_seconds: float
    best_waste: float
    goodput: float
    """Measured share of productive time."""
    expected_goodput: float
    """Share of productive time if failures come at random every `mtbf_s`."""

    def sentence(self) -> str:
        """The figures for a person."""
        return (
            f"checkpoints every {self.every:,} steps ({human_seconds(self.seconds)}) stall {self.stall_s:.2g} s "
            f"each and waste {100 * self.waste:.2g} % with a failure every {human_seconds(self.mtbf_s)} (assumed); "
            f"every {self.best_every:,} steps ({human_seconds(self.best_seconds)}) would waste least, "
            f"{100 * self.best_waste:.2g} %"
        )


def checkpoint_interval_of(goodput: Goodput, every: int, nodes: int) -> CheckpointInterval | None:
    """Compare `pretrain.checkpoint_every` with the interval of Young and Daly.

    Args:
        goodput: Accounts of the run.
        every: Optimizer steps between checkpoints.
        nodes: Nodes of the run; they fail independently.

    Returns:
        None until a checkpoint has been written.

    Source: see anadil.plan.reliability.
    """
    saves, steps = goodput.counts["checkpoint"], goodput.steps
    if not (saves and steps):
        return None
    step_s = (goodput.seconds["step"] + goodput.seconds["data"]) / steps
    stall_s = goodput.seconds["checkpoint"] / saves
    if not (step_s and stall_s):
        return None
    # A run fails when any of its nodes does.
    mtbf_s = NODE_MTBF_S / nodes
    best = checkpoint_interval(stall_s, mtbf_s)
    return CheckpointInterval(
        every=every,
        seconds=every * step_s,
        stall_s=stall_s,
        mtbf_s=mtbf_s,
        waste=waste(every * step_s, stall_s, mtbf_s),
        best_every=max(1, round(best / step_s)),
        best_seconds=best,
        best_waste=waste(best, stall_s, mtbf_s),
        goodput=goodput.shares()["step"],
        expected_goodput=effective_training_time_ratio(every * step_s, stall_s, mtbf_s),
    )
