"""Every layout of a run on given machines: which fit, which is fastest, and what to change where none fits.

Nothing is sampled. Memory never falls with a larger micro-batch while there are several, nor with
less recomputation; so micro-batches are tried upwards until one does not fit, and with less
recomputation only those that fit with more.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import get_args

from anadil.core.format import human_bytes, human_parameters
from anadil.estimate.fit import FitVerdict, layout_fit
from anadil.estimate.instances import CPU, LOCAL, Machine
from anadil.estimate.layout import KERNELS, Layout, Recompute, Work, cuts_evenly, shared_by_tensor
from anadil.estimate.model_shape import Shape
from anadil.estimate.speed import Speed, speed
from anadil.model.family_table import LAYOUTS, supports

RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""From the fastest to the one that needs the least memory."""
SHORTEST_SEQUENCE = 256
"""Tokens below which a shorter sequence is no remedy any more. Assumption."""
MOST_NODES = 64
"""Times as many machines as asked for that are tried as a remedy. Assumption."""
LARGE_MODEL = 14e9
"""Parameters from which activation checkpointing is a prerequisite on 8 GPUs and FP8 the balanced
precision. Source: AWS Machine Learning Blog on training with Blackwell on SageMaker AI."""
FP8_DEVICES = ("H100", "H200", "B200", "B300")
BLOCK_SCALED_DEVICES = ("B200", "B300")
"""Devices with MXFP8 and NVFP4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingLayout:
    """A layout that fits."""

    layout: Layout
    total_bytes: int
    """At the worst moment on the worst device, with what lies outside the allocator."""
    verdict: FitVerdict
    speed: Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Layouts that a search found."""

    best: tuple[FittingLayout, ...]
    """The fastest of each way to share the model, those that fit tightly after all that fit well."""
    frontier: tuple[FittingLayout, ...]
    """From the least memory up: each is faster than all that need less memory."""
    considered: int
    fitting: int
    """Layouts that fit, tight ones too."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Settings that make a run fit that does not."""

    settings: dict[str, int | str]
    """Value by recipe key, only those that change."""
    layout: Layout
    total_bytes: int


def search(
    shape: Shape,
    work: Work,
    machine: Machine,
    nodes: int,
    batch_size: int,
    *,
    keep: int = 10,
    like: Layout = Layout(),  # noqa: B008  frozen
) -> SearchResult:
    """All layouts that fit, the fastest first, and at most `keep` of them in `best`.

    `batch_size` counts the sequences of a step over all devices. Layers are gathered as in `like`.
    """
    start = time.perf_counter()
    considered = 0
    fitting: list[FittingLayout] = []
    for each in layouts(shape, work, machine, nodes, batch_size):
        layout = replace(each, prefetch=like.prefetch, reshard=like.reshard)
        batches = divisors(layout.micro_batches)
        considered += len(batches) * len(RECOMPUTE)
        for recompute in reversed(RECOMPUTE):
            one = replace(layout, recompute=recompute)
            fitting_here = list(_fitting(shape, one, work, machine, batches))
            fitting += fitting_here
            batches = [each.layout.micro_batch_size for each in fitting_here]
    fitting.sort(key=_order)
    return SearchResult(
        best=_fastest(fitting)[:keep],
        frontier=_frontier(fitting),
        considered=considered,
        fitting=len(fitting),
        seconds=time.perf_counter() - start,
    )


