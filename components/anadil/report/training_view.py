"""The sections on training: continued pre-training, and finetuning on answers."""

import math
import re
from typing import Any

from anadil.core.format import DASH, counted, integer_if_whole, number
from anadil.core.table import Table
from anadil.page.charts import Band, Chart, Line, colours_of, facts_table, lines, records_table
from anadil.page.format import clip, figure, percent, plain_value, ratio
from anadil.page.values import candidates_of, field, last_part, list_of, named_tables, series, table_of
from anadil.recipe.retrain import part_name
from anadil.report.read import Facts
from anadil.report.verdict import FINETUNING, PRETRAINING, learnings

PHASE_NAMES = {"new_rows": "rows of new tokens", "embeddings": "embeddings", "all": "whole model"}
MAX_CHAT_SAMPLE = 4_000
OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""Brackets of `mask_audit.json` around the trained spans of a sample."""

CURVES = (
    ("loss", "Loss", "nats per token", False),
    ("lr", "Learning rate", "step size of AdamW", True),
    ("tokens_per_s", "Throughput", "tokens per second", True),
    ("grad_norm", "Gradient norm", "norm before clipping", True),
    ("kl", "Divergence from the base", "nats per token with a teacher", True),
    ("teacher_weight", "Weight of the divergence", "nats of the loss for a nat", True),
    ("expert_load_max", "Load of the busiest expert", "times the mean of its layer", True),
)
"""Key of a logged line, title, unit, and True for an axis from zero."""
SOURCE_CURVES = (
    ("loss", "Loss by source", "nats per token"),
    ("validation_bits_per_byte", "Held-out text by source", "bits per byte"),
)
"""Key of a logged line without its source, title, unit."""
OPEN_CURVES = 2
CHANCE = 0.5
"""Share of pairs that any change wins."""


def training_view(facts: Facts) -> dict[str, Any]:
    """Build the section on continued pre-training, by the names of the template."""
    bands = phases(facts)
    validation = _validation_chart(facts, bands)
    drawn = [validation] + [
        lines(title, unit, [Line(title.lower(), series(facts.training, key))], bands, from_zero=zero)
        for key, title, unit, zero in CURVES
        if not (key == "loss" and validation)
    ]
    charts = [chart for chart in drawn if chart]
    looks, of_sources = colours_of(_parts(facts)), []
    for key, title, unit in SOURCE_CURVES:
        parts = [
            Line(name, points, colour=looks[name][0], dashed=looks[name][1])
            for name in _parts(facts)
            if (points := series(facts.training, f"{key}/{name}"))
        ]
        of_sources.append(lines(title, unit, parts, bands))
    steps = max((step for line in facts.training if (step := number(line.get("step")))), default=None)
    stretches = (f"{band.label} up to step {figure(integer_if_whole(band.end))}" for band in bands[:10])
    words = (_words(facts, PRETRAINING), _begin_words(facts), _mean_words(facts))
    skipped = ("phases", "sources", "start_from", "branch_points", "average_of")
    return {
        "steps": "" if steps is None else figure(int(steps)),
        "phases": "; ".join(stretches),
        "words": " ".join(filter(None, words)),
        "charts": charts[:OPEN_CURVES],
        # In a fold, for a reader who looks for a fault.
        "more_charts": charts[OPEN_CURVES:],
        "source_charts": [chart for chart in of_sources if chart],
        "sources": _sources(facts),
        "phase_table": records_table("Phases", named_tables(facts.training_summary.get("phases")), "phase"),
        "summary": facts_table("Continued pre-training in numbers", facts.training_summary, skipped=skipped),
    }


def _begin_words(facts: Facts) -> str:
    """Say with which checkpoint training began; nothing where that was the base."""
    if facts.recipe.retrain and facts.recipe.retrain.keeps_model:
        return "No text was new, so this is the champion's training."
    begin = table_of(facts.training_summary.get("start_from"))
    if not begin:
        return ""
    run = last_part(str(begin.get("run") or ""))
    if not begin.get("step"):
        return f"Training began with the weights of the model {run}, and new moments."
    of_run = f" of the model {run}" if run else " of another run"
    return (
        f"Training began with the checkpoint of step {figure(begin.get('step'))}{of_run}; the steps before it are those "
        "of that run."
    )


def _mean_words(facts: Facts) -> str:
    """Say that the model is a mean of checkpoints, which no curve shows; nothing where it is the last one."""
    steps = [figure(step) for step in list_of(facts.training_summary.get("average_of"))]
    if not steps:
        return ""
    return (
        f"The model is the mean of {counted(len(steps), 'checkpoint')}, steps {steps[0]} to {steps[-1]}. The curves are of single "
        "steps, and none is of the mean."
    )


def _parts(facts: Facts) -> tuple[str, ...]:
    """Names of the bodies of text that were mixed: sources, and in a retraining their new parts."""
    if not facts.recipe.continues_champion:
        return tuple(facts.recipe.sources)
    sources = facts.recipe.sources or ("",)
    parts = (part_name(source, is_new=is_new) for source in sources for is_new in (False, True))
    # A source without new text has no such part.
    return tuple(part for part in parts if field(facts.training_summary, f"sources.{part}"))


def _sources(facts: Facts) -> Table:
    """A row for each source: what was trained on, and how loss and held-out text moved."""
    summary = facts.training_summary
    rows = []
    for name in _parts(facts):
        counts = table_of(field(summary, f"sources.{name}"))
        losses, bits = (_ends(series(facts.training, f"{key}/{name}")) for key, _, _ in SOURCE_CURVES)
        share = percent(ratio(summary.get("tokens"), counts.get("tokens")))
        rows.append(
            (name, figure(counts.get("tokens")), share, figure(counts.get("epochs"), 2), losses, bits)
        )
    columns = (
        "source", "tokens", "share", "epochs", "loss, first to last",
        "bits per byte of held-out text, base to model",
    )  # fmt: skip
    return Table("Training by source", columns, rows)


def _ends(points: tuple[tuple[float, float], ...]) -> str:
    return f"{figure(points[0][1])} to {figure(points[-1][1])}" if points else DASH


def finetune_view(facts: Facts) -> dict[str, Any]:
    """Build the section on finetuning, by the names of the template."""
    loss = _validated(series(facts.finetuning, "loss"), series(facts.finetuning, "validation_loss"))
    rate = Line("learning rate", series(facts.finetuning, "lr"))
    charts = [
        lines("Loss on answers", "nats per token", loss),
        lines("Learning rate", "step size of AdamW", [rate], from_zero=True),
    ]
    margins = [Line("training pairs", series(facts.preference, "reward_margin"))]
    if heldout := series(facts.preference, "heldout_margin"):
        margins.append(Line("held-out pairs", heldout, colour=4, dashed=True))
    sides = [
        Line(f"{side} answers", series(facts.preference, f"reward_{side}"), colour=colour)
        for side, colour in (("chosen", 2), ("rejected", 3))
    ]
    unit = "beta x change of log-probability"
    of_pairs = (lines("Margin of the better answers", unit, margins), lines("Rewards", unit, sides))
    # The audit puts brackets round trained spans.
    text = next((item for item in list_of(facts.mask_audit.get("samples")) if isinstance(item, str)), "")
    parts = re.split(f"{OPEN}(.*?){CLOSE}", clip(text, MAX_CHAT_SAMPLE), flags=re.DOTALL)
    return {
        "words": _words(facts, FINETUNING),
        "charts": [chart for chart in charts if chart],
        "preference": _preference_words(facts),
        "preference_charts": [chart for chart in of_pairs if chart],
        "audit": facts_table("Which tokens the loss counts", facts.mask_audit, skipped=("samples",)),
        "summary": facts_table("Finetuning in numbers", facts.finetuning_summary),
        "sample": [(part, bool(place % 2)) for place, part in enumerate(parts) if part],
    }


def _preference_words(facts: Facts) -> str:
    """Share of the pairs whose better answer gained; of held-out pairs if there are any."""
    summary = table_of(facts.finetuning_summary.get("preference"))
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
    learning = learnings(facts).get(stage)
    return f"{learning.words}." if learning else ""


def _validated(
    training: tuple[tuple[float, float], ...], validation: tuple[tuple[float, float], ...]
) -> list[Line]:
    drawn = [Line("training", training)]
    return [*drawn, Line("validation", validation, colour=4, dashed=True)] if validation else drawn


def _validation_chart(facts: Facts, bands: list[Band]) -> Chart | None:
    """Training and validation in bits per byte, on one axis; None without validation."""
    validation = series(facts.training, "validation_bits_per_byte")
    size = number(field(candidates_of(facts.scores).get("adapted", {}), "bytes_per_token"))
    if not validation or not size:
        return None
    # Training logs nats per token. Its text has nearly the bytes per token of the held-out text.
    loss = tuple((step, nats / math.log(2) / size) for step, nats in series(facts.training, "loss"))
    return lines("Training and validation", "bits per byte", _validated(loss, validation), bands)


def phases(facts: Facts) -> list[Band]:
    """Stretches of steps that were logged under one phase, each with its name."""
    stretches: list[tuple[object, float, float]] = []
    start = 0.0
    for line in facts.training:
        step = number(line.get("step"))
        if not step:  # the base, before any phase
            continue
        if stretches and stretches[-1][0] == line.get("phase"):
            start = stretches.pop()[1]
        stretches.append((line.get("phase"), start, float(step)))
        start = float(step)
    return [Band(_phase_name(facts, phase), start, end) for phase, start, end in stretches]


def _phase_name(facts: Facts, phase: object) -> str:
    """Name of a phase; logged lines hold its number from 1, or the word itself."""
    place = number(phase)
    # The summary skips a phase whose share of the epochs is less than a step.
    trained = [table.get("trains") for _, table in named_tables(facts.training_summary.get("phases"))]
    kinds = trained or [each.trains for each in facts.recipe.pretrain.phases]
    if place is not None:
        known = place == int(place) and 1 <= place <= len(kinds)
        phase = kinds[int(place) - 1] if known else f"phase {figure(place)}"
    return clip(PHASE_NAMES.get(str(phase), plain_value(phase)), 40)
