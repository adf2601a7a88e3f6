"""Published runs beside what the planner predicts for them, row by row.

Every prediction comes from the functions that plan a run, with the machine table as it is. Nothing
is fitted to a row: where a prediction is off, the row says so and what would have to be known.

A row counts as explained where the prediction lies within a tolerance that is the same for all
rows of its kind. A largest batch counts where the published one lies in the range that a headroom
of 0 to 10 % of the memory gives, or one below an odd prediction: all published ones are even.

It is longer than 400 lines because most of it is the table of rows with their sources; rows and what is predicted for
them are read together.
"""

from dataclasses import dataclass, replace
from functools import cache

from anadil.core.format import GIB, MIB
from anadil.estimate import budget
from anadil.estimate.budget import PhaseWork, time_of
from anadil.estimate.fit import layout_fit
from anadil.estimate.instances import Machine, machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import Memory, peak_memory
from anadil.estimate.model_shape import KNOWN, Shape, shape_from
from anadil.estimate.search import search
from anadil.estimate.speed import Speed, speed

AZERCELL = (
    '"Training Azerbaijani language models on Amazon SageMaker AI", AWS Machine Learning Blog, with Azercell'
)
SWALLOW = (
    '"Training Llama 3.3 Swallow: A Japanese sovereign LLM on Amazon SageMaker HyperPod", '
    "AWS Machine Learning Blog"
)
BLACKWELL = (
    '"Optimize model training on Amazon SageMaker AI with NVIDIA Blackwell", AWS Machine Learning Blog'
)
GUIDE = "AWS's guide to large-scale training"

SIZES = 5.0
"""Tolerance of sizes, times and rates that follow by arithmetic, percent: published figures are rounded,
parameters too (6.74e9 are "7B")."""
PEAKS = 5.0
"""Tolerance of peaks of memory, percent: what the limit of 0.95 leaves for fragmentation."""
SPEEDS = 20.0
"""Tolerance of speeds and times of training, percent. A judgement: half a dozen shares that
`anadil.estimate.speed` assumes or takes from others' measurements may each be off by a tenth."""
HEADROOM = (0.1, 0.0)
"""Most and least of the memory that a run which just fits may have left."""

LARGEST_BATCH = 1 << 16
"""Sequences of a micro-batch that nobody exceeds; the search for the largest one ends there."""

GB = 10**9
LLAMA_2 = {"vocab_size": 32_000, "num_key_value_heads": None, "tie_word_embeddings": False}
SEVEN_B = {**LLAMA_2, "hidden_size": 4_096, "intermediate_size": 11_008, "num_hidden_layers": 32}
THIRTEEN_B = {**LLAMA_2, "hidden_size": 5_120, "intermediate_size": 13_824, "num_hidden_layers": 40}
"""Source: config.json of Llama 2; the guide does not say which 7B and 13B it means."""
TORCH = Work(sequence_length=2_048, state="bf16", kernels="torch", loss="logits")
LIGER = Work(sequence_length=2_048, state="bf16")
FSDP8 = Layout(data=8, shard=8)
PEAK_BATCH = 10
"""The largest batch of FSDP without Liger on p5, at which both peaks make sense."""
EPOCH = 2_500_000_000
"""Tokens of the Azerbaijani corpus."""
SWALLOW_BATCH, SWALLOW_LENGTH = 1_024, 8_192
"""Assumption: neither was published with the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published figure and the planner's."""

    name: str
    unit: str
    published: float
    predicted: float
    explained: bool
    """Within the tolerance; for a largest batch, by the range that the module describes."""
    tolerance_percent: float | None
    """None for a largest batch."""
    why: str
    """How the prediction was made, and what is missing where it is off."""
    source: str = ""

    @property
    def difference_percent(self) -> float:
        """Error of the prediction against the published figure."""
        return _difference(self.predicted, self.published)


@cache
def rows() -> tuple[Row, ...]:
    """All rows, grouped by source; takes a second or two."""
    groups = {
        AZERCELL: [*_azercell_memory(), *_azercell_batches(), *_azercell_speed()],
        GUIDE: [*_guide_sizes(), *_guide_checkpoints()],
        SWALLOW: [_swallow()],
        BLACKWELL: _blackwell(),
    }
    return tuple(replace(row, source=source) for source, group in groups.items() for row in group)


