"""Texts of the candidates side by side: answers first, then continuations."""

from collections.abc import Iterable
from dataclasses import dataclass

from anadil.core.format import DASH, number
from anadil.report.elements import TextTable, records_table
from anadil.report.format import clip, figure, percent, words_of
from anadil.report.read import Json, list_of, named_tables, table_of
from anadil.report.verdict import COLOURS

MAX_PROMPTS = 24
"""Most questions, and most beginnings, on the page."""
OPEN_ANSWERS = 8
"""Questions that are there to be read; the others are in a fold."""
OPEN_BEGINNINGS = 2
MAX_PROMPT = 400
MAX_TEXT = 1_200
"""Characters of a generation that the page shows."""
MAX_REPETITION_ROWS = 40
SEEN = {False: "not seen in training", True: "seen in training", None: ""}
COMPARED = ("adapted", "finetuned", "champion")
"""Whose answers decide; the base's are in the fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateText:
    """One candidate's text for a prompt."""

    candidate: str
    text: str
    badges: tuple[tuple[str, str], ...]
    """(class of the style sheet, word): loops, word for word."""
    note: str
    style: str
    """Class of the style sheet; empty for a candidate that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView:
    """One prompt and what the candidates made of it by greedy decoding."""

    text: str
    seen: bool | None
    """Training has seen the question; None if unknown."""
    seen_words: str
    reference: str
    """The right answer; empty where there is none."""
    made: tuple[CandidateText, ...]
    others: tuple[CandidateText, ...]
    """Sampled texts, and what the base wrote: in the fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationsView:
    """The first section."""

    answers: tuple[PromptView, ...]
    more_answers: tuple[PromptView, ...]
    summary: TextTable
    """How many answers are those of the reference, by candidate; no rows where nothing says it."""
    beginnings: tuple[PromptView, ...]
    more_beginnings: tuple[PromptView, ...]
    hidden: str
    """Prompts that the page leaves out, in words; empty for none."""
    repetition: TextTable


def generations_view(candidates: dict[str, Json]) -> GenerationsView:
    """Build the section on answers from the candidates of `scores.json`."""
    answers, beginnings = prompts_of(candidates, "answer"), prompts_of(candidates, "continuation")
    shown = chosen_prompts(answers)
    return GenerationsView(
        answers=shown[:OPEN_ANSWERS],
        more_answers=shown[OPEN_ANSWERS:],
        summary=_summary(candidates),
        beginnings=beginnings[:OPEN_BEGINNINGS],
        more_beginnings=beginnings[OPEN_BEGINNINGS:MAX_PROMPTS],
        hidden=" ".join(filter(None, (_hidden(answers, "questions"), _hidden(beginnings, "beginnings")))),
        repetition=_repetition(candidates),
    )


def prompts_of(candidates: dict[str, Json], kind: str) -> tuple[PromptView, ...]:
    """Texts for each prompt of a kind (`answer` or `continuation`), in the order of the first candidate."""
    by_prompt: dict[str, list[tuple[str, Json]]] = {}
    for name, item in candidates.items():
        for entry in list_of(item.get("generations")):
            line = table_of(entry)
            if (line.get("kind") == "answer") == (kind == "answer"):
                by_prompt.setdefault(str(line.get("prompt") or ""), []).append((name, line))
    return tuple(_prompt(text, lines, kind) for text, lines in by_prompt.items())


def _prompt(text: str, lines: list[tuple[str, Json]], kind: str) -> PromptView:
    compared = [name for name, _ in lines if name in COMPARED]
    first: list[CandidateText] = []
    rest: list[CandidateText] = []
    for name, line in lines:
        beside = kind == "answer" and bool(compared) and name not in COMPARED
        # Scores of other programs may name no mode; greedy is what they report.
        greedy = line.get("mode") in ("greedy", None)
        (first if greedy and not beside else rest).append(_generation(name, text, line, greedy=greedy))
    seen = next((line["seen"] for _, line in lines if isinstance(line.get("seen"), bool)), None)
    seen = seen if isinstance(seen, bool) else None
    return PromptView(
        text=clip(text, MAX_PROMPT),
        seen=seen,
        seen_words=SEEN[seen],
        reference=clip(next((line["reference"] for _, line in lines if line.get("reference")), ""), MAX_TEXT),
        made=tuple(first),
        others=tuple(rest),
    )


