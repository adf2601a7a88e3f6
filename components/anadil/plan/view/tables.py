"""A plan as tables of text, for the terminal (`terminal.py`) and the page alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anadil.core.format import (
    DASH,
    hours_and_days,
    human_bandwidth,
    human_bytes,
    human_count,
    human_dollars,
    human_flop,
    human_hours,
    human_percent,
    human_range,
    human_seconds,
    one_line,
    short_count,
    stored_bytes,
)
from anadil.plan.schema import LayoutOption, Plan
from anadil.plan.text_use import Basis, human_epochs

KNOWN_BY: dict[Basis, str] = {
    "tokens": "encode",
    "corpus": "corpus size",
    "files": "file sizes",
    "written": "the recipe",
    "given": "--tokens",
}
PHASE_LABELS = {"embeddings": "embeddings", "all": "whole model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells as text; the first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = ()
    """Columns, beside the first, that hold words and are aligned as such."""
    marked: int | None = None
    """Row that stands out."""


def phase_names(plan: Plan) -> list[str]:
    """Label of each phase."""
    return [PHASE_LABELS[phase.trains] for phase in plan.phases]


def memory_parts(plan: Plan) -> dict[str, list[float]]:
    """Bytes of each part of the allocator's memory, by phase."""
    return _by_phase([phase.memory.parts for phase in plan.phases])


def outside_parts(plan: Plan) -> dict[str, list[float]]:
    """Bytes of what lies beside the allocator, by phase."""
    return _by_phase([phase.memory.outside for phase in plan.phases])


def step_parts(plan: Plan) -> dict[str, list[float]]:
    """Seconds of each part of a step, by phase; none where the device's speed is not known."""
    return _by_phase([phase.step_parts_s or {} for phase in plan.phases])


