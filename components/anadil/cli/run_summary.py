"""The end of `anadil run`, for people: figures before and after, what may be released, where to look."""

import json
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.format import DASH, human_figure, human_percent, number
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.report.read import Json, field, table_of
from anadil.report.verdict import candidates_of, gate_verdict
from anadil.runtime.mlflow_spool import tracking_uri

WIDTH = 100
FIGURES: tuple[tuple[str, str, Callable[[float | int | None], str]], ...] = (
    ("bits_per_byte", "bits per byte", human_figure),
    ("fertility", "tokens per word", human_figure),
    ("questions.bits_per_byte", "held-out answers, bits per byte", human_figure),
    ("questions.exact", "held-out answers, word for word", human_percent),
    ("seen_questions.exact", "trained answers, word for word", human_percent),
)
"""Path in a candidate's scores, what the row is called, how its cells are printed."""


def summary_lines(recipe: Recipe, uris: Mapping[str, str], default_tracking: str) -> Iterator[str]:
    """What a run ends with, a line each.

    Args:
        recipe: What was run.
        uris: Artifact word -> URI; of scores that are not there nothing is said.
        default_tracking: URI of MLflow where neither the recipe nor the environment names one.
    """
    if "scores" in uris:
        place = join(uris["scores"], "scores.json")
        scores = table_of(json.loads(storage.store(place).read(place)))
        yield from figure_lines(scores)
        yield from textwrap.wrap(gate_verdict(scores), WIDTH)
    if "report" in uris:
        yield f"report: {uris['report']}/report.html"
    if tracking := tracking_uri(recipe, default=default_tracking):
        is_server = tracking.startswith(("http://", "https://", "arn:"))
        look = (
            masked(tracking)
            if is_server
            else f"mlflow ui --backend-store-uri {shlex.quote(masked(tracking))}"
        )
        yield f"tracking: {look}"


def figure_lines(scores: Json) -> Iterator[str]:
    """A row for each figure that any candidate has, a column for each candidate."""
    candidates = candidates_of(scores)
    rows = [("", *candidates)]
    for path, label, say in FIGURES:
        values = [number(field(item, path)) for item in candidates.values()]
        if any(value is not None for value in values):
            rows.append((label, *(DASH if value is None else say(value) for value in values)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows if len(rows) > 1 else ():
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield f"{row[0]:<{widths[0]}}  {'  '.join(cells)}"