def largest_batch(shape: Shape, layout: Layout, work: Work, machine: Machine) -> int:
    """The most sequences of a micro-batch that fit well, whatever the batch of a step; 0 where none does."""

    def fits(size: int) -> bool:
        return layout_fit(shape, replace(layout, micro_batch_size=size), work, machine)[1] == "fits"

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _difference(predicted: float, published: float) -> float:
    return 100 * (predicted / published - 1)


def _row(name: str, unit: str, published: float, predicted: float, tolerance: float, why: str) -> Row:
    return Row(
        name=name,
        unit=unit,
        published=published,
        predicted=predicted,
        explained=abs(_difference(predicted, published)) <= tolerance,
        tolerance_percent=tolerance,
        why=why,
    )


def _known(name: str) -> Shape:
    return shape_from(KNOWN[f"meta-llama/{name}"], name)


def _peak(layout: Layout, work: Work) -> Memory:
    return peak_memory(_known("Llama-3.2-1B"), layout, work)


def _speed(layout: Layout, work: Work, where: Machine, nodes: int = 1) -> Speed:
    return speed(_known("Llama-3.2-1B"), layout, work, where, nodes)


def _state(shape: Shape, shard: int = 1) -> dict[str, int]:
    """Weights, gradients and optimizer in bf16, bytes of one device, at a moment when all are there."""
    # The loss of a large batch is the peak, and with accumulation all gradients wait then.
    layout = Layout(data=shard, shard=shard, micro_batch_size=32, micro_batches=2)
    memory = peak_memory(shape, layout, TORCH)
    assert memory.moment.endswith("loss")
    return {part: memory.parts[part] for part in ("weights", "gradients", "optimizer")}


def _azercell_memory() -> list[Row]:
    shape = _known("Llama-3.2-1B")
    one, eight = (sum(_state(shape, shard).values()) for shard in (1, 8))
    published = 9.23, 1.17
    pairs = list(zip(published, (one, eight), strict=True))
    # Published with two decimals.
    low = max((figure - 0.005) * GIB - size for figure, size in pairs) / MIB
    high = min((figure + 0.005) * GIB - size for figure, size in pairs) / MIB
    state = (
        f"{one / shape.parameters:.0f} bytes a parameter, vocabulary {shape.vocabulary:,}; printed as GB, but "
        f"{one / GB:.4g} and {eight / GB:.4g} GB do not fit. One unsharded {low:.0f} to {high:.0f} MiB would "
        "make both rows exact; it is not added."
    )
    layout = replace(FSDP8, micro_batch_size=PEAK_BATCH)
    torch, liger = (_peak(layout, work).allocated for work in (TORCH, LIGER))
    full = _peak(replace(FSDP8, micro_batch_size=18), LIGER).allocated
    gb, liger_gb = (
        f"Read as GiB; {size / GB:.3g} GB, {_difference(size / GB, figure):+.1f} %."
        for size, figure in ((torch, 64), (liger, 27))
    )
    batch = f"Batch {PEAK_BATCH}, state in bf16, torch's kernels and all logits. {gb}"
    same = f"The same batch of {PEAK_BATCH}; at the largest published, 18, it would be {full / GIB:.0f} GiB. {liger_gb}"
    saved = 100 * (1 - liger / torch)
    return [
        _row("1B model state, one GPU", "GiB", 9.23, one / GIB, SIZES, state),
        _row("1B model state, FSDP on 8 GPUs", "GiB", 1.17, eight / GIB, SIZES, "As above."),
        _row("1B peak on p5, FSDP", "GiB", 64, torch / GIB, PEAKS, batch),
        _row("1B peak on p5, FSDP and Liger", "GiB", 27, liger / GIB, PEAKS, same),
        _row("1B peak that Liger saves", "%", 58, saved, PEAKS, "From the two peaks above."),
    ]


def _batch_range(layout: Layout, work: Work, where: Machine) -> list[int]:
    """The largest batch with most and with least headroom; nothing outside the allocator is counted."""
    sizes = []
    for headroom in HEADROOM:
        limit, size = where.memory_bytes * (1 - headroom), 0
        while _peak(replace(layout, micro_batch_size=size + 1), work).allocated <= limit:
            size += 1
        sizes.append(size)
    return sizes


