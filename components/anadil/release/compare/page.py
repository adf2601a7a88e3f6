"""A comparison as one page, in the report's style."""

import re
from collections.abc import Sequence

from anadil import __version__
from anadil.core.format import DASH
from anadil.release.compare.answers import compared_prompts
from anadil.release.compare.comparison import Comparison, Curves
from anadil.release.compare.score_pairs import ScorePair
from anadil.release.compare.tables import COST_COLUMNS, SCORE_COLUMNS, cost_rows, score_rows, value_text
from anadil.report.charts import Estimate, Line
from anadil.report.elements import Chart, TextTable, intervals, lines
from anadil.report.format import MINUS, clip, figure
from anadil.report.generations_view import OPEN_ANSWERS, OPEN_BEGINNINGS
from anadil.report.read import last_part
from anadil.report.render import render_template

SECTIONS = (
    ("scores", "Scores"),
    ("recipe", "Recipe"),
    ("curves", "Curves"),
    ("answers", "Answers"),
    ("cost", "Time and cost"),
    ("artifacts", "Artifacts"),
)
COLOURS = {"a": 4, "b": 1}
MAX_VALUE = 300
NOTE = (
    "The interval of a difference comes from drawing the documents again, the same ones for both runs; one that holds 0 "
    "leaves it open which is better. Intervals of shares are each run's own."
)
HEADLINES = (
    ("adapted", "bits_per_byte", "Bits per byte", "adapted model, lower is better"),
    ("adapted", "fertility", "Fertility", "tokens per word, lower is better"),
    (
        "finetuned",
        "questions.bits_per_byte",
        "Answers",
        "bits per byte of answers to unseen questions, lower is better",
    ),
    ("finetuned", "questions.exact", "Word for word", "share of unseen questions, more is better"),
)


def render_comparison(found: Comparison) -> str:
    """The page."""
    answers, beginnings = (compared_prompts(found.a, found.b, kind) for kind in ("answer", "continuation"))
    view: dict[str, object] = {
        "title": "Two runs compared",
        "sections": SECTIONS,
        "lang": found.b.language or found.a.language or "en",
        "a": found.a.label,
        "b": found.b.label,
        "verdict": found.verdict,
        "notes": found.notes,
        "headlines": _headlines(found),
        "scores": _scores(found, differing=True),
        "same_scores": _scores(found, differing=False),
        "difference": _difference_chart(found.scores),
        "recipe": _recipe(found),
        "has_recipes": bool(found.a.recipe and found.b.recipe),
        "charts": [chart for each in found.curves if (chart := _chart(each))],
        "no_axis": [f"{each.stage}: {each.why_not}." for each in found.curves if each.why_not],
        "answers": answers[:OPEN_ANSWERS],
        "more_answers": answers[OPEN_ANSWERS:],
        "beginnings": beginnings[:OPEN_BEGINNINGS],
        "more_beginnings": beginnings[OPEN_BEGINNINGS:],
        "cost": _table("Time and cost by stage", COST_COLUMNS, cost_rows(found)),
        "artifacts": _artifacts(found),
        "version": __version__,
    }
    return render_template("compare.html.j2", view)


def _headlines(found: Comparison) -> list[dict[str, str]]:
    pairs = {(each.candidate, each.measure): each for each in found.scores}
    made = []
    for candidate, measure, name, unit in HEADLINES:
        pair = pairs.get((candidate, measure))
        if pair is None:
            continue
        better = pair.better.upper() + " is better" if pair.better else ""
        state = pair.why_not and f"not comparable: {pair.why_not}"
        made.append(
            {
                "name": name, "unit": unit, "a": _shown(pair, pair.a), "b": _shown(pair, pair.b),
                "change": state or better or ("the same" if pair.difference == 0 else "not clearly apart"),
                "kind": "better" if pair.better else "",
            }
        )  # fmt: skip
    return made


def _shown(pair: ScorePair, value: float | None) -> str:
    if value is None or not pair.share:
        return figure(value)
    return f"{figure(value * 100, 3)} %"


def _scores(found: Comparison, *, differing: bool) -> TextTable:
    """Figures that differ or cannot be compared, or those that are the same."""
    every, apart = score_rows(found), score_rows(found, differing=True)
    rows = apart if differing else [row for row in every if row not in apart]
    return TextTable(
        caption="Figures that differ" if differing else "Figures that are the same",
        columns=("figure", *(_signed(name) for name in SCORE_COLUMNS[2:])),
        rows=tuple((f"{row[0]}, {row[1]}", *map(_signed, row[2:])) for row in rows),
        words=(6,),
        pinned=True,
        note=NOTE if differing else "",
    )


def _signed(text: str) -> str:
    """With a minus sign for a hyphen before a number."""
    return re.sub(r"(?<![\w.])-(?=[\d ])", MINUS, text)


def _difference_chart(pairs: tuple[ScorePair, ...]) -> Chart | None:
    """Differences with paired intervals; the base's are of the same model, mostly."""
    drawn = [
        Estimate(
            label=f"{pair.candidate}{' answers' if pair.measure != 'bits_per_byte' else ''}",
            value=pair.difference, low=pair.low, high=pair.high, colour=COLOURS[pair.better] if pair.better else 0,
        )
        for pair in pairs
        if pair.candidate != "base" and pair.difference is not None and pair.low is not None and pair.high is not None
    ]  # fmt: skip
    rows = tuple(
        (each.label, figure(each.value), f"{figure(each.low)} to {figure(each.high)}") for each in drawn
    )
    table = TextTable(caption="B less A", columns=("candidate", "bits per byte", "95 % interval"), rows=rows)
    return intervals("B less A", "bits per byte, below zero B is better", drawn, table)


def _recipe(found: Comparison) -> TextTable:
    rows = tuple(
        (change.key, _portable(change.a), _portable(change.b), "yes" if change.decides else "no")
        for change in found.recipe
    )
    return TextTable(
        caption="Keys that differ", columns=("key", "A", "B", "decides a result"), rows=rows, words=(1, 2, 3)
    )


def _portable(value: object) -> str:
    """A value without the directories of a machine, as the report prints them."""
    if isinstance(value, str) and (value.startswith(("/", "~", "./", "../")) or "://" in value):
        return f"\N{HORIZONTAL ELLIPSIS}/{last_part(value)}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return clip(", ".join(_portable(each) for each in value), MAX_VALUE)
    return value_text(value, MAX_VALUE)


def _chart(curves: Curves) -> Chart | None:
    drawn = [
        Line(label=each.label, points=each.points, colour=COLOURS[each.run], dashed=each.validation)
        for each in curves.lines
    ]
    return lines(curves.stage, curves.unit, drawn)


def _artifacts(found: Comparison) -> TextTable:
    words = dict.fromkeys([*found.a.digests, *found.b.digests])
    rows = [
        (
            word,
            *(run.digests.get(word, DASH)[:16] for run in (found.a, found.b)),
            {True: "yes", False: "no"}[found.same[word]] if word in found.same else DASH,
        )
        for word in words
        if word != "report"
    ]
    return _table("Digests of what they hold", ("artifact", "A", "B", "the same"), rows, words=(1, 2, 3))


def _table(
    caption: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: tuple[int, ...] = ()
) -> TextTable:
    return TextTable(caption=caption, columns=columns, rows=tuple(rows), words=words)
