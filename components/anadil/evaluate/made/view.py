"""How pages and cards show the items that were made of held-out text."""

from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.page.charts import estimate, intervals
from anadil.page.format import MINUS, figure, percent, words_of
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, share_words, table_of

KINDS = {
    "cloze": "word among words as frequent",
    "ending": "word among its other endings",
    "word_order": "two words in order",
    "continuation": "words behind their own sentence",
    "translation": "translation among near ones",
    "all": "all that decide",
}
"""Kind -> its name on pages."""
TITLE = "Items made of the held-out text"


def measures(scores: Json) -> tuple[MeasureView, ...]:
    """Return the table of shares right, and a chart of the kinds that decide."""
    names, rows, leads, drawn = list(candidates_of(scores)), [], [], []
    for kind, words in KINDS.items():
        entries = {name: table_of(field(scores, f"candidates.{name}.made.{kind}")) for name in names}
        if not (first := next(filter(None, entries.values()), {})):
            continue
        decides = "yes" if first.get("decides") else str(first.get("reason") or DASH)
        beside = (figure(first.get("num")), percent(first.get("chance")))
        right = (share_words({**each, "value": each.get("accuracy")}) for each in entries.values())
        rows.append((words, *beside, *right, decides))
        if first.get("decides"):
            leads.append((f"{words}: lead over the base's", *beside, *map(_change, entries.values()), "yes"))
            for name, entry in entries.items():
                figures = (entry.get(key) for key in ("accuracy", "interval", "chance"))
                drawn += estimate(f"{words_of(kind)}, {name}", name, *figures)
    columns = ("share right", "items", "chance", *names, "decides")
    table = Table(TITLE, columns, rows + leads, words=(len(columns) - 1,))
    lead = (
        "A model is right if the text's own words get more probability for each byte than the others. In brackets, the 95 % "
        "interval. The lead is over the likeliest other choice, in bits per byte. A kind decides if enough documents made it and a "
        "model is above chance."
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


def _change(entry: Json) -> str:
    values = [number(field(entry, f"differences.base.margin.{key}")) for key in ("value", "low", "high")]
    change, low, high = (DASH if each is None else f"{each:+.3f}".replace("-", MINUS) for each in values)
    return DASH if change == DASH else f"{change} ({low} to {high})"
