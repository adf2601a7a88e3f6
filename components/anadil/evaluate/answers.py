"""Questions with known answers: likelihood, the model's own answers, choices."""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from anadil.evaluate.bits_per_byte import Ids
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.choices import choice_figures
from anadil.evaluate.generate import GeneratedText, GenerationPrompt, generate_texts
from anadil.evaluate.models import LoadedModel
from anadil.evaluate.questions import Questions, Rendering, render, renderings_of
from anadil.text.metrics import SURE_DOCUMENTS, bits_per_byte

log = logging.getLogger(__name__)

MIN_ANSWER_TOKENS = 16
ROOM = 1.25
"""Tokens that an answer may have at least, over those of the right one. Chosen by us: a good answer in other words
is seldom longer, and a model that does not stop costs little."""
WIDTHS = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFF01, 0xFFEF)}
"""Full-width and half-width forms -> the usual ones. Source: Unicode 15, the block of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScores:
    """Measures of one candidate's answers."""

    table: dict[str, Any]
    """Its part of the candidate's entry in `scores.json`."""
    nats: NDArray[np.float64]
    """Nats of the right answer, by question."""
    generations: tuple[GeneratedText, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Questions as a model gets them."""

    how: Rendering
    prompts: Sequence[Ids]
    nats: NDArray[np.float64]


def measure_answers(
    loaded: LoadedModel, questions: Questions, references: Sequence[Ids], seed: int
) -> AnswerScores:
    """Score the right answers, let the model answer, and let it choose."""
    if not questions.listed:
        return AnswerScores(table={}, nats=np.zeros(0), generations=())
    ways = renderings_of(loaded.candidate, questions.listed)
    renderings = [_score(loaded, questions, references, how) for how in ways]
    # The better form counts, or a model would seem worse for not knowing the template.
    best = min(renderings, key=lambda one: float(one.nats.sum()))
    written = _written(loaded, questions, best, references, seed)
    table: dict[str, Any] = {}
    for key, seen in (("questions", False), ("seen_questions", True)):
        members = np.flatnonzero(questions.is_seen == seen)
        if len(members):
            own = [written[place] for place in members.tolist() if place in written]
            table[key] = _figures(questions, best, members, own, seed) | {
                "renderings": {one.how: _bits(questions, one.nats, members) for one in renderings}
            }
    if choices := choice_figures(loaded, questions, best.prompts):
        table["choices"] = choices
    _log(loaded.candidate.name, table)
    return AnswerScores(table=table, nats=best.nats, generations=tuple(written.values()))


def _score(loaded: LoadedModel, questions: Questions, references: Sequence[Ids], how: Rendering) -> _Asked:
    prompts = render(loaded.candidate, questions.listed, how)
    return _Asked(how=how, prompts=prompts, nats=loaded.answer_nats(prompts, references))


def _written(
    loaded: LoadedModel, questions: Questions, asked: _Asked, references: Sequence[Ids], seed: int
) -> dict[int, GeneratedText]:
    """By place the greedy answer to each question that is asked; those of one length are written together."""
    by_room: dict[int, list[int]] = defaultdict(list)
    for place in sorted(questions.asked):
        room = max(MIN_ANSWER_TOKENS, int(ROOM * len(references[place])) + 1)
        # Powers of two, so that few groups share full batches.
        by_room[1 << (room - 1).bit_length()].append(place)
    made: dict[int, GeneratedText] = {}
    for room, places in sorted(by_room.items()):
        prompts = [_prompt(questions, asked, place) for place in places]
        texts = generate_texts(
            loaded.model, loaded.candidate.tokenizer, prompts,
            max_new_tokens=room, seed=seed, name=f"{loaded.candidate.name}, answers", modes=("greedy",),
        )  # fmt: skip
        made.update(zip(places, texts, strict=True))
    return {place: _compared(made[place], questions, place) for place in sorted(made)}


def _prompt(questions: Questions, asked: _Asked, place: int) -> GenerationPrompt:
    return GenerationPrompt(
        text=questions.listed[place].chat.questions[-1],
        kind="answer",
        chat=asked.how == "chat template",
        ids=tuple(asked.prompts[place]),
    )


def _compared(text: GeneratedText, questions: Questions, place: int) -> GeneratedText:
    question = questions.listed[place]
    return replace(
        text,
        seen=question.seen,
        reference=question.reference,
        exact=is_word_for_word(text.text, question.reference),
        chrf=float(CHRF().sentence_score(text.text, [question.reference]).score),
    )


def is_word_for_word(answer: str, reference: str) -> bool:
    """True if two texts have the same words and marks, regardless of blanks and letter forms.

    The width of a sign is such a form: clean leaves one of the two in Japanese text, chats hold both. NFKC itself would
    also make 102 of 10 squared.
    """
    return _plain(answer) == _plain(reference)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.translate(WIDTHS)).split())


def _figures(
    questions: Questions, asked: _Asked, members: NDArray[np.intp], own: Sequence[GeneratedText], seed: int
) -> dict[str, Any]:
    nats, num_bytes = asked.nats[members], questions.num_bytes[members]
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    references = [str(text.reference) for text in own]
    return {
        "num": len(members),
        "asked": len(own),
        "rendering": asked.how,
        "bits_per_byte": _bits(questions, asked.nats, members),
        "bits_per_byte_interval": [alone.low, alone.high],
        "unsure": len(members) < SURE_DOCUMENTS,
        "chrf": float(CHRF().corpus_score([text.text for text in own], [references]).score) if own else None,
        "exact": sum(bool(text.exact) for text in own) / len(own) if own else None,
        "ended": sum(text.ended for text in own) / len(own) if own else None,
    }


def _bits(questions: Questions, nats: NDArray[np.float64], members: NDArray[np.intp]) -> float:
    return bits_per_byte(float(nats[members].sum()), int(questions.num_bytes[members].sum()))


def _log(name: str, table: dict[str, Any]) -> None:
    for key, what in (("questions", "held-out"), ("seen_questions", "seen")):
        if (own := table.get(key)) and own["asked"]:
            log.info(
                "%s: %d %s questions by %s: %.4f bits per byte; of %d answers %.0f %% word for word, chrF %.1f",
                name, own["num"], what, own["rendering"], own["bits_per_byte"], own["asked"], 100 * own["exact"], own["chrf"],
            )  # fmt: skip
    for source, own in table.get("choices", {}).items():
        log.info(
            "%s: %.1f %% of %d choices of %s right, %.1f %% by chance",
            name, 100 * own["accuracy"], own["num"], source, 100 * own["chance"],
        )  # fmt: skip
