"""A comparison as tables for a terminal and for a notebook."""

import json
import textwrap
from collections.abc import Iterator
from html import escape

from anadil.core.format import DASH, human_dollars, human_figure, human_seconds, one_line
from anadil.release.compare.compared_runs import ComparedRuns, format_figure
from anadil.release.compare.score_pairs import ScorePair
from anadil.release.notebook import html_page, html_table, text_table

WIDTH = 110
MAX_VALUE = 60
SCORE_COLUMNS = ("candidate", "figure", "A", "B", "B - A", "95 % interval", "over", "better")
SCORE_NUMBERS = (2, 3, 4, 5, 6)
COST_COLUMNS = ("stage", "A", "B", "A cost", "B cost")
COST_NUMBERS = (1, 2, 3, 4)


def score_rows(runs: ComparedRuns, *, differing: bool = False) -> list[tuple[str, ...]]:
    """Cells under `SCORE_COLUMNS`; `differing`: without figures that are the same in both."""
    return [
        (
            pair.candidate, pair.name, format_figure(pair, pair.a), format_figure(pair, pair.b), _difference(pair),
            _interval(pair), "" if pair.num_documents is None else human_figure(pair.num_documents), _better(pair),
        )
        for pair in runs.scores
        if not differing or pair.difference != 0
    ]  # fmt: skip


def recipe_rows(runs: ComparedRuns) -> list[tuple[str, ...]]:
    """Key and both values."""
    return [
        (
            f"{each.key}{'' if each.decides else ' (decides no result)'}",
            value_text(each.a),
            value_text(each.b),
        )
        for each in runs.recipe
    ]


def value_text(value: object, limit: int = MAX_VALUE) -> str:
    """A value of a recipe on one line."""
    if value is None:
        return "null"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), limit)


def cost_rows(runs: ComparedRuns) -> list[tuple[str, ...]]:
    """Cells under `COST_COLUMNS`, the sums last."""
    names = [f"{each.stage}{' (the same artifact)' if each.shared else ''}" for each in runs.costs]
    columns: list[list[str]] = []
    for key in ("a_seconds", "b_seconds", "a_dollars", "b_dollars"):
        say, empty = (human_seconds, 0.0) if key.endswith("seconds") else (human_dollars, None)
        values = [getattr(each, key) for each in runs.costs]
        known = [value for value in values if value is not None]
        columns.append([*map(say, values), say(sum(known) if known else empty)])
    return list(zip([*names, "together"], *columns, strict=True)) if runs.costs else []


def terminal_lines(runs: ComparedRuns) -> Iterator[str]:
    """Yield the lines of a terminal."""
    yield f"A: {runs.a.label}"
    yield f"B: {runs.b.label}"
    for text in (*runs.verdict, *runs.notes):
        yield ""
        yield from textwrap.wrap(text, WIDTH)
    if runs.recipe:
        yield "\nRecipe"
        yield from text_table(("key", "A", "B"), recipe_rows(runs))
    else:
        both = runs.a.recipe and runs.b.recipe
        yield "\nRecipe: no key differs." if both else "\nRecipe: not kept by a run."
    if runs.scores:
        yield "\nScores"
        rows = score_rows(runs, differing=True)
        yield from text_table(SCORE_COLUMNS, rows, SCORE_NUMBERS) if rows else ()
        if same := len(runs.scores) - len(rows):
            yield f"{same} further figures are the same in both."
    if runs.costs:
        yield "\nTime and cost"
        yield from text_table(COST_COLUMNS, cost_rows(runs), COST_NUMBERS)


def notebook_html(runs: ComparedRuns, page: str) -> str:
    """Render tables, with the whole page folded below them."""
    parts = [
        f"<p><strong>A</strong>: {escape(runs.a.label)}<br><strong>B</strong>: {escape(runs.b.label)}</p>"
    ]
    parts += [f"<p>{escape(text)}</p>" for text in (*runs.verdict, *runs.notes)]
    if runs.recipe:
        parts.append(html_table("Recipe", ("key", "A", "B"), recipe_rows(runs)))
    if runs.scores:
        parts.append(html_table("Scores", SCORE_COLUMNS, score_rows(runs), SCORE_NUMBERS))
    parts.append(html_table("Time and cost", COST_COLUMNS, cost_rows(runs), COST_NUMBERS))
    parts.append(html_page(page, "Curves and answers"))
    return "\n".join(parts)


def _difference(pair: ScorePair) -> str:
    if pair.difference is None:
        return DASH
    if pair.share:
        return f"{pair.difference * 100:+.3g} points"
    return f"{'+' if pair.difference > 0 else ''}{human_figure(pair.difference)}"


def _interval(pair: ScorePair) -> str:
    """Interval of the difference; without one, those of both runs."""
    if pair.why_not:
        return ""
    if pair.low is not None and pair.high is not None:
        return "0" if pair.low == pair.high == 0 else f"{pair.low:+.4f} to {pair.high:+.4f}"
    if not (pair.a_interval and pair.b_interval):
        return ""
    a, b = (
        " to ".join(format_figure(pair, end) for end in ends) for ends in (pair.a_interval, pair.b_interval)
    )
    return f"A {a}, B {b}"


def _better(pair: ScorePair) -> str:
    if pair.why_not:
        return f"not comparable: {pair.why_not}"
    if pair.difference is None:
        return ""
    if pair.better:
        return f"{pair.better.upper()}, unsure" if pair.unsure else pair.better.upper()
    return "same" if pair.difference == 0 else "not clear"
