"""The sections on training: continued pre-training, and finetuning on answers."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from anadil.core.format import DASH, counted, integer_if_whole, number
from anadil.core.table import Table
from anadil.recipe.retrain import part_name
from anadil.report.charts import (
    Band,
    Bar,
    Chart,
    Line,
    Point,
    chart,
    colours_of,
    facts_table,
    lines,
    records_table,
    scatter_chart,
)
from anadil.report.format import clip, figure, percent, plain_value, ratio, setting
from anadil.report.licence import UNKNOWN, licence_of
from anadil.report.read import (
    Facts,
    Json,
    base_name,
    field,
    last_part,
    list_of,
    named_tables,
    series,
    table_of,
)
from anadil.report.verdict import FINETUNING, PRETRAINING, candidates_of, learnings

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
"""Key of a logged line, title, unit, and True for an axis from zero."""
SOURCE_CURVES = (
    ("loss", "Loss by source", "nats per token"),
    ("validation_bits_per_byte", "Held-out text by source", "bits per byte"),
)
"""Key of a logged line without its source, title, unit."""
OPEN_CURVES = 2
CHANCE = 0.5
"""Share of pairs that any change wins."""
MAX_TOKENS = 12
"""Most control tokens that are named."""
MAX_TEXTS = 4
"""Most retained texts that are drawn; the table has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """The section on continued pre-training."""

    steps: str
    phases: str
    words: str
    charts: list[Chart]
    more_charts: list[Chart]
    """Charts for a reader who looks for a fault, in a fold."""
    source_charts: list[Chart]
    """Curves with a line for each source, or part of one in a retraining; none of one body of text."""
    sources: Table
    phase_table: Table
    summary: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneView:
    """The section on finetuning."""

    words: str
    charts: list[Chart]
    preference: str
    preference_charts: list[Chart]
    audit: Table
    summary: Table
    sample: list[tuple[str, bool]]
    """Pieces of a rendered chat, each with whether the loss counts it."""


def training_view(facts: Facts) -> TrainingView:
    """Build the section on continued pre-training: curves with phases, and the summary."""
    bands = phases(facts)
    validation = _validation_chart(facts, bands)
    drawn = [validation] + [
        lines(title, unit, [Line(title.lower(), series(facts.training, key))], bands, from_zero=zero)
        for key, title, unit, zero in CURVES
        if not (key == "loss" and validation)
    ]
    charts = [chart for chart in drawn if chart]
    steps = max((step for line in facts.training if (step := number(line.get("step")))), default=None)
    stretches = (f"{band.label} up to step {figure(integer_if_whole(band.end))}" for band in bands[:10])
    return TrainingView(
        steps="" if steps is None else figure(int(steps)),
        phases="; ".join(stretches),
        words=" ".join(filter(None, (_words(facts, PRETRAINING), _begin_words(facts), _mean_words(facts)))),
        charts=charts[:OPEN_CURVES],
        more_charts=charts[OPEN_CURVES:],
        source_charts=_source_charts(facts, bands),
        sources=_sources(facts),
        phase_table=records_table("Phases", named_tables(facts.training_summary.get("phases")), "phase"),
        summary=facts_table(
            "Continued pre-training in numbers",
            facts.training_summary,
            skipped=("phases", "sources", "start_from", "branch_points", "average_of"),
        ),
    )


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


def _source_charts(facts: Facts, bands: list[Band]) -> list[Chart]:
    charts, looks = [], colours_of(_parts(facts))
    for key, title, unit in SOURCE_CURVES:
        drawn = [
            Line(name, points, colour=looks[name][0], dashed=looks[name][1])
            for name in _parts(facts)
            if (points := series(facts.training, f"{key}/{name}"))
        ]
        charts.append(lines(title, unit, drawn, bands))
    return [chart for chart in charts if chart]


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
        "source",
        "tokens",
        "share",
        "epochs",
        "loss, first to last",
        "bits per byte of held-out text, base to model",
    )
    return Table("Training by source", columns, rows)


def _ends(points: tuple[tuple[float, float], ...]) -> str:
    return f"{figure(points[0][1])} to {figure(points[-1][1])}" if points else DASH


