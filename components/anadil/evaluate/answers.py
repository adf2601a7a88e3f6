"""Measures of questions with known answers: likelihood, the model's own answers, choices."""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from anadil.evaluate.bits_per_byte import Ids
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.generate import GeneratedText, GenerationPrompt, generate_texts
from anadil.evaluate.models import CandidateModel
from anadil.evaluate.questions import Questions, Rendering, render, renderings_of
from anadil.model.load import encode_texts
from anadil.text.metrics import SURE_DOCUMENTS, bits_per_byte, share_interval

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
    """Questions as a model gets them, and the nats of their right answers."""

    how: Rendering
    prompts: Sequence[Ids]
    nats: NDArray[np.float64]


def measure_answers(
    loaded: CandidateModel, questions: Questions, references: Sequence[Ids], seed: int
) -> AnswerScores:
    """Score the right answers, let the model answer, and let it choose."""
    if not questions.listed:
        return AnswerScores(table={}, nats=np.zeros(0), generations=())
    renderings = []
    for how in renderings_of(loaded.candidate, questions.listed):
        prompts = render(loaded.candidate, questions.listed, how)
        renderings.append(_Asked(how=how, prompts=prompts, nats=loaded.answer_nats(prompts, references)))
    # The better form counts, or a model would seem worse for not knowing the template.
    best = min(renderings, key=lambda one: float(one.nats.sum()))
    written = _written(loaded, questions, best, references, seed)
    table: dict[str, Any] = {}
    for key, seen in (("questions", False), ("seen_questions", True)):
        members = np.flatnonzero(questions.is_seen == seen)
        if len(members):
            answers = {place: written[place] for place in members.tolist() if place in written}
            by_file: dict[str, list[bool]] = defaultdict(list)
            for place, text in answers.items():
                by_file[questions.listed[place].chat.source].append(bool(text.exact))
            table[key] = _figures(questions, best, members, [*answers.values()], seed) | {
                "renderings": {one.how: _bits(questions, one.nats, members) for one in renderings},
                "exact_by_file": {file: [sum(each), len(each)] for file, each in sorted(by_file.items())},
            }
    if choices := choice_figures(loaded, questions, best.prompts):
        table["choices"] = choices
    _log(loaded.candidate.name, table)
    return AnswerScores(table=table, nats=best.nats, generations=tuple(written.values()))


def _written(
    loaded: CandidateModel, questions: Questions, asked: _Asked, references: Sequence[Ids], seed: int
) -> dict[int, GeneratedText]:
    """Return the greedy answer to each question that is asked, by place; those of one length are written together."""
    by_room: dict[int, list[int]] = defaultdict(list)
    for place in sorted(questions.asked):
        room = max(MIN_ANSWER_TOKENS, int(ROOM * len(references[place])) + 1)
        # Powers of two, so that few groups share full batches.
        by_room[1 << (room - 1).bit_length()].append(place)
    answers: dict[int, GeneratedText] = {}
    for room, places in sorted(by_room.items()):
        prompts = [
            GenerationPrompt(
                text=questions.listed[place].chat.questions[-1], kind="answer", chat=asked.how == "chat template",
                ids=tuple(asked.prompts[place]),
            )
            for place in places
        ]  # fmt: skip
        texts = generate_texts(
            loaded.decoder(), loaded.candidate.tokenizer, prompts,
            max_new_tokens=room, seed=seed, name=f"{loaded.candidate.name}, answers", modes=("greedy",),
        )  # fmt: skip
        for place, text in zip(places, texts, strict=True):
            question = questions.listed[place]
            answers[place] = replace(
                text,
                seen=question.seen,
                reference=question.reference,
                topics=dict(question.chat.topics) or None,
                exact=is_word_for_word(text.text, question.reference),
                chrf=float(CHRF().sentence_score(text.text, [question.reference]).score),
            )
    return dict(sorted(answers.items()))


def choice_figures(
    loaded: CandidateModel, questions: Questions, prompts: Sequence[Ids]
) -> dict[str, dict[str, Any]]:
    """Return by source the share of held-out questions for which the right choice is the likeliest.

    Source: `acc_norm` of lm-evaluation-harness, with bytes in place of characters.
    """
    places = [place for place, one in enumerate(questions.listed) if one.chat.choices and not one.seen]
    texts = [(place, text) for place in places for text in questions.listed[place].chat.choices]
    encoded = encode_texts(loaded.candidate.tokenizer, [text for _, text in texts])
    nats = loaded.answer_nats([prompts[place] for place, _ in texts], encoded)
    likeliest: dict[int, tuple[float, str]] = {}
    for (place, text), nat in zip(texts, nats.tolist(), strict=True):
        # For each byte: else a model would seem to prefer whatever is short.
        rate = nat / len(text.encode())
        if place not in likeliest or rate < likeliest[place][0]:
            likeliest[place] = rate, text
    by_source: dict[str, list[int]] = defaultdict(list)
    for place in places:
        by_source[questions.listed[place].chat.source].append(place)
    table = {}
    for source, members in sorted(by_source.items()):
        share = fmean(likeliest[place][1] == questions.listed[place].reference for place in members)
        table[source] = {
            "num": len(members),
            "accuracy": share,
            "interval": share_interval(share, len(members)),
            "chance": fmean(1 / len(questions.listed[place].chat.choices) for place in members),
            "unsure": len(members) < SURE_DOCUMENTS,
        }
    return table


def is_word_for_word(answer: str, reference: str) -> bool:
    """True if two texts have the same words and marks, regardless of blanks and letter forms."""
    # The width of a sign is such a form: clean leaves one of the two in Japanese text, chats hold both. NFKC itself
    # would also make 102 of 10 squared.
    return _plain(answer) == _plain(reference)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.translate(WIDTHS)).split())


def _figures(
    questions: Questions, asked: _Asked, members: NDArray[np.intp], texts: Sequence[GeneratedText], seed: int
) -> dict[str, Any]:
    nats, num_bytes = asked.nats[members], questions.num_bytes[members]
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    answers, references = [text.text for text in texts], [str(text.reference) for text in texts]
    return {
        "num": len(members),
        "asked": len(texts),
        "rendering": asked.how,
        "bits_per_byte": _bits(questions, asked.nats, members),
        "bits_per_byte_interval": [alone.low, alone.high],
        "unsure": len(members) < SURE_DOCUMENTS,
        "chrf": float(CHRF().corpus_score(answers, [references]).score) if texts else None,
        "exact": sum(bool(text.exact) for text in texts) / len(texts) if texts else None,
        "ended": sum(text.ended for text in texts) / len(texts) if texts else None,
    }


def _bits(questions: Questions, nats: NDArray[np.float64], members: NDArray[np.intp]) -> float:
    return bits_per_byte(float(nats[members].sum()), int(questions.num_bytes[members].sum()))


def _log(name: str, table: dict[str, Any]) -> None:
    for key, what in (("questions", "held-out"), ("seen_questions", "seen")):
        if (row := table.get(key)) and row["asked"]:
            log.info(
                "%s: %d %s questions by %s: %.4f bits per byte; of %d answers %.0f %% word for word, chrF %.1f",
                name, row["num"], what, row["rendering"], row["bits_per_byte"], row["asked"], 100 * row["exact"], row["chrf"],
            )  # fmt: skip
    for source, row in table.get("choices", {}).items():
        log.info(
            "%s: %.1f %% of %d choices of %s right, %.1f %% by chance",
            name, 100 * row["accuracy"], row["num"], source, 100 * row["chance"],
        )  # fmt: skip
