"""How pages and cards show language, script, loops, ends and words of generated texts."""

from anadil.core.format import DASH, integer_if_whole, number
from anadil.core.table import Table
from anadil.page.charts import estimate, intervals
from anadil.page.format import clip, figure, percent
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, share_words, table_of

COUNTS = {"texts": "texts", "words": "words, median"}
SHARES = {
    "sound": "without a fault",
    "own_language": "in the language",
    "other_language": "other language",
    "second_script": "its other script",
    "other_script": "foreign script",
    "mixed_script": "mixed scripts in a word",
    "loops": "end in a loop",
    "ended": "ended by itself",
    "unseen_words": "of words: not in training text",
    "unseen_endings": "of words: the ending neither",
}
SAMPLED = ("sound", "own_language", "loops")
"""Shares of sampled texts that the page has, too."""
MAX_CODES = 6


def measures(scores: Json) -> list[MeasureView]:
    """Return the shares of the candidates side by side, the held-out text last."""
    candidates = {name: each for name, each in candidates_of(scores).items() if each.get("writing")}
    writers = {name: table_of(each["writing"]) for name, each in candidates.items()}
    greedy = {name: table_of(each.get("greedy")) for name, each in writers.items()}
    columns = greedy | {"held-out text": table_of(field(scores, "writing.heldout"))}
    rows = [
        (label, *(figure(integer_if_whole(number(each.get(key)) or 0)) for each in columns.values()))
        for key, label in COUNTS.items()
    ]
    rows += [
        (label, *(share_words(each.get(key)) for each in columns.values())) for key, label in SHARES.items()
    ]
    for key in SAMPLED:
        shares = (share_words(field(each, f"sampled.{key}")) for each in writers.values())
        rows.append((f"sampled: {SHARES[key]}", *shares, DASH))
    rows.append(("identified", *map(_codes, candidates.values()), DASH))
    drawn = [
        row
        for name, each in greedy.items()
        for row in estimate(name, name, field(each, "sound.value"), field(each, "sound.interval"))
    ]
    lead = (
        "Greedy texts, with 95 % intervals. A text without a fault is in the language and its script, is not empty, does not loop, "
        "and an answer ends by itself. The last column shows what real text gets. Case and diacritics do not make a word unseen."
    )
    table = Table(
        "Language, script, loops and words of generated texts",
        ("share of texts", *columns),
        rows if candidates else (),
    )
    chart = intervals("Greedy texts without a fault", "share of texts, higher is better", drawn, table)
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
        if number(field(shares, f"{key}.value")) is not None
    )
    return [f"Of its {figure(shares.get('texts'))} greedy texts, {parts}."]


def metrics(table: Json) -> dict[str, object]:
    """Return the shares of greedy texts, for curves over runs."""
    shares = table_of(field(table, "writing.greedy"))
    return {f"writing_{key}": field(shares, f"{key}.value") for key in SHARES}


def _codes(candidate: Json) -> str:
    by_code = table_of(field(candidate, "output_language.shares")).items()
    shares = sorted(((number(share) or 0, code) for code, share in by_code), reverse=True)
    return (
        ", ".join(f"{clip(code, 20)} {percent(share)}" for share, code in shares[:MAX_CODES] if share) or DASH
    )
