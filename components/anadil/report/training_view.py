"""The sections on training: continued pre-training, and finetuning on answers."""

import math
import re
from dataclasses import dataclass

from anadil.core.format import integer_if_whole, number
from anadil.report.charts import Band, Line
from anadil.report.elements import Chart, TextTable, facts_table, lines, records_table
from anadil.report.format import clip, figure, plain_value
from anadil.report.learning import learnings
from anadil.report.read import Facts, Json, field, list_of, named_tables, series
from anadil.report.verdict import candidates_of

PHASE_NAMES = {"embeddings": "embeddings", "all": "whole model"}
MAX_CHAT_SAMPLE = 4_000
OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""Brackets of `mask_audit.json` around the trained spans of a sample."""

CURVES = (
    ("loss", "Loss", "nats per token", False),
    ("lr", "Learning rate", "step size of AdamW", True),
    ("tokens_per_s", "Throughput", "tokens per second", True),
    ("grad_norm", "Gradient norm", "norm before clipping", True),
)
"""Key of a logged line, title, unit, whether the axis begins at zero."""
OPEN_CURVES = 2
CHANCE = 0.5
"""Share of pairs that any change wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a rendered chat, and whether the loss counts it."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """Section 3."""

    steps: str
    """How many steps were made; empty if nothing says it."""
    phases: str
    """Phases with their steps."""
    words: str
    """Finding about the loss curve."""
    charts: tuple[Chart, ...]
    more_charts: tuple[Chart, ...]
    """Those that a reader looks at where something went wrong: in a fold."""
    phase_table: TextTable
    summary: TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneView:
    """Section 4."""

    words: str
    """Finding about the loss curve."""
    charts: tuple[Chart, ...]
    preference: str
    """Result of learning from pairs; empty without it."""
    preference_charts: tuple[Chart, ...]
    audit: TextTable
    summary: TextTable
    sample: tuple[Span, ...]


def training_view(facts: Facts) -> TrainingView:
    """Curves of continued pre-training with its phases, and its summary."""
    bands = phases(facts)
    charts = [_validation_chart(facts, bands)]
    charts += [
        lines(
            title,
            unit,
            [Line(label=title.lower(), points=series(facts.training, key))],
            bands,
            from_zero=zero,
        )
        for key, title, unit, zero in CURVES
        if not (key == "loss" and charts[0])
    ]
    steps = max((step for line in facts.training if (step := number(line.get("step")))), default=None)
    return TrainingView(
        steps="" if steps is None else figure(int(steps)),
        phases="; ".join(
            f"{band.label} up to step {figure(integer_if_whole(band.end))}" for band in bands[:10]
        ),
        words=_words(facts, "Continued pre-training"),
        charts=tuple(chart for chart in charts if chart)[:OPEN_CURVES],
        more_charts=tuple(chart for chart in charts if chart)[OPEN_CURVES:],
        phase_table=records_table("Phases", named_tables(facts.training_summary.get("phases")), "phase"),
        summary=facts_table("Continued pre-training in numbers", facts.training_summary, skipped=("phases",)),
    )


def finetune_view(facts: Facts) -> FinetuneView:
    """Build the section on finetuning."""
    drawn = Line(label="training", points=series(facts.finetuning, "loss"))
    validation = series(facts.finetuning, "validation_loss")
    rate = Line(label="learning rate", points=series(facts.finetuning, "lr"))
    charts = [
        lines("Loss on answers", "nats per token", [drawn, *_validation_line(validation)]),
        lines("Learning rate", "step size of AdamW", [rate], from_zero=True),
    ]
    return FinetuneView(
        words=_words(facts, "Finetuning"),
        charts=tuple(chart for chart in charts if chart),
        preference=_preference_words(facts),
        preference_charts=_preference_charts(facts),
        audit=facts_table("Which tokens the loss counts", facts.mask_audit, skipped=("samples",)),
        summary=facts_table("Finetuning in numbers", facts.finetuning_summary),
        sample=_sample(facts.mask_audit),
    )


def _preference_charts(facts: Facts) -> tuple[Chart, ...]:
    drawn = Line(label="training pairs", points=series(facts.preference, "reward_margin"))
    heldout = series(facts.preference, "heldout_margin")
    unseen = [Line(label="held-out pairs", points=heldout, colour=4, dashed=True)] if heldout else []
    sides = [
        Line(label=f"{side} answers", points=series(facts.preference, f"reward_{side}"), colour=colour)
        for side, colour in (("chosen", 2), ("rejected", 3))
    ]
    unit = "beta x change of log-probability"
    charts = (lines("Margin of the better answers", unit, [drawn, *unseen]), lines("Rewards", unit, sides))
    return tuple(chart for chart in charts if chart)


def _preference_words(facts: Facts) -> str:
    """How many pairs the model would now answer as it was taught, of those it has not seen if there are any."""
    summary = facts.finetuning_summary.get("preference")
    if not isinstance(summary, dict):
        return ""
    heldout = number(summary.get("heldout_accuracy"))
    won = number(summary.get("reward_accuracy")) if heldout is None else heldout
    margin = number(summary.get("reward_margin" if heldout is None else "heldout_margin"))
    if won is None or margin is None:
        return ""
    kind, count = ("trained", "pairs") if heldout is None else ("held-out", "heldout_pairs")
    said = (
        f"of {figure(summary.get(count))} {kind} pairs the better answer gained on the worse one in "
        f"{figure(won * 100, 2)} %, by {figure(margin)} on average"
    )
    return f"{said}: this step taught nothing" if won <= CHANCE else said


def _words(facts: Facts, stage: str) -> str:
    return next((f"{each.words}." for each in learnings(facts) if each.stage == stage), "")


def _validation_line(points: tuple[tuple[float, float], ...]) -> list[Line]:
    return [Line(label="validation", points=points, colour=4, dashed=True)] if points else []


def _validation_chart(facts: Facts, bands: list[Band]) -> Chart | None:
    """Training and validation in bits per byte, on one axis; None where nothing was validated.

    Training logs nats per token. Bytes per token of the held-out text turn it into bits per byte; the
    text that is trained on has nearly the same.
    """
    validation = series(facts.training, "validation_bits_per_byte")
    size = number(field(candidates_of(facts.scores).get("adapted", {}), "bytes_per_token"))
    if not validation or not size:
        return None
    loss = tuple((step, nats / math.log(2) / size) for step, nats in series(facts.training, "loss"))
    drawn = [Line(label="training", points=loss), *_validation_line(validation)]
    return lines("Training and validation", "bits per byte", drawn, bands)


def phases(facts: Facts) -> list[Band]:
    """Stretches of steps that were logged under one phase, each with its name."""
    stretches: list[tuple[object, float, float]] = []
    start = 0.0
    for line in facts.training:
        step = number(line.get("step"))
        if not step:  # the base, before any phase
            continue
        if stretches and stretches[-1][0] == line.get("phase"):
            start = stretches[-1][1]
            stretches.pop()
        stretches.append((line.get("phase"), start, float(step)))
        start = float(step)
    return [Band(label=_phase_name(facts, phase), start=start, end=end) for phase, start, end in stretches]


def _phase_name(facts: Facts, phase: object) -> str:
    """Name of a phase; logged lines hold its number from 1, or the word itself."""
    place = number(phase)
    # A phase whose share of the epochs is no step is left out.
    trained = [table.get("trains") for _, table in named_tables(facts.training_summary.get("phases"))]
    kinds = trained or [each.trains for each in facts.recipe.pretrain.phases]
    if place is not None:
        known = place == int(place) and 1 <= place <= len(kinds)
        phase = kinds[int(place) - 1] if known else f"phase {figure(place)}"
    return clip(PHASE_NAMES.get(str(phase), plain_value(phase)), 40)


def _sample(audit: Json) -> tuple[Span, ...]:
    """The first sample chat, cut at the brackets that the audit puts round trained spans."""
    text = next((item for item in list_of(audit.get("samples")) if isinstance(item, str)), "")
    parts = re.split(f"{OPEN}(.*?){CLOSE}", clip(text, MAX_CHAT_SAMPLE), flags=re.DOTALL)
    return tuple(Span(text=part, trained=bool(place % 2)) for place, part in enumerate(parts) if part)
