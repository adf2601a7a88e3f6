"""Texts of the candidates side by side: answers first, then continuations."""

from itertools import zip_longest
from typing import Any

from anadil.core.candidates import BY_NAME, COLOURS
from anadil.core.format import DASH, counted, number
from anadil.core.table import Table
from anadil.page.format import clip, figure, percent
from anadil.page.values import Json, candidates_of, list_of, table_of
from anadil.report.verdict import answering, released_name

MAX_PROMPTS = 24
"""Most questions, and most beginnings, on the page."""
# Questions that are there to be read; the others are in a fold.
OPEN_ANSWERS = 8
OPEN_BEGINNINGS = 2
MAX_PROMPT = 400
MAX_TEXT = 1_200
"""Characters of a generation that the page shows."""
SEEN = {False: "not seen in training", True: "seen in training", None: ""}
# Whose answers decide; the base's are in the fold.
COMPARED = (*BY_NAME, "champion")
MAX_TALK = 280
"""Characters of a text of the picture. Chosen by us: what is read at a glance."""


Prompt = dict[str, Any]
"""A prompt and what the candidates made of it, by the names of the template."""


def generations_view(candidates: dict[str, Json]) -> dict[str, Any]:
    """Build the section on answers from the candidates of `scores.json`, by the names of the template."""
    answers, beginnings = prompts_of(candidates, "answer"), prompts_of(candidates, "continuation")
    # Seen and unseen ones take turns, so that both are there to be read.
    unseen, seen, unknown = (
        [one for one in answers if one["seen"] is known] for known in (False, True, None)
    )
    turns = [one for pair in zip_longest(unseen, seen) for one in pair if one]
    shown = [*turns, *unknown][:MAX_PROMPTS]
    hidden = [
        f"{MAX_PROMPTS} of {len(prompts):,} {word} are shown; scores.json holds all."
        for prompts, word in ((answers, "questions"), (beginnings, "beginnings"))
        if len(prompts) > MAX_PROMPTS
    ]
    return {
        "answers": shown[:OPEN_ANSWERS],
        "more_answers": shown[OPEN_ANSWERS:],
        "summary": _summary(candidates),
        "beginnings": beginnings[:OPEN_BEGINNINGS],
        "more_beginnings": beginnings[OPEN_BEGINNINGS:MAX_PROMPTS],
        "hidden": " ".join(hidden),
    }


def prompts_of(candidates: dict[str, Json], kind: str) -> list[Prompt]:
    """Texts for each prompt of a kind (`answer` or `continuation`), in the order of the first candidate."""
    by_prompt: dict[str, list[tuple[str, Json]]] = {}
    for name, item in candidates.items():
        for line in map(table_of, list_of(item.get("generations"))):
            if (line.get("kind") == "answer") == (kind == "answer"):
                by_prompt.setdefault(str(line.get("prompt") or ""), []).append((name, line))
    return [_prompt(text, lines, kind) for text, lines in by_prompt.items()]


def is_greedy(line: Json) -> bool:
    """True for greedy decoding; scores of other programs may name no mode, and greedy is what they report."""
    return line.get("mode") in ("greedy", None)


def greedy_texts(candidate: Json, *, answers: bool) -> list[Json]:
    """Greedy texts of a candidate: its answers, or its continuations."""
    texts = map(table_of, list_of(candidate.get("generations")))
    return [each for each in texts if (each.get("kind") == "answer") == answers and is_greedy(each)]


def _prompt(text: str, lines: list[tuple[str, Json]], kind: str) -> Prompt:
    compared = [name for name, _ in lines if name in COMPARED]
    first: list[dict[str, Any]] = []
    # In the fold: sampled texts, and what the base wrote.
    rest: list[dict[str, Any]] = []
    for name, line in lines:
        beside = kind == "answer" and bool(compared) and name not in COMPARED
        (first if is_greedy(line) and not beside else rest).append(_generation(name, text, line))
    seen = next((flag for _, line in lines if isinstance(flag := line.get("seen"), bool)), None)
    reference = next((line["reference"] for _, line in lines if line.get("reference")), "")
    return {
        "text": clip(text, MAX_PROMPT), "seen": seen, "seen_words": SEEN[seen], "reference": clip(reference, MAX_TEXT),
        "made": first, "others": rest,
    }  # fmt: skip


