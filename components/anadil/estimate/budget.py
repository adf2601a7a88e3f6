"""Budget of a run: time, money, failures, checkpoints and storage, from a step's speed.

Everything here is a function of numbers, so that published runs can be put through it. A rate
that is not known is None, and so is all that follows from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from anadil.estimate.instances import PCIE, Machine
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
MFU_RANGE = (0.25, 0.50)
"""Share of the peak that published runs reached: 24 % (1B on 2 p4d), 37 % (70B on 32 p5), 48 % (1B on
one p5). Source: computed from the speeds that Azercell and Llama 3.3 Swallow published with AWS."""
CPU_MFU_RANGE = (0.50, 0.80)
"""Share of a CPU's measured peak in the precision of its step. Measured: FP32 0.57 beside other programs and 0.80 alone (AVX2), BF16
0.71 (AVX-512); see benchmarks/train and benchmarks/real."""
OBJECT_STORE = 12.5e9
"""Bytes a second between one machine and S3 at best, 100 Gbit/s; EFA does not carry it.
Source: AWS knowledge centre, "What's the maximum transfer speed between EC2 and S3?"."""
ID_BYTES = 4
"""A token id in the packed data."""
TEXT_BYTES_PER_TOKEN = 6.0
"""Assumption: 9.4 UTF-8 bytes a word of Azerbaijani (6.4 MB of FLORES, laws and manuals), at the
published 1.59 tokens a word."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWork:
    """A phase as the budget sees it."""

    steps: int
    tokens: int
    """Sum over all its steps."""
    flops: float
    """Sum over all its steps."""
    tokens_per_s: float | None
    """Rate of all devices together; None where the machine's speed is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """How long training takes without a failure, and what it may take by published speeds."""

    tokens: int
    steps: int
    flops: float
    hours: float | None
    hours_low: float | None
    hours_high: float | None
    gpu_hours: float | None
    epoch_tokens: int | None
    """Tokens of one epoch."""
    hours_per_epoch: float | None
    """At the speed of the last phase, which trains everything."""
    epochs: float | None
    """Passes over the corpus that all phases make together."""
    hours_after: float | None = None
    """Part of `hours` for finetuning and scoring; None but on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """USD for all machines by one way to rent them; None where the price or the time is not known."""

    per_hour: float | None
    predicted: float | None
    """For the hours of training."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalCost:
    """Cost of the run by each way to rent the machines."""

    on_demand: CostEstimate
    spot: CostEstimate
    training_plan: CostEstimate
    currency: Literal["USD"] = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageNeed:
    """Bytes that the run keeps, and the time to load the data."""

    data_bytes: int
    checkpoints_bytes: int
    total_bytes: int
    preload_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBudget:
    """The five sections of a plan that follow from its speed."""

    time: Time
    cost: RentalCost
    reliability: Reliability
    checkpoints: CheckpointPlan
    storage: StorageNeed


def budget(
    phases: Sequence[PhaseWork],
    machine: Machine,
    nodes: int,
    *,
    checkpoint_bytes: int,
    parameters: int,
    checkpoint_every: int,
    keep: int,
    epoch_tokens: int | None = None,
    mfu_range: tuple[float, float] | None = MFU_RANGE,
    spread: tuple[float, float] = (1.0, 1.0),
    share_before: float = 0.0,
    peak_flops: float | None = None,
    after_s: float = 0.0,
) -> PlanBudget:
    """All sections for a run of some phases on some machines; see `time_of` and `checkpoints_of`.

    `share_before` is the compute of earlier trainings, by that of the phases: hours and money count it, steps do not.
    `mfu_range` are shares of `peak_flops`, by default the machine's. `after_s` are seconds of finetuning and
    scoring on a CPU, at its peak.
    """
    devices = nodes * machine.devices
    rates: dict[str, Any] = {"epoch_tokens": epoch_tokens, "mfu_range": mfu_range, "spread": spread}
    peak = peak_flops or machine.flops_bf16
    time = time_of(phases, devices, peak, **rates)
    step_s = time.hours * 3600 / time.steps if time.hours else None
    if share_before:
        earlier = [
            replace(each, steps=0, tokens=round(each.tokens * share_before), flops=each.flops * share_before)
            for each in phases
        ]
        whole = time_of([*phases, *earlier], devices, peak, **rates)
        time = replace(whole, tokens=time.tokens, steps=time.steps)
    if after_s and time.hours is not None and time.hours_low is not None and time.hours_high is not None:
        most, least = (after_s / share / 3600 for share in CPU_MFU_RANGE)
        best = least if mfu_range else (least + most) / 2
        time = replace(
            time, hours=time.hours + best, hours_low=time.hours_low + least, hours_high=time.hours_high + most,
            hours_after=best,
        )  # fmt: skip
    stall_s, mtbf_s = save_stall(checkpoint_bytes, devices), NODE_MTBF_S / nodes
    checkpoints = checkpoints_of(
        checkpoint_bytes, parameters, stall_s=stall_s, mtbf_s=mtbf_s, step_s=step_s, every=checkpoint_every,
        keep=keep,
    )  # fmt: skip
    interval_s = checkpoint_every * step_s if step_s else None
    return PlanBudget(
        time=time,
        cost=rental_cost(machine, nodes, time),
        reliability=reliability_of(mtbf_s, stall_s=stall_s, interval_s=interval_s, hours=time.hours),
        checkpoints=checkpoints,
        storage=storage_of(epoch_tokens or time.tokens, checkpoints.storage_bytes, machine.network),
    )


def time_of(
    phases: Sequence[PhaseWork],
    devices: int,
    peak_flops: float,
    *,
    epoch_tokens: int | None = None,
    mfu_range: tuple[float, float] | None = MFU_RANGE,
    spread: tuple[float, float] = (1.0, 1.0),
) -> Time:
    """Hours of all phases at their predicted speeds.

    The range is what published shares of the peak give, widened to hold the prediction.

    Args:
        phases: The phases, in order; at least one.
        devices: Of the whole run.
        peak_flops: Of one device; 0 where it is not known.
        epoch_tokens: Tokens of one epoch; None if not known.
        mfu_range: Lowest and highest share of the peak; None once the speed was measured.
        spread: Least and most of the predicted time, as shares, where the speed was measured.
    """
    tokens = sum(phase.tokens for phase in phases)
    flops = sum(phase.flops for phase in phases)
    parts = [phase.tokens / phase.tokens_per_s if phase.tokens_per_s else None for phase in phases]
    hours = None if None in parts else sum(filter(None, parts)) / 3600
    low, high = (None, None) if hours is None else (hours * spread[0], hours * spread[1])
    if hours is not None and mfu_range is not None and peak_flops:
        at_peak = flops / (devices * peak_flops) / 3600
        low, high = min(hours, at_peak / mfu_range[1]), max(hours, at_peak / mfu_range[0])
    last = phases[-1].tokens_per_s
    return Time(
        tokens=tokens,
        steps=sum(phase.steps for phase in phases),
        flops=flops,
        hours=hours,
        hours_low=low,
        hours_high=high,
        gpu_hours=None if hours is None else hours * devices,
        epoch_tokens=epoch_tokens,
        hours_per_epoch=epoch_tokens / last / 3600 if epoch_tokens and last else None,
        epochs=tokens / epoch_tokens if epoch_tokens else None,
    )


def rental_cost(machine: Machine, nodes: int, time: Time) -> RentalCost:
    """Cost of all machines for the hours of training, by each way to rent them."""

    def price(per_hour: float | None) -> CostEstimate:
        def cost(hours: float | None) -> float | None:
            return None if per_hour is None or hours is None else per_hour * nodes * hours

        return CostEstimate(
            per_hour=cost(1), predicted=cost(time.hours), low=cost(time.hours_low), high=cost(time.hours_high)
        )

    return RentalCost(
        on_demand=price(machine.on_demand),
        spot=price(machine.spot),
        training_plan=price(machine.training_plan),
    )


def storage_of(tokens: int, checkpoints_bytes: int, network: float) -> StorageNeed:
    """Bytes of the data and of all checkpoints, and the time to load the ids of `tokens`.

    Each machine loads all ids over its `network`, in bytes a second; 0 where that is not known.
    """
    data = round(tokens * (ID_BYTES + TEXT_BYTES_PER_TOKEN))
    return StorageNeed(
        data_bytes=data,
        checkpoints_bytes=checkpoints_bytes,
        total_bytes=data + checkpoints_bytes,
        preload_s=tokens * ID_BYTES / min(network, OBJECT_STORE) if network else None,
    )
