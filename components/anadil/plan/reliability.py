"""Checkpoints and failures: how large, how often, and what both cost a run.

Everything here is a function of numbers, so that published runs can be put through it. A rate
that is not known is None, and so is all that follows from it.
"""

import math
from dataclasses import dataclass
from typing import Literal

from anadil.plan.instances import PCIE
from anadil.recipe.pretrain import OPTIMIZERS

NODE_MTBF_S = 2_048 * 150 * 60.0
"""A node of 8 GPUs fails once in 5,120 hours: 150 minutes between failures of 2,048 nodes.
Source: AWS's guide to large-scale training, on the training of Llama 3.1 405B on 16,000 H100."""
RESTART_S = 900.0
"""Assumption: from a failure to the next trained step. NCCL's watchdog needs 10 minutes to give up
(torch.distributed's default timeout), then 5 for containers, weights and the data's place."""
WRITE_OVERHEAD = 0.1
"""Share of an interval that checkpoints may cost. Source: AWS's guide to large-scale training."""
ASYNC_STALL_S = 1.0
"""Assumption: planning and barriers of an asynchronous save, during which training waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Cost of machine failures."""

    mtbf_s: float
    """Mean time between failures of the whole run."""
    expected_failures: float | None
    restart_s: float
    lost_s_per_failure: float | None
    """Work that is done again: half an interval between checkpoints."""
    effective_training_time_ratio: float | None
    """Share of the time on the machines that trains."""
    wall_hours: float | None
    """Training, checkpoints, lost work and restarts together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInterval:
    """A distance between checkpoints and what it costs."""

    rule: str
    interval_s: float
    steps: int | None
    waste: float
    """Share of the time that goes into stalls and lost work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Size of a checkpoint, how often to write one, and what that needs."""

    bytes: int
    bytes_per_parameter: float
    stall_s: float
    """Training waits this long for each."""
    intervals: tuple[SaveInterval, ...]
    bandwidth_bytes_per_s: float
    """To write one while the next interval trains."""
    synchronous_bandwidth_bytes_per_s: float
    """To write one while training waits, for a tenth of the interval."""
    generations: int
    storage_bytes: int


def checkpoint_bytes(
    parameters: int, trained: int, state: Literal["fp32", "bf16"], optimizer: str = "adamw"
) -> int:
    """Bytes of a checkpoint: weights, and the optimizer's moments of each trained parameter.

    With everything trained by AdamW that is 6 bytes a parameter in bf16 and 12 in fp32. A phase that
    trains only embeddings stores fewer moments: `trained` are the parameters of the phase that trains most.

    Source: AWS's guide to large-scale training, which gives 6 bytes (70B 420 GB, 405B 2.43 TB).
    """
    return (parameters + len(OPTIMIZERS[optimizer].moments) * trained) * (4 if state == "fp32" else 2)


def save_stall(num_bytes: int, devices: int) -> float:
    """Seconds that training waits for one checkpoint: until each device's share is in main memory, over PCIe.

    Source: torch.distributed.checkpoint.async_save, which stages in CPU memory first.
    """
    return ASYNC_STALL_S + num_bytes / devices / PCIE


def checkpoint_interval(stall_s: float, mtbf_s: float) -> float:
    """Seconds between checkpoints that waste least, to first order.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval".
    """
    return math.sqrt(2 * stall_s * mtbf_s)


def waste(interval_s: float, stall_s: float, mtbf_s: float) -> float:
    """Share of the time that goes into stalls and into work done again, to first order.

    Source: Young 1974, as for `checkpoint_interval`.
    """
    return stall_s / interval_s + interval_s / (2 * mtbf_s)


def checkpoints_of(
    num_bytes: int,
    parameters: int,
    *,
    stall_s: float,
    mtbf_s: float,
    step_s: float | None,
    every: int,
    keep: int,
) -> CheckpointPlan:
    """Two published rules for the interval beside the recipe's own, and what the recipe's needs.

    A checkpoint has `num_bytes`; training waits `stall_s` for one and writes it `every` so many steps. Where the
    time of a step is not known (None), MTBF / 10 counts.

    Source: MTBF / 10 is from AWS's guide to large-scale training; for Young-Daly see `checkpoint_interval`.
    """
    rules = {"MTBF / 10": mtbf_s / 10, "Young-Daly": checkpoint_interval(stall_s, mtbf_s)}
    if step_s:
        rules["recipe"] = every * step_s
    intervals = [
        SaveInterval(
            rule=rule,
            interval_s=seconds,
            steps=max(1, round(seconds / step_s)) if step_s else None,
            waste=waste(seconds, stall_s, mtbf_s),
        )
        for rule, seconds in rules.items()
    ]
    interval_s = rules.get("recipe", rules["MTBF / 10"])
    return CheckpointPlan(
        bytes=num_bytes,
        bytes_per_parameter=num_bytes / parameters,
        stall_s=stall_s,
        intervals=tuple(intervals),
        # Source: AWS's guide to large-scale training: 2.43 TB in 15 minutes less 10 % is 3 GB/s.
        bandwidth_bytes_per_s=num_bytes / (interval_s * (1 - WRITE_OVERHEAD)),
        synchronous_bandwidth_bytes_per_s=num_bytes / (interval_s * WRITE_OVERHEAD),
        generations=keep,
        storage_bytes=num_bytes * keep,
    )


def effective_training_time_ratio(
    interval_s: float, stall_s: float, mtbf_s: float, restart_s: float = RESTART_S
) -> float:
    """Share of the time on the machines that trains, if failures come at random.

    The measure, productive time over time on the machines, is that of Kokolis et al.; the
    expected time of one interval with its checkpoint is Daly's, exact also where failures
    are frequent: MTBF * exp(restart / MTBF) * (exp((interval + stall) / MTBF) - 1).

    Source: Kokolis et al. 2024, "Revisiting Reliability in Large-Scale Machine Learning Research
        Clusters", arXiv:2410.21680; Daly 2006, "A higher order estimate of the optimum checkpoint
        interval for restart dumps", doi:10.1016/j.future.2004.11.016.
    """
    try:
        segment = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s) * mtbf_s
    except OverflowError:  # no interval ever ends
        return 0.0
    return interval_s / segment


def reliability_of(
    mtbf_s: float, *, stall_s: float, interval_s: float | None, hours: float | None
) -> Reliability:
    """Failures to expect in some hours of training, and what they and the checkpoints cost.

    `interval_s` is the time between checkpoints, `hours` that of training without a failure; None where not known.
    """
    ratio = wall = None
    if interval_s is not None and hours:
        # A run that ends before its first checkpoint is due is one interval.
        interval_s = min(interval_s, hours * 3600)
        ratio = effective_training_time_ratio(interval_s, stall_s, mtbf_s)
        wall = hours / ratio if ratio else None
    return Reliability(
        mtbf_s=mtbf_s,
        expected_failures=None if wall is None else wall * 3600 / mtbf_s,
        restart_s=RESTART_S,
        lost_s_per_failure=None if interval_s is None else interval_s / 2,
        effective_training_time_ratio=ratio,
        wall_hours=wall,
    )