def _batch(published: int, where: Machine, label: str, layout: Layout, work: Work, note: str) -> Row:
    low, high = _batch_range(layout, work, where)
    predicted = largest_batch(_known("Llama-3.2-1B"), layout, work, where)
    even = predicted % 2 == 1 and published == predicted - 1
    size = _peak(replace(layout, micro_batch_size=published), work).allocated / GIB
    text = f"Range {low} to {high}; a batch of {published} allocates {size:.1f} of {where.memory_bytes / GIB:.1f} GiB."
    return Row(
        name=f"1B largest batch on {where.name.split('.')[0]}, {label}",
        unit="sequences",
        published=published,
        predicted=predicted,
        explained=low <= published <= high or even,
        tolerance_percent=None,
        why=f"{text} {note}".strip(),
    )


def _azercell_batches() -> list[Row]:
    p4d, p5 = machine("p4d.24xlarge"), machine("p5.48xlarge")
    ddp = Layout(data=8)
    master = largest_batch(_known("Llama-3.2-1B"), ddp, replace(TORCH, state="fp32"), p4d)
    unknown = (
        "Not limited by memory in any accounting of ours, FP32 state included; the limit was not published."
    )
    fp32 = (
        f"FP32 weights and moments under autocast give {master}, but then the published state does not hold."
    )
    even = "One below an odd prediction: only even batches were published."
    return [
        _batch(2, p4d, "DDP", ddp, TORCH, fp32),
        _batch(4, p4d, "FSDP", FSDP8, TORCH, even),
        _batch(14, p4d, "FSDP and Liger", FSDP8, LIGER, ""),
        _batch(4, p5, "DDP", ddp, TORCH, unknown),
        _batch(10, p5, "FSDP", FSDP8, TORCH, even),
        _batch(18, p5, "FSDP and Liger", FSDP8, LIGER, unknown),
    ]


def _azercell_speed() -> list[Row]:
    p4d, p5 = machine("p4d.24xlarge"), machine("p5.48xlarge")
    sizes = [replace(FSDP8, micro_batch_size=size) for size in (PEAK_BATCH, 14, 18)]
    torch = _speed(sizes[0], TORCH, p5).tokens_per_s_per_device
    liger = [_speed(layout, LIGER, p5).tokens_per_s_per_device for layout in sizes]
    two = Layout(data=16, shard=16, micro_batch_size=14)
    tokens = two.batch_size * LIGER.sequence_length
    frozen = replace(LIGER, trains="embeddings")
    # Published: 15,000 steps in 43,000 s and 5,000 in 11,400 s.
    rate, frozen_rate = (tokens * steps / s / two.devices for steps, s in ((15_000, 43_000), (5_000, 11_400)))
    whole, embeddings = (_speed(two, work, p4d, 2) for work in (LIGER, frozen))
    slow = replace(p4d, network=p4d.network / 16)
    slow_rates = [_speed(two, work, slow, 2).tokens_per_s_per_device for work in (LIGER, frozen)]
    p4d_note = (
        f"Cause not published. The plan sees {whole.parts_s['exposed communication']:.2g} s of exposed "
        f"communication in a step that took {tokens / rate / two.devices:.3g} s. With {slow.network * 8 / 1e9:.0f} Gbit/s, "
        f"a sixteenth of the network, picked to match, it would be {slow_rates[0]:,.0f} and {slow_rates[1]:,.0f}: perhaps "
        "a run without EFA. Not known, so not assumed."
    )
    whole_rate, embeddings_rate = (phase.tokens_per_s_per_device for phase in (whole, embeddings))
    measured_h, predicted_h = (_hours(EPOCH, two, LIGER, p4d, each)[0] for each in (rate, whole_rate))
    batch = f"Batch not published: {PEAK_BATCH} as in the peak; up to 18 it is {min(liger):,.0f} to {max(liger):,.0f}."
    epoch = f"At the measured rate of all trained; at the predicted one {predicted_h:.2g} h."
    unit, at = "tokens/s a GPU", "1B on 2 p4d,"
    faster, gain = 78_319 / 63_771, frozen_rate / rate
    ratio = "The ratio holds although neither rate does."
    return [
        _row("1B on p5, FSDP", unit, 63_771, torch, SPEEDS, f"Batch {PEAK_BATCH}, its largest."),
        _row("1B on p5, FSDP and Liger", unit, 78_319, liger[0], SPEEDS, batch),
        _row("1B on p5, Liger's gain", "times", faster, liger[0] / torch, SPEEDS, "From the two rows above."),
        _row(f"{at} all trained", unit, rate, whole_rate, SPEEDS, p4d_note),
        _row(f"{at} embeddings trained", unit, frozen_rate, embeddings_rate, SPEEDS, "As above."),
        _row(f"{at} embeddings against all", "times", gain, embeddings_rate / whole_rate, SPEEDS, ratio),
        _row(f"{at} tokens of a step", "tokens", 450_000, tokens, SIZES, "14 x 16 sequences of 2,048."),
        _row(f"{at} an epoch of 2.5B tokens", "h", 4.3, measured_h, SIZES, epoch),
    ]


