"""How pages and cards show the items that were made of held-out text."""

from collections.abc import Iterator

from anadil.core.candidates import COLOURS
from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.page.charts import Estimate, intervals
from anadil.page.format import MINUS, figure, percent, words_of
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, interval_of, interval_words, table_of

KINDS = {
    "cloze": "word among words as frequent",
    "ending": "ending of a word",
    "word_order": "order of two words",
    "sentence_order": "order of two sentences",
    "continuation": "context of a sentence",
    "translation": "translation among near ones",
    "all": "all that decide",
}
"""Kind -> its name on pages."""
TITLE = "Items made of the held-out text"


def measures(scores: Json) -> tuple[MeasureView, ...]:
    """Return the table of shares right, and a chart of the kinds that decide."""
    rows, drawn = [], []
    for kind, words in KINDS.items():
        for name, entry in _entries(scores, kind):
            share, ends = number(entry.get("accuracy")), interval_of(entry.get("interval"))
            rows.append(
                (
                    f"{words}, {name}", figure(entry.get("num")), percent(share), interval_words(entry.get("interval"), percent),
                    percent(entry.get("chance")), _signed(entry.get("margin")), _change(entry),
                    "yes" if entry.get("decides") else str(entry.get("reason") or DASH),
                )
            )  # fmt: skip
            if entry.get("decides") and share is not None and ends:
                drawn.append(
                    Estimate(
                        label=f"{words_of(kind)}, {name}", value=share, low=ends[0], high=ends[1], colour=COLOURS.get(name, 3),
                        chance=number(entry.get("chance")),
                    )
                )  # fmt: skip
    columns = ("kind", "items", "right", "95 % interval", "chance", "lead", "lead over the base's", "decides")
    table = Table(TITLE, columns, rows, words=(7,))
    lead = (
        "The text's own words against others: a model is right if it gives the text's own the most probability for each byte. "
        "Its lead over the likeliest other choice, in bits per byte, tells models apart that have as many right. A kind decides if some "
        "model is surely above chance and enough documents made it."
    )
    chart = intervals("Made items that are right", "share right, higher is better", drawn, table)
    return (MeasureView(TITLE, lead, table, chart),)


def sentences(scores: Json, name: str) -> list[str]:
    """Return the sentence of a model card on made items. None where no kind decides."""
    entry = table_of(field(scores, f"candidates.{name}.made.all"))
    if not entry.get("decides"):
        return []
    right, chance = percent(entry.get("accuracy")), percent(entry.get("chance"))
    head = f"Of {figure(entry.get('num'))} items made of the held-out text the {name} model has {right} right (chance {chance})"
    return [f"{head}. Its lead over the base's is {_change(entry)} bits per byte."]


def metrics(table: Json) -> dict[str, object]:
    """Return the share right of each kind."""
    return {f"made_{kind}": field(table, f"made.{kind}.accuracy") for kind in table_of(table.get("made"))}


def _entries(scores: Json, kind: str) -> Iterator[tuple[str, Json]]:
    for name in candidates_of(scores):
        if entry := table_of(field(scores, f"candidates.{name}.made.{kind}")):
            yield name, entry


def _change(entry: Json) -> str:
    values = [field(entry, f"differences.base.margin.{key}") for key in ("value", "low", "high")]
    change, low, high = map(_signed, values)
    return DASH if change == DASH else f"{change} ({low} to {high})"


def _signed(value: object) -> str:
    known = number(value)
    return DASH if known is None else f"{known:+.3f}".replace("-", MINUS)
