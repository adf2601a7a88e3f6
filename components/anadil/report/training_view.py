"""The sections on training: continued pre-training, and finetuning on answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from anadil.report.charts import Band, Line
from anadil.report.figures import clip, first, list_of, number, plain, table_of, words_of
from anadil.report.read import Facts, Json, series
from anadil.report.view import Chart, Table, lines

PHASE_NAMES = {"embeddings": "embeddings only", "all": "whole model"}
MAX_ROWS = 40
MAX_SPANS = 60
MAX_SPAN = 800
TRAINED_KEYS = ("trained", "is_trained", "train")

CURVES = (
    ("loss", "Loss", "nats per token"),
    ("lr", "Learning rate", "peak follows the phase"),
    ("tokens_per_s", "Throughput", "tokens per second"),
    ("grad_norm", "Gradient norm", "before clipping"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a rendered chat, and whether the loss counts it."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """Section 3."""

    charts: tuple[Chart, ...]
    summary: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneView:
    """Section 4."""

    charts: tuple[Chart, ...]
    audit: Table
    summary: Table
    sample: tuple[Span, ...]


def training_view(facts: Facts) -> TrainingView:
    """Curves of continued pre-training with its phases, and its summary."""
    bands = phases(facts)
    charts = [
        lines(title, unit, [Line(label=title.lower(), points=series(facts.training, key))], bands)
        for key, title, unit in CURVES
    ]
    return TrainingView(
        charts=tuple(chart for chart in charts if chart),
        summary=_summary("Continued pre-training in numbers", facts.training_summary),
    )


def finetune_view(facts: Facts) -> FinetuneView:
    """What the loss of finetuning counts, and how it fell."""
    drawn = Line(label="loss", points=series(facts.finetuning, "loss"))
    rate = Line(label="learning rate", points=_rates(facts.finetuning))
    charts = [
        lines("Loss on answers", "nats per token", [drawn]),
        lines("Learning rate", "peak follows the schedule", [rate]),
    ]
    audit = {key: value for key, value in facts.mask_audit.items() if not isinstance(value, dict | list)}
    return FinetuneView(
        charts=tuple(chart for chart in charts if chart),
        audit=_summary("Which tokens the loss counts", audit),
        summary=_summary("Finetuning in numbers", facts.finetuning_summary),
        sample=_sample(facts.mask_audit),
    )


def phases(facts: Facts) -> list[Band]:
    """Stretches of steps that were logged under one phase, each with its name."""
    found: list[tuple[object, float, float]] = []
    start = 0.0
    for line in facts.training:
        step = number(line.get("step"))
        if step is None:
            continue
        if found and found[-1][0] == line.get("phase"):
            start = found[-1][1]
            found.pop()
        found.append((line.get("phase"), start, float(step)))
        start = float(step)
    named = [_phase_name(facts, name, place) for place, (name, _, _) in enumerate(found)]
    return [
        Band(label=label, start=start, end=end)
        for label, (_, start, end) in zip(named, found, strict=True)
    ]


def _phase_name(facts: Facts, name: object, place: int) -> str:
    trains = table_of(name).get("trains", name)
    recipe = facts.recipe.pretrain.phases
    if not isinstance(trains, str):
        trains = recipe[place].trains if place < len(recipe) else f"phase {place + 1}"
    return clip(PHASE_NAMES.get(trains, trains), 40)


def _rates(logged: list[Json]) -> tuple[tuple[float, float], ...]:
    return series(logged, "lr") or series(logged, "learning_rate")


def _summary(caption: str, data: Json) -> Table:
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        inner = table_of(value)
        flat = [(f"{key} {name}", item) for name, item in inner.items()] if inner else [(key, value)]
        rows += [(words_of(name), plain(item)) for name, item in flat if _is_cell(item)]
    return Table(caption=caption, columns=("", "value"), rows=tuple(rows[:MAX_ROWS]))


def _is_cell(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or number(value) is not None


def _sample(audit: Json) -> tuple[Span, ...]:
    """The spans of the first sample chat, in whatever list the audit keeps them."""
    sample = first(audit, "sample", "samples", "examples")
    entries = list_of(sample)
    if entries and not table_of(entries[0]).keys() & {"text", *TRAINED_KEYS}:
        sample = entries[0]
    if isinstance(sample, dict):
        entries = list_of(first(sample, "spans", "segments", "pieces"))
    elif isinstance(sample, list):
        entries = list_of(sample)
    return _spans(entries)


def _spans(entries: Sequence[object]) -> tuple[Span, ...]:
    found = []
    for entry in entries[:MAX_SPANS]:
        if isinstance(entry, list) and len(entry) == 2:
            text, trained = sorted(entry, key=lambda item: not isinstance(item, str))
        else:
            table = table_of(entry)
            text = table.get("text", "")
            trained = next((table[key] for key in TRAINED_KEYS if key in table), False)
        found.append(Span(text=clip(text, MAX_SPAN), trained=bool(trained)))
    return tuple(found)