def finetune_view(facts: Facts) -> FinetuneView:
    """Build the section on finetuning."""
    loss = _validated(series(facts.finetuning, "loss"), series(facts.finetuning, "validation_loss"))
    rate = Line("learning rate", series(facts.finetuning, "lr"))
    charts = [
        lines("Loss on answers", "nats per token", loss),
        lines("Learning rate", "step size of AdamW", [rate], from_zero=True),
    ]
    return FinetuneView(
        words=_words(facts, FINETUNING),
        charts=[chart for chart in charts if chart],
        preference=_preference_words(facts),
        preference_charts=_preference_charts(facts),
        audit=facts_table("Which tokens the loss counts", facts.mask_audit, skipped=("samples",)),
        summary=facts_table("Finetuning in numbers", facts.finetuning_summary),
        sample=_sample(facts.mask_audit),
    )


def _preference_charts(facts: Facts) -> list[Chart]:
    margins = [Line("training pairs", series(facts.preference, "reward_margin"))]
    if heldout := series(facts.preference, "heldout_margin"):
        margins.append(Line("held-out pairs", heldout, colour=4, dashed=True))
    sides = [
        Line(f"{side} answers", series(facts.preference, f"reward_{side}"), colour=colour)
        for side, colour in (("chosen", 2), ("rejected", 3))
    ]
    unit = "beta x change of log-probability"
    charts = (lines("Margin of the better answers", unit, margins), lines("Rewards", unit, sides))
    return [chart for chart in charts if chart]


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


