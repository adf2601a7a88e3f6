"""What a plan says, as text in rows: the same for the terminal (`table.py`) and the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anadil.plan.view.values import (
    DASH,
    Plan,
    at,
    count,
    days,
    dollars,
    flop,
    gb,
    gb_per_s,
    gib,
    hours,
    items,
    pairs,
    percent,
    seconds,
    short_count,
    short_hours,
    span,
    text,
)

Fields = Sequence[tuple[str, str, Callable[[object], str]]]
"""Name for people, place in the plan, and who writes the value."""

PHASES = {"embeddings": "embeddings", "all": "whole model"}
PURCHASES = {"on_demand": "on demand", "spot": "spot", "training_plan": "training plan"}
SAME_LAYOUT = ("name", "micro_batch_size", "micro_batches", "activation_checkpointing")


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
    """What each phase trains."""
    found = [text(at(phase, "trains"), 24) for phase in items(plan, "phases")]
    return [PHASES.get(name, name) for name in found]


def parts(plan: Plan, place: str) -> dict[str, list[float]]:
    """A part's value in each phase, of the parts that are more than nothing in one of them."""
    tables = [pairs(phase, place) for phase in items(plan, "phases")]
    names = dict.fromkeys(name for table in tables for name in table)
    found = {name: [table.get(name, 0.0) for table in tables] for name in names}
    return {name: values for name, values in found.items() if any(value > 0 for value in values)}


def memory(plan: Plan) -> Grid:
    """Bytes of one device at the worst moment of each phase, by part, and what there is."""
    inside, outside = parts(plan, "memory.parts"), parts(plan, "memory.outside")
    sums = (
        ("allocated", "allocated_bytes"),
        ("in all", "total_bytes"),
        ("safe up to", "limit_bytes"),
        ("device", "device_bytes"),
    )
    each = items(plan, "phases")
    rows = [
        (text(name, 30), *(gib(value) for value in values)) for name, values in (inside | outside).items()
    ]
    rows += [(name, *(gib(at(phase, f"memory.{key}")) for phase in each)) for name, key in sums]
    rows.append(("worst moment", *(text(at(phase, "memory.moment")) for phase in each)))
    return Grid(caption="Memory of one device", columns=("part", *phase_names(plan)), rows=_if(each, rows))


def step(plan: Plan) -> Grid:
    """Seconds of one optimizer step of each phase, by part."""
    each = items(plan, "phases")
    rows = [
        (text(name, 30), *map(seconds, values)) for name, values in parts(plan, "step_parts_s").items()
    ] + [("step", *(seconds(at(phase, "step_s")) for phase in each))]
    return Grid(caption="Time of one step", columns=("part", *phase_names(plan)), rows=_if(each, rows))


def phases(plan: Plan) -> Grid:
    """Rates of each phase."""
    rows = [
        (
            name,
            count(at(phase, "steps")),
            short_count(at(phase, "tokens")),
            count(at(phase, "tokens_per_s")),
            count(at(phase, "tokens_per_s_per_device")),
            percent(at(phase, "mfu")),
            hours(at(phase, "hours")),
            text(at(phase, "bound")),
        )
        for name, phase in zip(phase_names(plan), items(plan, "phases"), strict=True)
    ]
    columns = ("phase", "steps", "tokens", "tokens/s", "per device", "MFU", "time", "bound by")
    return Grid(caption="Phases", columns=columns, rows=tuple(rows), words=(7,))


def layouts(plan: Plan, limit: int = 10, name_length: int = 60) -> Grid:
    """The best layouts of the search, the plan's own one marked."""
    best = items(plan, "search.best")[:limit]
    chosen = [place for place, item in enumerate(best) if is_chosen(plan, item)]
    rows = [
        (
            text(at(item, "name"), name_length),
            count(at(item, "micro_batch_size")),
            text(at(item, "activation_checkpointing")),
            gib(at(item, "total_bytes")),
            text(at(item, "verdict")),
            count(at(item, "tokens_per_s_per_device")),
            short_hours(at(item, "hours")),
            dollars(at(item, "cost")).removeprefix("USD "),
        )
        for item in best
    ]
    columns = ("layout", "batch", "recompute", "memory", "verdict", "tokens/s", "time", "USD")
    return Grid(
        caption="Best layouts, batch and tokens/s per device",
        columns=columns,
        rows=tuple(rows),
        words=(2, 4),
        marked=chosen[0] if chosen else None,
    )


def is_chosen(plan: Plan, item: object) -> bool:
    """Whether a row of the search is the plan's layout, by the keys that both tell."""
    told = [(at(item, key), at(plan, f"layout.{key}")) for key in SAME_LAYOUT]
    known = [(one, other) for one, other in told if one is not None and other is not None]
    return len(known) >= 2 and all(one == other for one, other in known)


