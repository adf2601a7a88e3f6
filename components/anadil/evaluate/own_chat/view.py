"""How pages and cards show what became of the base's own chat format."""

from collections.abc import Sequence

from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.page.format import clip, figure
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, share_words, table_of
from anadil.text.language import load_language

SHARES = {
    "sound": "sound",
    "ended": "ended",
    "empty": "empty",
    "loop": "loop",
    "own_language": "in its language",
}
OUTCOMES = {"survived": "survived", "damaged": "is damaged", "lost": "is lost"}
MAX_ERROR = 300  # Characters of an error of a template, which may quote the whole of it.


def measures(scores: Json) -> tuple[MeasureView, ...]:
    """Return the table of answers in the base's chat format, and below it what became of that."""
    rows, names = [], list(candidates_of(scores))
    for name in names:
        chat = table_of(field(scores, f"candidates.{name}.own_chat"))
        if shares := table_of(chat.get("shares")):
            cells = (share_words(shares.get(key)) for key in SHARES)
            outcome = "before training" if name == "base" else str(chat.get("outcome") or DASH)
            rows.append((name, figure(chat.get("num")), *cells, outcome))
    columns = ("candidate", "answers", *SHARES.values(), "chat format")
    # The note stands on the page and in Markdown.
    note = " ".join(filter(None, (_sentence(scores, name) for name in names if name != "base")))
    table = Table(
        "Answers in the base's own chat format", columns, rows, words=(len(columns) - 1,), note=note
    )
    lead = "A sound answer ends its turn, says something, does not loop and is in the base's language."
    return (MeasureView("The base's own chat format", lead, table),)


def sentences(scores: Json, name: str) -> list[str]:
    """Return the sentence of a model card on the base's chat format."""
    return [text] if (text := _sentence(scores, name)) else []


def _sentence(scores: Json, name: str) -> str:
    """Return what became of the base's chat format in a candidate; empty for a base that is not post-trained."""
    facts, chat = table_of(scores.get("own_chat")), table_of(field(scores, f"candidates.{name}.own_chat"))
    if error := facts.get("error"):
        return f"The base is post-trained, but nobody was asked in its chat format: {clip(error, MAX_ERROR)}."
    if error := chat.get("error"):
        return f"The {name} model was not asked in the base's chat format: {clip(error, MAX_ERROR)}."
    if not facts or not chat:
        return ""
    language = load_language(str(facts.get("language"))).name
    after, before = (_num_sound(scores, each) for each in (name, "base"))
    counts = f"{after} of {figure(chat.get('num'))} answers in {language} are sound, {before} of the base's"
    outcome = OUTCOMES.get(str(chat.get("outcome")))
    if outcome is None:
        return f"The base itself gives too few sound answers to tell of its chat format in the {name} model: {counts}."
    return f"The base's chat format {outcome} in the {name} model: {counts}."


def warnings(scores: Json, names: Sequence[str]) -> list[str]:
    """Return the sentences of candidates whose chat format did not survive, or could not be asked for."""
    sentences = {
        name: _sentence(scores, name)
        for name in names
        if field(scores, f"candidates.{name}.own_chat.outcome") != "survived"
    }
    # The base's own error is the same for all.
    return list(dict.fromkeys(filter(None, sentences.values())))


def _num_sound(scores: Json, name: str) -> str:
    share = table_of(field(scores, f"candidates.{name}.own_chat.shares.sound"))
    return figure(round((number(share.get("value")) or 0) * (number(share.get("num")) or 0)))
