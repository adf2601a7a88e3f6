"""How pages and cards show which requests the candidates refuse."""

from collections.abc import Iterator, Sequence

from anadil.core.format import number
from anadil.core.table import Table
from anadil.page.format import MINUS, clip, figure, percent
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, list_of, named_tables, share_words, table_of
from anadil.text.language import find_language

KINDS = ("harmful", "harmless")
MAX_ERROR = 300  # Characters of an error of a template, which may quote the whole of it.
LEAD = (
    "Share of harmful requests that a model refuses, and of harmless ones, which it should answer. In brackets, the 95 % interval, "
    "behind it the change from the base. Told apart by likelihood: how often the beginning of a refusal is likelier after a harmful "
    "request than after a harmless one, 50 % by chance."
)


def measures(scores: Json) -> tuple[MeasureView, ...]:
    """Return the table of refusals, a row for each candidate and language."""
    rows = []
    for name in candidates_of(scores):
        for code, entry in _languages(scores, name):
            refused = [_share(field(entry, f"{kind}.refused")) for kind in KINDS]
            apart = table_of(entry.get("told_apart"))
            rows.append((
                f"{name}, {_name(code)}", figure(field(entry, "harmful.refused.num")), *refused, _share(apart),
                *(figure(sum(number(field(entry, f"{kind}.{key}")) or 0 for kind in KINDS)) for key in ("other_language", "empty")),
            ))  # fmt: skip
    columns = (
        "candidate", "harmful requests", "refused", "harmless refused", "told apart by likelihood", "answers in another language", "empty answers",
    )  # fmt: skip
    table = Table(
        "Refused requests", columns, rows, note=" ".join(_notes(scores, list(candidates_of(scores))))
    )
    return (MeasureView("Refusals", LEAD, table),)


def sentences(scores: Json, name: str) -> list[str]:
    """Return the sentences of a model card on refusals."""
    texts = []
    for code, table in _languages(scores, name):
        refused, other = (table_of(field(table, f"{kind}.refused")) for kind in KINDS)
        before = field(scores, f"candidates.base.refusals.languages.{code}.harmful.refused.value")
        of_base = "" if number(before) is None or name == "base" else f", its base {percent(before)}"
        texts.append(
            f"It refuses {share_words(refused)} of {figure(refused.get('num'))} harmful requests in {_name(code)}{of_base}, and "
            f"{share_words(other)} of {figure(other.get('num'))} harmless ones."
        )
    return [*texts, *_notes(scores, [name])] if texts or _not_asked(scores, name) else []


def warnings(scores: Json, names: Sequence[str]) -> list[str]:
    """Return a sentence for each loss of refusals that its interval makes sure, and for each model that was not asked."""
    texts = [*filter(None, (_not_asked(scores, name) for name in names))]
    for name in names:
        for code, table in _languages(scores, name):
            refused = table_of(field(table, "harmful.refused"))
            ends = [number(end) for end in list_of(field(refused, "to_base.interval"))]
            if len(ends) == 2 and ends[1] is not None and ends[1] < 0:
                before = field(scores, f"candidates.base.refusals.languages.{code}.harmful.refused.value")
                texts.append(
                    f"Refusals: the {name} model refuses {percent(refused.get('value'))} of the harmful requests in {_name(code)}, "
                    f"the base {percent(before)}."
                )
    return texts


def metrics(table: Json) -> dict[str, object]:
    """Return the shares of a candidate that are refused."""
    languages = named_tables(field(table, "refusals.languages"))
    return {
        f"refused_{kind}_{code}": field(each, f"{kind}.refused.value")
        for code, each in languages
        for kind in KINDS
    }


def _languages(scores: Json, name: str) -> list[tuple[str, Json]]:
    return named_tables(field(scores, f"candidates.{name}.refusals.languages"))


def _not_asked(scores: Json, name: str) -> str:
    error = clip(field(scores, f"candidates.{name}.refusals.error") or "", MAX_ERROR)
    return f"The {name} model was not asked to refuse: {error}." if error else ""


def _notes(scores: Json, names: Sequence[str]) -> Iterator[str]:
    yield from filter(None, (_not_asked(scores, name) for name in names))
    for code in list_of(field(scores, "refusals.unread")):
        yield f"No native speaker has read the requests and the words of refusing in {_name(str(code))}."
    for code, reason in table_of(field(scores, "refusals.skipped")).items():
        yield f"Nobody was asked in {_name(code)}: {clip(reason, MAX_ERROR)}."


def _name(code: str) -> str:
    row = find_language(code)
    return row.name if row else code


def _share(share: object) -> str:
    change = number(field(share, "to_base.value"))
    if change is None:
        return share_words(share)
    points = figure(round(abs(change) * 100, 1), 3)
    return f"{share_words(share)}, {MINUS if change < 0 else '+'}{points} points"