def _generation(name: str, prompt: str, line: Json, *, greedy: bool) -> CandidateText:
    badges = [("exact", "word for word")] if line.get("exact") is True else []
    if line.get("loop") is True:
        badges.append(("loop", "loops"))
    note = []
    if not greedy:
        note.append(clip(line.get("mode"), 40))
    if number(line.get("chrf")) is not None:
        note.append(f"chrF {figure(line['chrf'], 3)}")
    if (tokens := number(line.get("num_tokens"))) is not None:
        note.append(f"{figure(tokens)} {'token' if tokens == 1 else 'tokens'}")
    if line.get("language"):
        note.append(f"language {clip(line['language'], 20)}")
    if isinstance(ended := line.get("ended"), bool):
        note.append("ended by itself" if ended else "cut at the limit")
    return CandidateText(
        candidate=clip(name, 40),
        text=clip(str(line.get("text") or "").removeprefix(prompt).strip(), MAX_TEXT),
        badges=tuple(badges),
        note=", ".join(note),
        style=name if name in COLOURS else "",
    )


def chosen_prompts(answers: tuple[PromptView, ...]) -> tuple[PromptView, ...]:
    """At most `MAX_PROMPTS`; seen and unseen ones take turns, so that both are there to be read."""
    unseen, seen, unknown = ([one for one in answers if one.seen is known] for known in (False, True, None))
    longest = max(len(unseen), len(seen))
    turns = [group[place] for place in range(longest) for group in (unseen, seen) if place < len(group)]
    return tuple([*turns, *unknown][:MAX_PROMPTS])


def _summary(candidates: dict[str, Json]) -> TextTable:
    """Greedy answers that have a reference, by candidate and by whether training has seen the question."""
    rows = []
    for seen in (False, True):
        for name, item in ((name, candidates[name]) for name in COMPARED if name in candidates):
            lines = [table_of(entry) for entry in list_of(item.get("generations"))]
            own = [
                each for each in lines if each.get("seen") is seen and each.get("mode") in ("greedy", None)
            ]
            known = [each for each in own if isinstance(each.get("exact"), bool)]
            if known:
                rows.append(_summary_row(f"{name}, {SEEN[seen]}", known))
    return TextTable(
        caption="Greedy answers that are the reference, word for word",
        columns=("candidate", "questions", "word for word", "ended"),
        rows=tuple(rows),
    )


def _summary_row(label: str, lines: list[Json]) -> tuple[str, ...]:
    exact = sum(each.get("exact") is True for each in lines)
    ended = [each["ended"] for each in lines if isinstance(each.get("ended"), bool)]
    return (
        label,
        figure(len(lines)),
        f"{figure(exact)} ({percent(exact / len(lines))})",
        percent(ended.count(True) / len(ended)) if ended else DASH,
    )


def _hidden(prompts: Iterable[PromptView], word: str) -> str:
    count = len(tuple(prompts))
    return (
        "" if count <= MAX_PROMPTS else f"{MAX_PROMPTS} of {count:,} {word} are shown; scores.json holds all."
    )


def _repetition(candidates: dict[str, Json]) -> TextTable:
    records = []
    for name, item in candidates.items():
        modes = named_tables(item.get("repetition"))
        records += [(f"{name} {words_of(mode)}", table) for mode, table in modes]
    return records_table("Repetition in generations", records[:MAX_REPETITION_ROWS], "candidate")
