"""How pages and cards show language, script, loops, ends and words of generated texts."""

from anadil.core.candidates import COLOURS
from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.page.format import clip, figure, percent
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, list_of, named_tables, table_of

SHARES = {
    "sound": "without a fault",
    "own_language": "in the language",
    "other_language": "other language",
    "second_script": "its other script",
    "other_script": "foreign script",
    "mixed_script": "mixed scripts in a word",
    "loops": "end in a loop",
    "ended": "ended by itself",
    "unseen_words": "words not in training text",
    "unseen_endings": "endings neither",
}
MAX_CODES = 6


def measures(scores: Json) -> list[MeasureView]:
    """Return a row for each candidate and mode, the held-out text last."""
    from anadil.page.charts import Estimate, intervals  # whose packages a command without the report lacks

    rows, drawn = [], []
    for name, candidate in candidates_of(scores).items():
        for mode, shares in named_tables(candidate.get("writing")):
            label = f"{name}, {clip(mode, 20)}"
            rows.append(_row(label, shares, _codes(candidate)))
            ends = [number(end) for end in list_of(field(shares, "sound.interval"))]
            if (value := number(field(shares, "sound.value"))) is not None and len(ends) == 2:
                low, high = ((value if end is None else end) for end in ends)
                drawn.append(
                    Estimate(label=label, value=value, low=low, high=high, colour=COLOURS.get(name, 3))
                )
    if rows and (heldout := table_of(field(scores, "writing.heldout"))):
        rows.append(_row("held-out text", heldout, DASH))
    columns = ("written by", "texts", "words", *SHARES.values(), "identified")
    lead = (
        "Shares with 95 % intervals. A text without a fault is in the language and its script, does not loop, and an answer ends "
        "by itself. The last row shows what real text gets. Words are not in training text whatever their case and diacritics."
    )
    table = Table(
        "Language, script, loops and words of generated texts", columns, rows, words=(len(columns) - 1,)
    )
    chart = intervals("Generated texts without a fault", "share of texts, higher is better", drawn, table)
    return [MeasureView("What the models write", lead, table, chart)]


def sentences(scores: Json, name: str) -> list[str]:
    """Return the sentence of a model card on the greedy texts."""
    shares = table_of(field(scores, f"candidates.{name}.writing.greedy"))
    if number(field(shares, "sound.value")) is None:
        return []
    parts = ", ".join(
        f"{percent(field(shares, f'{key}.value'))} {label}"
        for key, label in (
            ("own_language", "are in its language and script"),
            ("loops", "end in a loop"),
            ("mixed_script", "mix scripts within a word"),
        )
    )
    return [f"Of its {figure(shares.get('texts'))} greedy texts, {parts}."]


def metrics(table: Json) -> dict[str, object]:
    """Return the shares of greedy texts, for curves over runs."""
    shares = table_of(field(table, "writing.greedy"))
    return {f"writing_{key}": field(shares, f"{key}.value") for key in SHARES}


def _row(label: str, table: Json, codes: str) -> tuple[str, ...]:
    cells = (_share(table_of(table.get(key))) for key in SHARES)
    return label, figure(table.get("texts")), figure(table.get("words")), *cells, codes


def _share(share: Json) -> str:
    ends = [percent(end) for end in list_of(share.get("interval"))]
    return f"{percent(share.get('value'))} ({' to '.join(ends)})" if len(ends) == 2 else DASH


def _codes(candidate: Json) -> str:
    by_code = table_of(field(candidate, "output_language.shares")).items()
    shares = sorted(((number(share) or 0, code) for code, share in by_code), reverse=True)
    return (
        ", ".join(f"{clip(code, 20)} {percent(share)}" for share, code in shares[:MAX_CODES] if share) or DASH
    )