def _hours(
    tokens: int, layout: Layout, work: Work, where: Machine, rate: float, model: str = "Llama-3.2-1B"
) -> tuple[float, float, float]:
    """Time of so many tokens at a rate of tokens a second and device, and the range that a plan prints."""
    phase = PhaseWork(
        steps=round(tokens / (layout.batch_size * work.sequence_length)),
        tokens=tokens,
        flops=tokens * _known(model).flops_per_token(work.sequence_length),
        tokens_per_s=rate * layout.devices,
    )
    time = time_of([phase], layout.devices, where.flops_bf16)
    assert time.hours
    assert time.hours_low
    assert time.hours_high
    return time.hours, time.hours_low, time.hours_high


def _guide_sizes() -> list[Row]:
    seventy, one = _known("Llama-3.1-70B"), _known("Llama-3.2-1B")
    published = {"weights": 140, "gradients": 140, "optimizer": 280}
    note = f"bf16; GB, since 2 bytes of 70e9 are 140. {seventy.parameters / 1e9:.2f}e9 parameters."
    parts = [
        _row(f"70B {part}", "GB", published[part], size / GB, SIZES, note)
        for part, size in _state(seventy).items()
    ]
    peak = _peak(replace(FSDP8, micro_batch_size=PEAK_BATCH), TORCH).allocated
    rule, name = 2 * sum(_state(one).values()), "1B peak on p5 by the rule of 1.5 to 2 times the state"
    why = (
        f"Twice the whole state, beside the predicted peak of FSDP at batch {PEAK_BATCH} (published: 64). "
        "Activations grow with the tokens, not with the state: never choose a batch by this rule."
    )
    return [*parts, _row(name, "GiB", rule / GIB, peak / GIB, PEAKS, why)]


def _guide_checkpoints() -> list[Row]:
    shapes = {
        "7B": (42, shape_from({**SEVEN_B, "num_attention_heads": 32}, "Llama-2-7b")),
        "13B": (78, shape_from({**THIRTEEN_B, "num_attention_heads": 40}, "Llama-2-13b")),
        "70B": (420, _known("Llama-3.1-70B")),
        "405B": (2_430, _known("Llama-3.1-405B")),
    }
    sizes = [
        _row(
            f"{name} checkpoint",
            "GB",
            published,
            budget.checkpoint_bytes(shape.parameters, shape.parameters, "bf16") / GB,
            SIZES,
            f"bf16 weights and moments of {shape.name}, {shape.parameters / 1e9:.2f}e9 parameters.",
        )
        for name, (published, shape) in shapes.items()
    ]
    nodes, parameters = 2_048, shapes["405B"][1].parameters
    num_bytes = budget.checkpoint_bytes(parameters, parameters, "bf16")
    devices = nodes * machine("p5.48xlarge").devices
    stall = budget.save_stall(num_bytes, devices)
    mtbf = budget.NODE_MTBF_S / nodes
    checkpoints = budget.checkpoints_of(
        num_bytes, parameters, stall_s=stall, mtbf_s=mtbf, step_s=None, every=1, keep=3
    )
    tenth, young = checkpoints.intervals
    interval = (
        f"MTBF / 10, the guide's own rule and MTBF. With a stall of {stall:.1f} s the plan's rule, Young-Daly, "
        f"gives {young.interval_s / 60:.1f} min and wastes {100 * young.waste:.1f} % instead of {100 * tenth.waste:.1f} %."
    )
    rate = (
        "Written while the next interval trains; to write it while training waits takes "
        f"{checkpoints.synchronous_bandwidth_bytes_per_s / GB:.0f} GB/s."
    )
    return [
        *sizes,
        _row("405B interval between checkpoints", "min", 15, tenth.interval_s / 60, SIZES, interval),
        _row("405B rate to write them", "GB/s", 3, checkpoints.bandwidth_bytes_per_s / GB, SIZES, rate),
    ]