def _fitting(
    shape: Shape, layout: Layout, work: Work, machine: Machine, batches: Sequence[int]
) -> Iterator[FittingLayout]:
    """A layout with each micro-batch size that fits, rising; of those, the first too large ends it.

    The last is tried in any case: a single micro-batch does not keep the sum of gradients.
    """
    nodes = layout.devices // machine.devices
    full = False
    for size in batches:
        starved = layout.micro_batches // size < layout.pipeline
        if starved or (full and size != batches[-1]):
            continue
        one = replace(layout, micro_batch_size=size, micro_batches=layout.micro_batches // size)
        total, word = layout_fit(shape, one, work, machine)
        if word == "no":
            full = True
            continue
        rate = speed(shape, one, work, machine, nodes)
        yield FittingLayout(layout=one, total_bytes=total, verdict=word, speed=rate)


def layouts(shape: Shape, work: Work, machine: Machine, nodes: int, batch_size: int) -> Iterator[Layout]:
    """Every way to share a model and a batch, with micro-batches of one sequence.

    Tensor parallelism stays within a machine. Nothing is shared in a way that is not proven for the model's type.
    """
    devices = nodes * machine.devices
    for tensor in powers_of_two(machine.devices):
        if machine.devices % tensor or gcd(*shared_by_tensor(shape).values()) % tensor:
            continue
        for pipeline in divisors(shape.layers):
            if devices % (tensor * pipeline):
                continue
            for context in powers_of_two(devices // (tensor * pipeline)):
                data, rest = divmod(devices, tensor * pipeline * context)
                if rest or batch_size % data:
                    continue
                if not cuts_evenly(work.sequence_length, context=context, tensor=tensor):
                    continue
                for shard in shards(machine, tensor, context, data):
                    layout = Layout(
                        data=data, shard=shard, tensor=tensor, context=context, pipeline=pipeline,
                        micro_batches=batch_size // data,
                    )  # fmt: skip
                    if is_proven(shape, layout):
                        yield layout


def is_proven(shape: Shape, layout: Layout) -> bool:
    """True if each way in which a layout shares a model is proven for the model's type."""
    return all(supports(shape.model_type, name) for name in LAYOUTS if layout.degrees[name] > 1)


def shards(machine: Machine, tensor: int, context: int, data: int) -> list[int]:
    """Sizes of a group that shares parameters: one, all of data and context, or whole machines between.

    A group holds whole sequences, as torchtitan's mesh has it.
    """
    group = data * context
    between = [
        size for size in divisors(group)[1:-1] if size * tensor % machine.devices == 0 and size % context == 0
    ]
    return sorted({1, *between, group})


def divisors(number: int) -> list[int]:
    """All divisors, rising."""
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return low + [number // each for each in reversed(low) if each * each != number]


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 and so on up to the limit."""
    return [1 << power for power in range(limit.bit_length())]


def _order(candidate: FittingLayout) -> tuple[object, ...]:
    """Fits before tight, fast before slow, little memory before much, and then any fixed order."""
    layout = candidate.layout
    return (
        candidate.verdict != "fits",
        -candidate.speed.tokens_per_s,
        candidate.total_bytes,
        layout.pipeline,
        layout.context,
        layout.tensor,
        layout.shard,
        layout.micro_batch_size,
        RECOMPUTE.index(layout.recompute),
    )


def _fastest(ordered: Iterable[FittingLayout]) -> tuple[FittingLayout, ...]:
    """The first of each degrees of parallelism; the others differ in micro-batch and recomputation."""
    first: dict[tuple[int, ...], FittingLayout] = {}
    for each in ordered:
        one = each.layout
        first.setdefault((one.data, one.shard, one.tensor, one.context, one.pipeline), each)
    return tuple(first.values())


def _frontier(candidates: Iterable[FittingLayout]) -> tuple[FittingLayout, ...]:
    """Those that no other one beats in both memory and speed."""
    frontier: list[FittingLayout] = []
    for each in sorted(candidates, key=lambda one: (one.total_bytes, *_order(one))):
        if not frontier or each.speed.tokens_per_s > frontier[-1].speed.tokens_per_s:
            frontier.append(each)
    return tuple(frontier)


def nearest(
    shape: Shape,
    layout: Layout,
    work: Work,
    machine: Machine,
    nodes: int,
    machines: Sequence[Machine] = (),
    changed: Mapping[str, int | str] | None = None,
) -> tuple[Remedy, ...]:
    """The nearest settings that fit, in the order in which one would change them.

    One of each kind that helps alone. Where none does, kinds are taken together, one after another
    and each as far as it goes, until the run fits; empty where that is not enough either. The batch of a step
    stays. Each remedy also names the settings in `changed`, by recipe key.
    """
    trial = _Trial(layout=layout, work=work, machine=machine, nodes=nodes, settings=dict(changed or {}))
    kinds: tuple[Callable[[_Trial], Iterator[_Trial]], ...] = (
        _more_recompute,
        _smaller_batch,
        _more_shards,
        _more_nodes,
        _shorter,
        lambda each: _larger(each, machines),
    )
    alone = [_first_fit(shape, kind(trial)) for kind in kinds]
    if any(alone):
        return tuple(remedy for remedy in alone if remedy is not None)
    for kind in kinds:
        options = list(kind(trial))
        remedy = _first_fit(shape, options)
        if remedy is not None:
            return (remedy,)
        trial = options[-1] if options else trial
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A run with some settings changed."""

    layout: Layout
    work: Work
    machine: Machine
    nodes: int
    settings: dict[str, int | str]

    def set(self, key: str, value: int | str, **changed: Layout | Work) -> "_Trial":
        """The run with a key of `pretrain` set."""
        return replace(self, settings={**self.settings, f"pretrain.{key}": value}, **changed)  # type: ignore[arg-type]


def _first_fit(shape: Shape, options: Iterable[_Trial]) -> Remedy | None:
    for each in options:
        if each.layout.micro_batches < each.layout.pipeline or not is_proven(shape, each.layout):
            continue
        total, word = layout_fit(shape, each.layout, each.work, each.machine)
        if word == "fits":
            return Remedy(settings=each.settings, layout=each.layout, total_bytes=total)
    return None


def _more_recompute(trial: _Trial) -> Iterator[_Trial]:
    for recompute in RECOMPUTE[RECOMPUTE.index(trial.layout.recompute) + 1 :]:
        yield trial.set(
            "activation_checkpointing", recompute, layout=replace(trial.layout, recompute=recompute)
        )


def _smaller_batch(trial: _Trial) -> Iterator[_Trial]:
    now = trial.layout.micro_batch_size
    local = now * trial.layout.micro_batches
    for size in reversed([each for each in divisors(local) if each < now]):
        layout = replace(trial.layout, micro_batch_size=size, micro_batches=local // size)
        yield trial.set("micro_batch_size", size, layout=layout)


def _more_shards(trial: _Trial) -> Iterator[_Trial]:
    layout = trial.layout
    for shard in shards(trial.machine, layout.tensor, layout.context, layout.data):
        if shard > layout.shard:
            yield trial.set("parallelism.shard", shard, layout=replace(layout, shard=shard))


def _more_nodes(trial: _Trial) -> Iterator[_Trial]:
    """More machines, each with a smaller part of the batch and of the parameters; of this one there is one."""
    if trial.machine.name == LOCAL:
        return
    for times in powers_of_two(MOST_NODES)[1:]:
        layout, nodes = trial.layout, times * trial.nodes
        data = layout.data * times
        if layout.batch_size % data:
            return
        local = layout.batch_size // data
        size = max(each for each in divisors(local) if each <= layout.micro_batch_size)
        settings = {**trial.settings, "cluster.nodes": nodes}
        if size != layout.micro_batch_size:
            settings["pretrain.micro_batch_size"] = size
        shard = data * layout.context
        settings["pretrain.parallelism.shard"] = shard
        wide = replace(layout, data=data, shard=shard, micro_batch_size=size, micro_batches=local // size)
        yield replace(trial, layout=wide, nodes=nodes, settings=settings)


def _shorter(trial: _Trial) -> Iterator[_Trial]:
    length, layout = trial.work.sequence_length // 2, trial.layout
    while length >= SHORTEST_SEQUENCE and cuts_evenly(length, context=layout.context, tensor=layout.tensor):
        yield trial.set("sequence_length", length, work=replace(trial.work, sequence_length=length))
        length //= 2


def _larger(trial: _Trial, machines: Iterable[Machine]) -> Iterator[_Trial]:
    """Machines with as many devices and more memory each, the smallest first."""
    now = trial.machine
    for each in sorted(machines, key=lambda one: (one.memory_bytes, one.name)):
        if each.devices == now.devices and each.memory_bytes > now.memory_bytes:
            settings = {**trial.settings, "cluster.instance": each.name}
            yield replace(trial, machine=each, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rationale:
    """One setting, and why it has its value."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRationale:
    """Explains the settings of a layout."""

    shape: Shape
    layout: Layout
    work: Work
    machine: Machine
    nodes: int

    def settings(self) -> tuple[Rationale, ...]:
        """Every setting, in the order in which one decides them."""
        layout, work = self.layout, self.work
        batch = f"{layout.micro_batch_size} x {layout.micro_batches}"
        return (
            Rationale(setting="parallelism", value=layout.name(), why=self._parallelism()),
            Rationale(setting="micro-batch", value=batch, why=self._batch()),
            Rationale(setting="activation checkpointing", value=layout.recompute, why=self._recompute()),
            Rationale(setting="precision", value=work.compute, why=self._precision()),
            Rationale(setting="state", value=work.state, why=self._state()),
            Rationale(setting="kernels", value=work.kernels, why=self._kernels()),
        )

    def _figures(self, layout: Layout, work: Work | None = None) -> str:
        work = work or self.work
        total, verdict = layout_fit(self.shape, layout, work, self.machine)
        text = human_bytes(total)
        if verdict == "no":
            return f"{text}, does not fit"
        if not (self.machine.flops_bf16 and self.machine.hbm):
            return text
        rate = speed(self.shape, layout, work, self.machine, self.nodes).tokens_per_s_per_device
        return f"{text}, {rate:,.0f} tokens/s"

    def _parallelism(self) -> str:
        layout = self.layout
        group = layout.data * layout.context
        if layout.devices == 1:
            return "there is one device"
        if layout.shard == 1 and layout.devices == group:
            return (
                f"a copy on each device: {self._figures(layout)} a device; shared by all {group} (FSDP): "
                f"{self._figures(replace(layout, shard=group))}"
            )
        why = (
            f"{self._figures(layout)} a device; with a copy of the parameters on each data-parallel device "
            f"{self._figures(replace(layout, shard=1))}"
        )
        if layout.tensor > 1:
            why += f"; tensor parallel stays within a machine's {self.machine.devices} devices"
        return why

    def _batch(self) -> str:
        layout, size = self.layout, self.layout.micro_batch_size
        local = size * layout.micro_batches
        sizes = divisors(local)
        # A batch that does not divide evenly is none of the divisors.
        near = [
            size,
            *[each for each in sizes if each < size][-1:],
            *[each for each in sizes if each > size][:1],
        ]
        variants = "; ".join(
            f"{each}: {self._figures(replace(layout, micro_batch_size=each, micro_batches=local // each))}"
            for each in near
        )
        return (
            "batch first: larger micro-batches make larger matrix products and gather weights less often, "
            f"so the largest that pays is taken before anything else; of the divisors of {local}, {variants}"
        )

    def _recompute(self) -> str:
        variants = "; ".join(
            f"{each}: {self._figures(replace(self.layout, recompute=each))}" for each in RECOMPUTE
        )
        size, limit = human_parameters(self.shape.parameters), human_parameters(LARGE_MODEL)
        rule = f"from about {limit} it is a prerequisite"
        if self.shape.parameters < LARGE_MODEL:
            rule = f"below about {limit} it is generally not needed"
        return f"10-30 % more compute for much less memory; {rule} ({size} here); {variants}"

    def _precision(self) -> str:
        name, limit = self.machine.device.split()[0], human_parameters(LARGE_MODEL)
        if self.machine.device == CPU:
            if self.work.compute == "fp32":
                return "this CPU has no BF16 products of its own"
            return (
                "this CPU has BF16 products of its own, 2.0 to 2.7 times as fast as FP32 at 135M parameters"
            )
        if self.work.compute == "fp32":
            return "asked for; bf16 is what the device's matrix units are for"
        why = "primary weights stay in high precision, so lower ones raise throughput and save no memory; "
        if name not in FP8_DEVICES:
            return f"{why}{name} has no FP8"
        if self.shape.parameters < LARGE_MODEL:
            others = "FP8, MXFP8 and NVFP4" if name in BLOCK_SCALED_DEVICES else "FP8"
            why += f"below {limit} the gains of {others} are modest and alike: if any, start with FP8"
        else:
            why += f"from {limit} FP8 is the balance"
            if name in BLOCK_SCALED_DEVICES:
                why += ", MXFP8 where accuracy matters, NVFP4 only with a validated recipe"
        return f"{why}; compare loss curves before production, so a plan does not switch it on"

    def _state(self) -> str:
        layout = self.layout
        variants = "; ".join(
            f"{state}: {human_bytes(size * self.shape.parameters / layout.shard / layout.tensor / layout.pipeline)}"
            for state, size in (("fp32", 16), ("bf16", 8))
        )
        return (
            f"weights, gradients and moments a device, {variants}; bf16 is what was published and loses updates "
            "that are small against the weight"
        )

    def _kernels(self) -> str:
        if self.machine.device == CPU:
            return "Liger's kernels need a GPU"
        variants = "; ".join(
            f"{name}: {self._figures(self.layout, replace(self.work, kernels=name))}" for name in KERNELS
        )
        return f"fused norms, rotation, SwiGLU and loss keep less and move less; {variants}"
