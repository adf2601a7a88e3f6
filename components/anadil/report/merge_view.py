"""The merge: which models were made one, with which weights, and under which licences they stand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anadil.core.format import DASH, number
from anadil.report.elements import TextTable
from anadil.report.format import clip, figure
from anadil.report.frontier import Frontier, frontier_of
from anadil.report.licence import UNKNOWN, licence_of
from anadil.report.read import Facts, Json, base_name, field, list_of, table_of

MAX_TOKENS = 12
"""Most control tokens that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeView:
    """The part of the page on the merge."""

    words: str
    table: TextTable
    frontier: Frontier


def merge_view(facts: Facts) -> MergeView:
    """Build the part; its table has no rows where nothing was merged."""
    licences: Json = {**facts.recipe.report.licences}
    return MergeView(
        words=merge_words(facts.merge),
        table=merge_table(facts.merge, licences),
        frontier=frontier_of(facts.merge),
    )


def merge_words(merge: Json) -> str:
    """Sentence about what was merged; empty where nothing was."""
    if not merge:
        return ""
    steps, share = list_of(merge.get("average_of")), number(merge.get("base_share")) or 0.0
    parts = [f"the mean of {len(steps)} checkpoints" if steps else "the trained model"]
    parts += [f"{figure(share)} of the base"] if share else []
    added = [table_of(each) for each in list_of(merge.get("add"))]
    parts += [
        f"{figure(each.get('weight'))} of what {base_name(str(each.get('model')))} learnt beyond {base_name(str(each.get('minus')))}"
        for each in added
    ]
    return f"Merged: {', '.join(parts)}."


def merge_table(merge: Json, licences: Mapping[str, object]) -> TextTable:
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
    return TextTable("What was merged", columns, rows, words=(3,), note=clip(note, 400))


def _rows(merge: Json, licences: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    share, base = number(merge.get("base_share")) or 0.0, str(merge.get("base") or "")
    steps = list_of(merge.get("average_of"))
    trained = (
        f"mean of the checkpoints at steps {', '.join(map(figure, steps))}" if steps else "trained model"
    )
    licence = _licence(base, licences.get("base"))
    yield trained, figure(1 - share), DASH, licence
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