def _by_phase(phases: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A part's value in each phase, of the parts that are more than nothing in one of them."""
    names = dict.fromkeys(name for parts in phases for name in parts)
    values = {name: [parts.get(name, 0.0) for parts in phases] for name in names}
    return {name: row for name, row in values.items() if any(value > 0 for value in row)}


def text_table(plan: Plan) -> Grid:
    """Text of each source, and passes over it; no rows without sources, where a sentence says it."""
    rows = [
        (
            each.name, short_count(each.tokens), KNOWN_BY[each.basis],
            each.shares_text(),
            human_epochs(each.asked_epochs), human_epochs(each.epochs),
            DASH if each.exhausted_at is None else human_count(each.exhausted_at),
        )
        for each in plan.text if each.source
    ]  # fmt: skip
    columns = ("source", "tokens", "known by", "share", "epochs asked", "made", "out at step")
    return Grid(caption="Text", columns=columns, rows=tuple(rows), words=(2, 3))


def replay_table(plan: Plan) -> Grid:
    """Needs of the stage `replay`; no rows where the base writes nothing."""
    need = plan.replay
    rows = (
        ("tokens", short_count(need.tokens)),
        ("documents at a time", human_count(need.rows)),
        ("time", human_hours(need.hours)),
        ("memory", f"{human_bytes(need.memory.total_bytes)} of {human_bytes(need.memory.device_bytes)} on {need.memory.where} ({need.memory.verdict})"),
    ) if need else ()  # fmt: skip
    return _list("Replay that the base writes", *rows)


def encode_table(plan: Plan) -> Grid:
    """Needs of the stage `encode`; no rows where the size of the text is not known."""
    need = plan.encode
    rows = (
        ("text", stored_bytes(need.text_bytes)),
        ("CPU time", human_hours(need.cpu_hours)),
        ("disk", stored_bytes(need.disk_bytes)),
    ) if need else ()  # fmt: skip
    return _list("Encoding the text, on CPUs", *rows)


def merge_table(plan: Plan) -> Grid:
    """Needs of the stage `merge`; no rows where nothing is merged."""
    need = plan.merge
    if need is None:
        return _list("Merge")
    rows = [
        ("weights to read", stored_bytes(need.read_bytes)),
        ("disk", stored_bytes(need.disk_bytes)),
        ("main memory", human_bytes(need.memory_bytes)),
    ]
    if need.memory:
        at = f"{human_bytes(need.memory.total_bytes)} of {human_bytes(need.memory.device_bytes)} on {need.memory.where}"
        rows += [
            ("merges to score, at most", human_count(need.points)),
            ("memory to score", f"{at} ({need.memory.verdict})"),
        ]
    return _list("Merge", *rows)


def memory_table(plan: Plan) -> Grid:
    """Bytes of one device at the worst moment of each phase, by part, and what there is."""
    phases = [phase.memory for phase in plan.phases]
    parts = memory_parts(plan) | outside_parts(plan)
    rows = [(name, *map(human_bytes, values)) for name, values in parts.items()]
    rows += [
        ("allocated", *(human_bytes(each.allocated_bytes) for each in phases)),
        ("in all", *(human_bytes(each.total_bytes) for each in phases)),
        ("safe up to", *(human_bytes(each.limit_bytes) for each in phases)),
        ("device", *(human_bytes(each.device_bytes) for each in phases)),
        ("worst moment", *(each.moment for each in phases)),
    ]
    return Grid(caption="Memory of one device", columns=("part", *phase_names(plan)), rows=tuple(rows))


def after_table(plan: Plan) -> Grid:
    """Memory of the stages after pre-training, of each device and of a node."""
    rows = [
        (each.stage, each.where, *map(human_bytes, (each.total_bytes, each.device_bytes, each.host_bytes or None)), each.verdict)
        for each in plan.after
    ]  # fmt: skip
    columns = ("stage", "on", "needs", "device", "main memory", "verdict")
    return Grid(caption="Memory after pre-training", columns=columns, rows=tuple(rows), words=(1, 5))


def step_table(plan: Plan) -> Grid:
    """Seconds of one optimizer step of each phase, by part."""
    rows = [(name, *map(human_seconds, values)) for name, values in step_parts(plan).items()]
    rows.append(("step", *(human_seconds(phase.step_s) for phase in plan.phases)))
    return Grid(caption="Time of one step", columns=("part", *phase_names(plan)), rows=tuple(rows))


def phases_table(plan: Plan) -> Grid:
    """Rates of each phase."""
    rows = [
        (
            name, human_count(phase.steps), short_count(phase.tokens), human_count(phase.tokens_per_s),
            human_count(phase.tokens_per_s_per_device), human_percent(phase.mfu), human_hours(phase.hours),
            phase.bound or DASH,
        )
        for name, phase in zip(phase_names(plan), plan.phases, strict=True)
    ]  # fmt: skip
    columns = ("phase", "steps", "tokens", "tokens/s", "per device", "MFU", "time", "bound by")
    return Grid(caption="Phases", columns=columns, rows=tuple(rows), words=(7,))


def layouts_table(plan: Plan, name_length: int = 60) -> Grid:
    """The best layouts of the search, the plan's own one marked."""
    best = plan.search.best if plan.search else ()
    chosen = [number for number, option in enumerate(best) if is_chosen(plan, option)]
    rows = [
        (
            one_line(each.layout.name(), name_length), human_count(each.layout.micro_batch_size),
            each.layout.recompute, human_bytes(each.total_bytes), each.verdict,
            human_count(each.tokens_per_s_per_device), human_hours(each.hours),
            human_dollars(each.cost).removeprefix("USD "),
        )
        for each in best
    ]  # fmt: skip
    columns = ("layout", "batch", "recompute", "memory", "verdict", "tokens/s", "time", "USD")
    caption, marked = "Best layouts, batch and tokens/s per device", chosen[0] if chosen else None
    return Grid(caption=caption, columns=columns, rows=tuple(rows), words=(2, 4), marked=marked)


def is_chosen(plan: Plan, option: LayoutOption) -> bool:
    """True if a row of the search is the plan's layout."""
    return option.layout == plan.layout.layout


def choices_table(plan: Plan) -> Grid:
    """Each setting, its value, and why."""
    rows = [(each.setting, each.value, one_line(each.why, 600)) for each in plan.choices]
    columns = ("setting", "value", "why")
    return Grid(caption="Settings and why", columns=columns, rows=tuple(rows), words=(1, 2))


def intervals_table(plan: Plan) -> Grid:
    """The rules for the distance of checkpoints, side by side."""
    rows = [
        (each.rule, human_seconds(each.interval_s), human_count(each.steps), human_percent(each.waste))
        for each in plan.checkpoints.intervals
    ]
    columns = ("rule", "a checkpoint every", "steps", "time lost")
    return Grid(caption="How often to save", columns=columns, rows=tuple(rows))


def layout_table(plan: Plan) -> Grid:
    """Model, node and layout."""
    model, each, layout = plan.model, plan.layout, plan.layout.layout
    return _list(
        "Layout",
        ("model", one_line(model.name)),
        ("parameters", short_count(model.parameters)),
        ("vocabulary", human_count(model.vocabulary, "tokens")),
        ("layout", layout.name()),
        ("batch of a device", human_count(layout.micro_batch_size, "sequences")),
        ("micro-batches in a step", human_count(layout.micro_batches)),
        ("batch", human_count(each.batch_size, "sequences")),
        ("sequence", human_count(each.sequence_length, "tokens")),
        ("recomputed activations", layout.recompute),
        ("precision", each.precision),
        ("precision of the state", each.state),
        ("kernels", each.kernels),
        ("network of a node", human_bandwidth(plan.machine.network_bytes_per_s)),
    )


def time_table(plan: Plan) -> Grid:
    """Steps, tokens and hours, with the range they lie in."""
    time = plan.time
    return _list(
        "Time",
        (_predicted(plan, "time"), hours_and_days(time.hours)),
        ("range", human_range(time.hours_low, time.hours_high, human_hours) or DASH),
        ("device time", human_count(time.gpu_hours, "h")),
        ("steps", human_count(time.steps)),
        ("tokens", short_count(time.tokens)),
        ("compute", human_flop(time.flops)),
        ("tokens of an epoch", short_count(time.epoch_tokens)),
        ("time of an epoch", human_hours(time.hours_per_epoch)),
        ("epochs", human_count(time.epochs)),
    )


def cost_table(plan: Plan) -> Grid:
    """Cost of the hours by the way of buying them; no rows where no price is known."""
    cost = plan.cost
    prices = (("on demand", cost.on_demand), ("spot", cost.spot), ("training plan", cost.training_plan))
    rows = [
        (
            name, human_dollars(price.per_hour), human_dollars(price.predicted),
            human_range(price.low, price.high, human_dollars) or DASH,
        )
        for name, price in prices
    ]  # fmt: skip
    known = any(price.per_hour is not None for _, price in prices)
    columns = ("bought", "an hour", _predicted(plan, "cost"), "range")
    return Grid(caption="Cost", columns=columns, rows=tuple(rows) if known else ())


def _predicted(plan: Plan, what: str) -> str:
    """Label of a figure: rates that no run has set are the best that the machine may reach."""
    return f"{what} at best" if plan.calibration is None else f"predicted {what}"


def checkpoints_table(plan: Plan) -> Grid:
    """Size of checkpoints and of what they need."""
    each = plan.checkpoints
    return _list(
        "Checkpoints",
        ("checkpoint", stored_bytes(each.bytes)),
        ("bytes a parameter", human_count(each.bytes_per_parameter)),
        ("training waits for", human_seconds(each.stall_s)),
        ("writing rate", human_bandwidth(each.bandwidth_bytes_per_s)),
        ("checkpoints kept", human_count(each.generations)),
        ("kept in all", stored_bytes(each.storage_bytes)),
    )


def storage_table(plan: Plan) -> Grid:
    """Bytes to store, and the time that the data take to arrive."""
    storage = plan.storage
    return _list(
        "Storage",
        ("data", stored_bytes(storage.data_bytes)),
        ("checkpoints", stored_bytes(storage.checkpoints_bytes)),
        ("in all", stored_bytes(storage.total_bytes)),
        ("loading before the start", human_seconds(storage.preload_s)),
    )


def reliability_table(plan: Plan) -> Grid:
    """How often a run of this size fails, and what that costs."""
    each = plan.reliability
    return _list(
        "Reliability",
        ("mean time between failures", human_seconds(each.mtbf_s)),
        ("failures to expect", human_count(each.expected_failures)),
        ("restart", human_seconds(each.restart_s)),
        ("lost by a failure", human_seconds(each.lost_s_per_failure)),
        ("share of time that trains", human_percent(each.effective_training_time_ratio)),
    )


def _list(caption: str, *rows: tuple[str, str]) -> Grid:
    return Grid(caption=caption, columns=("", "value"), rows=rows)