def choices(plan: Plan) -> Grid:
    """Each setting, its value, and why."""
    rows = [
        (text(at(item, "setting")), text(at(item, "value")), text(at(item, "why"), 600))
        for item in items(plan, "choices")
    ]
    return Grid(
        caption="Settings and why", columns=("setting", "value", "why"), rows=tuple(rows), words=(1, 2)
    )


def intervals(plan: Plan) -> Grid:
    """The rules for the distance of checkpoints, side by side."""
    rows = [
        (
            text(at(item, "rule")),
            seconds(at(item, "interval_s")),
            count(at(item, "steps")),
            percent(at(item, "waste")),
        )
        for item in items(plan, "checkpoints.intervals")
    ]
    columns = ("rule", "a checkpoint every", "steps", "time lost")
    return Grid(caption="How often to save", columns=columns, rows=tuple(rows))


def layout(plan: Plan) -> Grid:
    """Model, machine and layout."""
    fields: Fields = (
        ("model", "model.name", text),
        ("parameters", "model.parameters", short_count),
        ("vocabulary", "model.vocabulary", lambda value: count(value, "tokens")),
        ("layout", "layout.name", text),
        ("batch of a device", "layout.micro_batch_size", lambda value: count(value, "sequences")),
        ("passes in a step", "layout.micro_batches", count),
        ("batch", "layout.batch_size", lambda value: count(value, "sequences")),
        ("sequence", "layout.sequence_length", lambda value: count(value, "tokens")),
        ("recomputed activations", "layout.activation_checkpointing", text),
        ("precision", "layout.precision", text),
        ("precision of the state", "layout.state", text),
        ("kernels", "layout.kernels", text),
        ("network of a node", "machine.network_bytes_per_s", gb_per_s),
    )
    return _list("Layout", plan, fields)


def time(plan: Plan) -> Grid:
    """Steps, tokens and hours, with the range they lie in."""
    fields: Fields = (
        ("predicted time", "time.hours", days),
        ("range", "time", lambda value: span(at(value, "hours_low"), at(value, "hours_high"), hours)),
        ("device time", "time.gpu_hours", lambda value: count(value, "h")),
        ("steps", "time.steps", count),
        ("tokens", "time.tokens", short_count),
        ("compute", "time.flops", flop),
        ("tokens of an epoch", "time.epoch_tokens", short_count),
        ("time of an epoch", "time.hours_per_epoch", hours),
        ("epochs", "time.epochs", count),
    )
    return _list("Time", plan, fields)


def cost(plan: Plan) -> Grid:
    """What the hours cost, by the way of buying them."""
    rows = [
        (
            words,
            dollars(at(plan, f"cost.per_hour.{key}")),
            dollars(at(plan, f"cost.{key}")),
            span(at(plan, f"cost.{key}_low"), at(plan, f"cost.{key}_high"), dollars) or DASH,
        )
        for key, words in PURCHASES.items()
    ]
    columns = ("bought", "an hour", "predicted", "range")
    known = any(row[1] != DASH for row in rows)
    return Grid(caption="Cost", columns=columns, rows=_if(known, rows))


def checkpoints(plan: Plan) -> Grid:
    """Size of checkpoints and of what they need."""
    fields: Fields = (
        ("checkpoint", "checkpoints.bytes", gb),
        ("bytes a parameter", "checkpoints.bytes_per_parameter", count),
        ("training waits for", "checkpoints.stall_s", seconds),
        ("writing rate", "checkpoints.bandwidth_bytes_per_s", gb_per_s),
        ("generations kept", "checkpoints.generations", count),
        ("kept in all", "checkpoints.storage_bytes", gb),
    )
    return _list("Checkpoints", plan, fields)


def storage(plan: Plan) -> Grid:
    """What has to be stored, and how long the data take to arrive."""
    fields: Fields = (
        ("data", "storage.data_bytes", gb),
        ("checkpoints", "storage.checkpoints_bytes", gb),
        ("in all", "storage.total_bytes", gb),
        ("loading before the start", "storage.preload_s", seconds),
    )
    return _list("Storage", plan, fields)


def reliability(plan: Plan) -> Grid:
    """How often a run of this size fails, and what that costs."""
    fields: Fields = (
        ("mean time between failures", "reliability.mtbf_s", seconds),
        ("failures to expect", "reliability.expected_failures", count),
        ("restart", "reliability.restart_s", seconds),
        ("lost by a failure", "reliability.lost_s_per_failure", seconds),
        ("share of time that trains", "reliability.effective_training_time_ratio", percent),
    )
    return _list("Reliability", plan, fields)


def _list(caption: str, plan: Plan, fields: Fields) -> Grid:
    rows = [(name, say(at(plan, place)) or DASH) for name, place, say in fields]
    rows = rows if any(value != DASH for _, value in rows) else []
    return Grid(caption=caption, columns=("", "value"), rows=tuple(rows))


def _if(known: object, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(rows) if known else ()
