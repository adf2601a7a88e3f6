"""Preference of judges on pages, in cards and in a terminal."""

from collections.abc import Iterator, Mapping

from anadil.core.format import counted, number
from anadil.core.table import Table
from anadil.page.format import clip, figure, percent
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, interval_words, named_tables, table_of

FIGURES = (
    "pairs", "votes", "preferred", "other preferred", "same", "preference", "95 % interval", "first text preferred",
)  # fmt: skip


def figure_cells(figures: Mapping[str, object]) -> tuple[str, ...]:
    """Cells of one judge or of all, as `FIGURES` names them."""
    counts = (figure(figures.get(key)) for key in ("pairs", "votes", "wins", "losses", "same"))
    left = f"{percent(figures.get('left_share'))} ({interval_words(figures.get('left_interval'), percent)})"
    return *counts, percent(figures.get("share")), interval_words(figures.get("interval"), percent), left


def measures(scores: Json) -> list[MeasureView]:
    """Return the table and the chart of the preferences, by judge too where several voted."""
    from anadil.page.charts import estimate, intervals  # whose packages a command without the report lacks

    rows, drawn = [], []
    for first, second, each in _preferences(scores):
        label = f"{first} over {second}"
        rows.append((label, *figure_cells(each)))
        drawn += estimate(label, first, each.get("share"), each.get("interval"), 0.5)
        judges = named_tables(each.get("judges"))
        if len(judges) > 1:
            rows += [(f"{label}, {clip(judge, 40)}", *figure_cells(one)) for judge, one in judges]
    lead = (
        "People chose the better of two texts and did not see who wrote them. The preference is of the votes that prefer one. "
        "The last column shows how much judges prefer the text that stands first."
    )
    table = Table("Preference of judges", ("candidates", *FIGURES), rows)
    chart = intervals("Preference of judges", "share of votes, dashed: no preference", drawn, table)
    return [MeasureView("Preference of judges", lead, table, chart)]


def sentences(scores: Json, name: str) -> list[str]:
    """Return the sentences of a model card on what judges preferred."""
    return [
        f"{counted(len(table_of(each.get('judges'))), 'judge')} compared {counted(int(number(each.get('pairs')) or 0), 'pair')} of texts "
        f"blind. {figure(each.get('same'))} of {figure(each.get('votes'))} votes chose none."
        + (f" {percent(share)} of the others preferred the {first} model to the {second} model (95 % interval {interval_words(each.get('interval'), percent)})."
           if (share := each.get("share")) is not None else "")
        for first, second, each in _preferences(scores)
        if first == name
    ]  # fmt: skip


def metrics(table: Json) -> dict[str, object]:
    """Return the shares of a candidate, for curves over runs."""
    return {f"preference_{other}": each.get("share") for other, each in named_tables(table.get("preference"))}


def _preferences(scores: Json) -> Iterator[tuple[str, str, Json]]:
    for name, table in candidates_of(scores).items():
        for other, each in named_tables(table.get("preference")):
            yield clip(name, 40), clip(other, 40), each
