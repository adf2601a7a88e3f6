"""The section on generations: what each candidate made of the same prompts, side by side."""

from dataclasses import dataclass

from anadil.core.format import number
from anadil.report.elements import TextTable, records_table
from anadil.report.format import clip, figure, words_of
from anadil.report.read import Json, list_of, named_tables, table_of
from anadil.report.scores_view import COLOURS

MAX_PROMPTS = 24
MAX_PROMPT = 400
MAX_TEXT = 1_200
"""Characters of a generation that the page shows."""
MAX_REPETITION_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateText:
    """What one candidate made of a prompt."""

    candidate: str
    text: str
    loops: bool
    note: str
    style: str
    """Class of the style sheet; empty for a candidate that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView:
    """One prompt and what the candidates made of it, by way of decoding."""

    text: str
    kind: str
    modes: tuple[tuple[str, tuple[CandidateText, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationsView:
    """Section 6."""

    prompts: tuple[PromptView, ...]
    hidden: str
    """What the page leaves out; empty if nothing."""
    repetition: TextTable


def generations_view(candidates: dict[str, Json]) -> GenerationsView:
    """What the candidates of `scores.json` wrote."""
    prompts = _prompts(candidates)
    return GenerationsView(
        prompts=prompts[:MAX_PROMPTS], hidden=_hidden(len(prompts)), repetition=_repetition(candidates)
    )


def _prompts(candidates: dict[str, Json]) -> tuple[PromptView, ...]:
    found: dict[tuple[str, str], dict[str, list[CandidateText]]] = {}
    for name, item in candidates.items():
        for entry in list_of(item.get("generations")):
            line = table_of(entry)
            text, kind, mode = (str(line.get(key) or "") for key in ("prompt", "kind", "mode"))
            modes = found.setdefault((text, kind), {})
            modes.setdefault(clip(mode, 40), []).append(_generation(name, text, line))
    return tuple(
        PromptView(
            text=clip(text, MAX_PROMPT),
            kind="Question" if kind == "answer" else "Beginning",
            modes=tuple((mode, tuple(made)) for mode, made in modes.items()),
        )
        for (text, kind), modes in found.items()
    )


def _generation(name: str, prompt: str, line: Json) -> CandidateText:
    text = str(line.get("text") or "").removeprefix(prompt).strip()
    note = []
    if number(line.get("num_tokens")) is not None:
        note.append(f"{figure(line['num_tokens'])} tokens")
    if number(line.get("distinct_2")) is not None:
        note.append(f"distinct-2 {figure(line['distinct_2'], 3)}")
    if isinstance(ended := line.get("ended"), bool):
        note.append("ended by itself" if ended else "cut at the limit")
    return CandidateText(
        candidate=clip(name, 40),
        text=clip(text, MAX_TEXT),
        loops=line.get("loop") is True,
        note=", ".join(note),
        style=name if name in COLOURS else "",
    )


def _hidden(num_prompts: int) -> str:
    if num_prompts <= MAX_PROMPTS:
        return ""
    return f"{MAX_PROMPTS} of {num_prompts:,} prompts are shown; scores.json holds all."


def _repetition(candidates: dict[str, Json]) -> TextTable:
    records = []
    for name, item in candidates.items():
        modes = named_tables(item.get("repetition"))
        records += [(f"{name} {words_of(mode)}", table) for mode, table in modes]
    return records_table("Repetition in generations", records[:MAX_REPETITION_ROWS], "candidate")