def _generation(name: str, prompt: str, line: Json) -> dict[str, Any]:
    badges = [("exact", "word for word")] if line.get("exact") is True else []
    if line.get("loop") is True:
        badges.append(("loop", "loops"))
    note = [] if is_greedy(line) else [clip(line.get("mode"), 40)]
    if number(line.get("chrf")) is not None:
        note.append(f"chrF {figure(line['chrf'], 3)}")
    if (tokens := number(line.get("num_tokens"))) is not None:
        note.append(f"{figure(tokens)} {'token' if tokens == 1 else 'tokens'}")
    if line.get("language"):
        note.append(f"language {clip(line['language'], 20)}")
    if isinstance(ended := line.get("ended"), bool):
        note.append("ended by itself" if ended else "cut at the limit")
    return {
        "candidate": clip(name, 40),
        "text": clip(str(line.get("text") or "").removeprefix(prompt).strip(), MAX_TEXT),
        "badges": badges,
        "note": ", ".join(note),
        "style": name if name in COLOURS else "",
    }


def _summary(candidates: dict[str, Json]) -> Table:
    """Greedy answers that have a reference, by candidate and by whether training has seen the question."""
    rows = []
    for seen in (False, True):
        for name in (name for name in COMPARED if name in candidates):
            lines = map(table_of, list_of(candidates[name].get("generations")))
            greedy = [each for each in lines if each.get("seen") is seen and is_greedy(each)]
            if known := [each for each in greedy if isinstance(each.get("exact"), bool)]:
                exact = sum(each["exact"] is True for each in known)
                ended = [each["ended"] for each in known if isinstance(each.get("ended"), bool)]
                words = f"{figure(exact)} ({percent(exact / len(known))})"
                by_itself = percent(ended.count(True) / len(ended)) if ended else DASH
                rows.append((f"{name}, {SEEN[seen]}", figure(len(known)), words, by_itself))
    columns = ("candidate", "questions", "word for word", "ended")
    return Table("Greedy answers that are the reference, word for word", columns, rows)


def talk_view(scores: Json) -> dict[str, Any] | None:
    """Build the picture of the released model's sample; None if none is released or nothing was asked."""
    name, candidates = released_name(scores), candidates_of(scores)
    answers = name in answering(scores)
    sample = sample_of(candidates.get(name, {}), answers=answers)
    if sample is None:
        return None
    prompt = str(sample.get("prompt") or "")
    said = [(name, sample)]
    # The base on the same text shows what training gave.
    # Sampled texts are left out: they differ from seed to seed.
    others = greedy_texts(candidates.get("base", {}), answers=answers)
    said += [("base", each) for each in others if each.get("prompt") == prompt][:1]
    return {
        "prompt": clip(prompt, MAX_TALK),
        "note": _note(sample, greedy_texts(candidates[name], answers=answers)),
        "said": [
            (who, clip(str(each.get("text") or "").removeprefix(prompt).strip(), MAX_TALK))
            for who, each in said
        ],
        "answers": answers,
    }


def sample_of(candidate: Json, *, answers: bool) -> Json | None:
    """Greedy text that shows a model: the first right answer to a question that training had not seen, else the first text."""
    # The pipeline knows whether training saw a question only if the question has a known answer.
    order = {"False": 0, "None": 1}

    def rank(text: Json) -> tuple[int, bool]:
        return order.get(str(text.get("seen")), 2), text.get("exact") is not True

    return min(greedy_texts(candidate, answers=answers), key=rank, default=None)


def _note(sample: Json, texts: list[Json]) -> str:
    """How often such questions are answered word for word, so that nobody takes the sample for all of them."""
    seen = sample.get("seen")
    if not isinstance(seen, bool):
        return ""
    alike = [each for each in texts if each.get("seen") is seen]
    exact = sum(each.get("exact") is True for each in alike)
    return f"{SEEN[seen]}; {exact} of {counted(len(alike), 'such question')} answered word for word"