def _swallow() -> Row:
    shape, where, nodes = _known("Llama-3.3-70B"), machine("p5.48xlarge"), 32
    hours, tokens, work = 16 * 24 + 6, 314_000_000_000, Work(sequence_length=SWALLOW_LENGTH)
    best = search(shape, work, where, nodes, SWALLOW_BATCH, keep=1).best[0]
    rate = best.speed.tokens_per_s_per_device
    predicted, low, high = _hours(tokens, best.layout, work, where, rate, shape.name)
    measured = tokens / (hours * 3600 * best.layout.devices)
    without, attention = (
        100 * measured * shape.flops_per_token(length) / where.flops_bf16 for length in (0, SWALLOW_LENGTH)
    )
    holds = "holds" if low <= hours <= high else "does not hold"
    why = (
        f"Implied: {measured:.0f} tokens/s a GPU, MFU {without:.1f} % without attention, {attention:.1f} % with it "
        f"at {SWALLOW_LENGTH:,} tokens. Predicted: {rate:,.0f} with {best.layout.name()}, the fastest that fits with "
        f"FP32 state, batch {SWALLOW_BATCH:,}; {100 * best.speed.mfu:.1f} %. The run used Megatron-LM in 4D; its "
        "degrees, batch, length, saves and failures were not published. The range that the plan prints, "
        f"{low:.0f} to {high:.0f} h, {holds} it, but was drawn from published runs, this one too."
    )
    return _row("70B, 314B tokens on 32 p5", "h", hours, predicted, SPEEDS, why)


def _blackwell() -> list[Row]:
    where, work = machine("p6-b200.48xlarge"), replace(LIGER, sequence_length=8_192)
    one, full = replace(FSDP8, micro_batch_size=1), replace(FSDP8, micro_batch_size=1, recompute="full")
    sixteen = replace(full, micro_batch_size=16)
    least = _peak(full, replace(work, sequence_length=1)).allocated / GB
    notes = {
        "batch 1": (
            15.5,
            one,
            (
                "Assumed for all three: Llama 3.2 1B, bf16 state, Liger's kernels as the nearest to Transformer "
                "Engine's fused ones, nothing kept in 8 bits."
            ),
        ),
        "batch 1, recomputed": (
            2.3,
            full,
            f"Probably no peak: a step of a single token takes {least:.2g} GB.",
        ),
        "batch 16, recomputed": (22.8, sixteen, "With the two rows above off, it may agree by chance."),
    }
    peaks = []
    for name, (published, layout, note) in notes.items():
        size = _peak(layout, work).allocated
        others = {
            "torch's kernels": _peak(layout, replace(work, kernels="torch")).allocated,
            "FP32 state": _peak(layout, replace(work, state="fp32")).allocated,
        }
        text = ", ".join(f"{word} {other / GB:.3g}" for word, other in others.items())
        why = f"In GiB {size / GIB:.3g}. Other accountings, GB: {text}. {note}".strip()
        peaks.append(_row(f"1B at 8,192 on 8 B200, {name}", "GB", published, size / GB, PEAKS, why))
    rate = "bf16; MXFP8 is not planned. Whether the figure is of one GPU or of all is not certain."
    rates = [
        _row(
            f"1B at 8,192 on 8 B200, {name} (speed)",
            "tokens/s a GPU",
            published,
            _speed(layout, work, where).tokens_per_s_per_device,
            SPEEDS,
            rate,
        )
        for name, published, layout in (("batch 1", 6_000, one), ("batch 16, recomputed", 51_000, sixteen))
    ]
    return [*peaks, *rates]