def _sample(audit: Json) -> list[tuple[str, bool]]:
    """The first sample chat, cut at the brackets that the audit puts round trained spans."""
    text = next((item for item in list_of(audit.get("samples")) if isinstance(item, str)), "")
    parts = re.split(f"{OPEN}(.*?){CLOSE}", clip(text, MAX_CHAT_SAMPLE), flags=re.DOTALL)
    return [(part, bool(place % 2)) for place, part in enumerate(parts) if part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """All that was measured; empty where the recipe says all values."""

    reasons: tuple[str, ...]
    """Chosen values with their reasons, and texts that do not decide."""
    rules: tuple[str, ...]
    charts: tuple[Chart, ...]
    points: Table


def merge_view(facts: Facts) -> dict[str, object]:
    """Build the part; its table has no rows where nothing was merged."""
    licences: Json = {**facts.recipe.report.licences}
    return {
        "words": merge_words(facts.merge),
        "table": merge_table(facts.merge, licences),
        "frontier": frontier_of(facts.merge),
    }


def merge_words(merge: Json) -> str:
    """Sentence about what was merged; empty where nothing was."""
    if not merge:
        return ""
    share, parts = number(merge.get("base_share")) or 0.0, ["the trained model"]
    parts += [f"{figure(share)} of the base"] if share else []
    added = [table_of(each) for each in list_of(merge.get("add"))]
    parts += [
        f"{figure(each.get('weight'))} of what {base_name(str(each.get('model')))} learnt beyond {base_name(str(each.get('minus')))}"
        for each in added
    ]
    return f"Merged: {', '.join(parts)}."


def merge_table(merge: Json, licences: Mapping[str, object]) -> Table:
    """A row for each model of the merge; `licences` are those that the recipe states."""
    tokens = [
        str(token) for each in list_of(merge.get("add")) for token in list_of(field(each, "control_tokens"))
    ]
    note = ""
    if tokens:
        more = f" and {len(tokens) - MAX_TOKENS} more" if len(tokens) > MAX_TOKENS else ""
        note = f"Rows of control tokens are those of the model that was added: {', '.join(tokens[:MAX_TOKENS])}{more}."
    rows = [*_rows(merge, licences)] if merge else []
    columns = ("model", "weight", "difference, of the weights", "licence")
    return Table("What was merged", columns, rows, words=(3,), note=clip(note, 400))


def _rows(merge: Json, licences: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    share, base = number(merge.get("base_share")) or 0.0, str(merge.get("base") or "")
    licence = _licence(base, licences.get("base"))
    yield "trained model", figure(1 - share), DASH, licence
    if share:
        yield f"{base_name(base)} (base)", figure(share), DASH, licence
    for each in map(table_of, list_of(merge.get("add"))):
        model = str(each.get("model") or "")
        yield (
            f"{base_name(model)} less {base_name(str(each.get('minus')))}",
            figure(each.get("weight")),
            figure(each.get("relative_difference"), 2),
            _licence(model, licences.get(model)),
        )


def _licence(model: str, stated: object) -> str:
    licence = licence_of(model, str(stated or ""))
    return "not known" if licence.id == UNKNOWN else licence.name or licence.id


def frontier_of(merge: Json) -> Frontier:
    """Build the part of the page on the choice from `merge.json`."""
    table = _points_table(merge)
    return Frontier(
        reasons=tuple(dict.fromkeys([*_texts(merge, "reasons"), *_texts(merge, "warnings")])),
        rules=_texts(merge, "rules"),
        charts=tuple(each for text in _text_names(merge)[:MAX_TEXTS] if (each := _chart(merge, text, table))),
        points=table,
    )


def _texts(merge: Json, key: str) -> tuple[str, ...]:
    return tuple(clip(each, 600) for each in list_of(merge.get(key)))


def _points(merge: Json) -> list[Json]:
    return [table_of(each) for each in list_of(merge.get("points"))]


def _text_names(merge: Json) -> list[str]:
    return list(dict.fromkeys(name for each in _points(merge) for name in table_of(each.get("retained"))))


def _points_table(merge: Json) -> Table:
    names, points = _text_names(merge), _points(merge)
    with_weights = any(list_of(each.get("weights")) for each in points)
    columns = (
        "base_share", *(["weights"] if with_weights else []), "target, bits per byte",
        *(f"{clip(name, 40)}, over the base's" for name in names), "within the limit",
    )  # fmt: skip
    rows = []
    for each in points:
        retained = dict(named_tables(each.get("retained")))
        within = each.get("within")
        rows.append(
            (
                setting(each.get("base_share")),
                *([_weights(each)] if with_weights else []),
                figure(each.get("target")),
                *(_ratio(retained.get(name, {})) for name in names),
                ("yes" if within else "no") if isinstance(within, bool) else DASH,
            )
        )
    chosen = next((place for place, each in enumerate(points) if _is_chosen(merge, each)), None)
    counts = ", ".join(
        f"{clip(name, 40)} {figure(count)}" for name, count in table_of(merge.get("texts")).items()
    )
    note = (
        f"In brackets, the upper end of the 95 % interval. Documents, which no score uses: {counts}."
        if counts
        else ""
    )
    return Table(
        "Merges that were measured", columns, rows, words=(len(columns) - 1,), marked=chosen, note=note
    )


def _ratio(text: Json) -> str:
    return f"{figure(text.get('ratio'))} (to {figure(text.get('high'))})"


def _weights(point: Json) -> str:
    return " ".join(setting(weight) for weight in list_of(point.get("weights")))


def _is_chosen(merge: Json, point: Json) -> bool:
    return all(field(merge, f"chosen.{key}") == point.get(key) for key in ("base_share", "weights"))


def _chart(merge: Json, text: str, table: Table) -> Chart | None:
    """The taught language against one retained text, each measured merge a dot."""
    limit, points = number(field(merge, "limits.retained")), _points(merge)
    drawn = [
        (each, Point(label, float(x), float(y), colour))
        for each, (label, colour) in zip(points, _labels(points), strict=True)
        if (x := number(field(each, f"retained.{text}.high"))) is not None
        and (y := number(each.get("target"))) is not None
    ]
    if limit is None:
        return None
    dots = [dot for each, dot in drawn if not _is_chosen(merge, each)]
    ring = next((dot for each, dot in drawn if _is_chosen(merge, each)), None)
    # The points come in the order of what was varied.
    path = tuple((dot.x, dot.y) for _, dot in drawn if dot.colour == drawn[0][1].colour)
    title = f"Target language against {clip(text, 40)}"
    svg = scatter_chart(
        dots, Line("merges", path), limit=Bar(f"limit {setting(limit)}", limit), title=title, chosen=ring, named=True,
        units=("over the base's, to the end of the interval", "bits per byte of the target"),
    )  # fmt: skip
    return chart(title, svg, table)


def _labels(points: Sequence[Json]) -> list[tuple[str, int]]:
    """Label and colour of each point: the shares, then what was measured for weights."""
    first = next((list_of(each.get("weights")) for each in points), [])
    return [
        (setting(each.get("base_share")), 1)
        if list_of(each.get("weights")) == first
        else (f"weight {_weights(each)}", 2)
        for each in points
    ]
