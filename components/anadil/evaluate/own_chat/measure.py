"""Questions of a post-trained base's own language, asked in its own chat format before and after training.

A base that reads nothing but running text for a while may forget how to answer. Bits per byte do not show that. A few
greedy answers do: those of a 135M in FP32 take 28 CPU seconds a candidate.
"""

import copy
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from anadil.artifacts.base_kind import BaseKind, base_kind, card_fields, words_of_field
from anadil.core.errors import AnadilError, DataError
from anadil.evaluate.generate import language_of
from anadil.evaluate.measures import Asked, Evaluator, Tables
from anadil.evaluate.models import CandidateModel, ScoredModel
from anadil.model.chat_ids import ControlWords, chat_ids
from anadil.model.chat_template import end_ids, rendered
from anadil.model.decoding import Continuation, text_of
from anadil.model.template_limits import RAISED
from anadil.text.language import find_language, language_codes, load_language
from anadil.text.language_data import Language
from anadil.text.metrics import is_loop, share_figures

log = logging.getLogger(__name__)

ENGLISH = "en"
QUESTIONS = Path(__file__).parents[2] / "builtin" / ENGLISH / "questions.jsonl"
MAX_NEW_TOKENS = 96
"""Tokens of an answer at most. The questions ask for a sentence or two."""
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
"""System turn of a template that refuses a chat without one."""
VARIABLES = {"enable_thinking": False, "date_string": "26 Jul 2024"}
"""Variables of templates, which others ignore. Qwen3's thinks no longer, since a chain of thought does not end within the
limit; Llama 3.2's writes its own default date, since today's would change the answers from day to day."""
ANSWER, NEXT = "This is my answer", "And then?"
MIN_SOUND = 0.5
"""Least share of sound answers of the base from which on a loss can be told. Chosen by us."""
LOST = 0.25
"""Share of the base's sound answers, under which its chat format is called lost. Chosen by us."""
SURE = 0.05
"""Probability of a one-sided sign test, under which fewer sound answers are no accident."""

Outcome = Literal["survived", "damaged", "lost", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChat(Evaluator):
    """How the candidates are asked in the base's own chat format, or why nobody is."""

    kind: BaseKind
    error: str = ""
    """Reason why nobody is asked."""
    language: Language = field(default_factory=lambda: load_language(ENGLISH))
    questions: tuple[str, ...] = ()
    template: str = ""
    system: bool = False
    """The template wants a system turn."""
    end: str = ""
    """Token that ends a turn; empty where the template writes none, and every end of a text counts."""

    def turns(self, question: str) -> list[dict[str, str]]:
        """Return a chat of one question."""
        return [*([SYSTEM] if self.system else []), {"role": "user", "content": question}]

    def measure(self, loaded: CandidateModel, _: Mapping[str, Any], /) -> dict[str, Any] | None:
        """Let a candidate answer in the base's chat format; return its shares with intervals, and its answers."""
        candidate = loaded.candidate
        # A champion may have come from another base.
        if not self.questions or candidate.name == "champion":
            return None
        try:
            prompts = own_chat_prompts(candidate, self, self.questions)
        except DataError as error:
            log.warning("%s: not asked in the base's chat format: %s", candidate.name, error)
            return {"error": str(error)}
        answers = []
        for question, row in zip(self.questions, prompts.answers(loaded, MAX_NEW_TOKENS), strict=True):
            text = text_of(prompts.tokenizer, row.tokens)
            answers.append({
                "question": question, "text": text, "num_tokens": len(row.tokens), "ended": row.ended,
                "empty": not any(map(str.isalnum, text)), "loop": is_loop(row.tokens),
                "language": language_of(text, self.language),
            })  # fmt: skip
        code = self.language.code
        marks = {name: [bool(each[name]) for each in answers] for name in ("ended", "empty", "loop")}
        # An answer of a few letters is in no language.
        marks["own_language"] = [each["language"] == code for each in answers if each["language"] is not None]
        marks["sound"] = [is_sound(each, code) for each in answers]
        shares = {name: share_figures(each) for name, each in marks.items()}
        figures = {"num": len(answers), "shares": shares, "answers": answers}
        sound = sum(_sound({"own_chat": figures}, self))
        log.info(
            "%s: in the base's chat format %d of %d answers are sound", candidate.name, sound, len(answers)
        )
        return figures

    def compare(self, tables: Tables) -> None:
        """Add to each candidate's figures what became of the base's chat format, question by question."""
        if not self.questions:
            return
        before = _sound(tables["base"], self)
        for name, table in tables.items():
            if name == "base" or not (after := _sound(table, self)):
                continue
            outcome = table["own_chat"]["outcome"] = outcome_of(before, after)
            log.log(
                logging.INFO if outcome == "survived" else logging.WARNING,
                "%s: the base's chat format: %s (sound answers %d, of the base %d, of %d questions)",
                name, outcome, sum(after), sum(before), len(before),
            )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Entry of `scores.json` over all candidates."""
        if self.error:
            return asdict(self.kind) | {"error": self.error}
        return {
            **asdict(self.kind), "language": self.language.code, "questions": len(self.questions), "end": self.end,
            "system_turn": SYSTEM["content"] if self.system else None, "max_new_tokens": MAX_NEW_TOKENS,
        }  # fmt: skip


def prepare(asked: Asked) -> OwnChat | None:
    """Return how to ask the candidates in the base's chat format; None for a base that is not post-trained."""
    base, name = asked.candidates[0], asked.recipe.base.model
    chat, kind = open_own_chat(name, base), base_kind(base.path, name)
    if chat is None:
        if kind.kind == "unknown":
            log.info("kind of the base: unknown (%s), so nobody is asked in its chat format", kind.clause)
    elif chat.error:
        log.warning(
            "the base is post-trained (%s), but not asked in its chat format: %s", kind.clause, chat.error
        )
    else:
        log.info(
            "the base is post-trained (%s): each candidate answers %d questions in %s in its chat format, of %d tokens at most",
            kind.clause, len(chat.questions), chat.language.name, MAX_NEW_TOKENS,
        )  # fmt: skip
    return chat


@lru_cache(maxsize=1)  # for two measures
def open_own_chat(name: str, base: ScoredModel) -> OwnChat | None:
    """Return how to ask in a base's chat format; None for a base that is not post-trained."""
    kind = base_kind(base.path, name)
    if not kind.is_post_trained:
        return None
    try:
        return _how(kind, base)
    except DataError as error:
        return OwnChat(kind=kind, error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Questions as a candidate gets them, and how its answers end."""

    tokenizer: Any
    ids: list[list[int]]
    ends: list[int] | None = None
    """Tokens that end an answer; None: those of the tokenizer."""

    def answers(self, loaded: CandidateModel, max_new_tokens: int) -> list[Continuation]:
        """Let a candidate answer greedily, in order."""
        batches = loaded.decoder(self.tokenizer, self.ends).batches(
            self.ids, [[None]] * len(self.ids), max_new_tokens=max_new_tokens
        )
        rows = {place: row for place, [row] in batches}
        stops = set(end_ids(self.tokenizer)) - set(self.ends or ())
        return [_until(rows[place], stops) for place in range(len(self.ids))]


def _until(row: Continuation, stops: set[int]) -> Continuation:
    # A turn that ends as a document does is not in the chat format; what follows is another document.
    length = next((at for at, token in enumerate(row.tokens) if token in stops), None)
    return row if length is None else Continuation(tokens=row.tokens[:length], ended=False)


def own_chat_prompts(candidate: ScoredModel, asked: OwnChat, questions: Sequence[str]) -> Prompts:
    """Return questions to a candidate in the base's chat format."""
    vocabulary = candidate.tokenizer.get_vocab()
    if asked.end and asked.end not in vocabulary:
        raise DataError(f"its vocabulary lacks {asked.end}")
    # A copy: the candidate's own questions are asked through its own template, which finetuning may have changed.
    tokenizer: Any = copy.copy(candidate.tokenizer)
    tokenizer.chat_template = asked.template
    ids = [
        chat_ids(tokenizer, asked.turns(each), add_generation_prompt=True, **VARIABLES) for each in questions
    ]
    return Prompts(tokenizer=tokenizer, ids=ids, ends=[vocabulary[asked.end]] if asked.end else None)


def _sound(table: Mapping[str, Any], asked: OwnChat) -> list[bool]:
    answers = table.get("own_chat", {}).get("answers", ())
    return [is_sound(each, asked.language.code) for each in answers]


def outcome_of(before: Sequence[bool], after: Sequence[bool]) -> Outcome:
    """Return what became of sound answers to the same questions.

    `damaged` and `lost` ask for fewer than chance gives (one-sided sign test over the questions that differ).
    """
    if sum(before) < MIN_SOUND * len(before):
        return "unknown"
    pairs = list(zip(before, after, strict=True))
    worse, better = pairs.count((True, False)), pairs.count((False, True))
    differ = worse + better
    chance = sum(math.comb(differ, each) for each in range(worse, differ + 1)) / 2**differ
    if chance >= SURE:
        return "survived"
    return "lost" if sum(after) < LOST * sum(before) else "damaged"


def is_sound(answer: Mapping[str, Any], language: str) -> bool:
    """True for an answer that ended its turn, says something, does not loop and is in the language, or too short to tell."""
    in_language = answer["language"] in (None, language)
    return bool(answer["ended"] and not answer["empty"] and not answer["loop"] and in_language)


def _how(kind: BaseKind, base: ScoredModel) -> OwnChat:
    language, questions = _questions(base.path)
    tokenizer: Any = base.tokenizer
    user = {"role": "user", "content": questions[0]}
    turns = [user, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": NEXT}]
    fault = ""
    for system in ([], [SYSTEM]):
        try:
            asked = _render(tokenizer, [*system, user], add_generation_prompt=True)
            chat = _render(tokenizer, [*system, *turns])
        except (*RAISED, AnadilError) as error:
            fault = fault or f"{type(error).__name__}: {error}"
            continue
        # Jinja writes nothing for what is not there, such as the parts of a content that is text.
        if questions[0].casefold() not in asked.casefold():
            fault = fault or f"it writes {asked[:60]!r}"
            continue
        match = ControlWords(tokenizer).pattern.search(chat.partition(ANSWER)[2].partition(NEXT)[0])
        return OwnChat(
            kind=kind, language=language, questions=questions, template=tokenizer.get_chat_template(),
            system=bool(system), end=match[0] if match else "",
        )  # fmt: skip
    raise DataError(f"{base.path}: its chat template does not render a question ({fault})")


def _render(tokenizer: Any, turns: Sequence[Mapping[str, str]], **settings: Any) -> str:
    return str(rendered(tokenizer, turns, tokenize=False, **VARIABLES, **settings))


def _questions(folder: Path) -> tuple[Language, tuple[str, ...]]:
    """Return the language that a base is asked in, with questions: English, unless its card lists other languages alone."""
    rows = map(find_language, words_of_field(card_fields(folder), "language"))
    codes = [row.code for row in rows if row]
    if not codes or ENGLISH in codes:
        lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
        return load_language(ENGLISH), tuple(json.loads(line)["text"] for line in lines)
    for code in codes:
        # Only packs that are shipped have questions.
        if code in language_codes() and (questions := load_language(code).questions):
            return load_language(code), questions
    raise DataError(
        f"{folder}: its card names {', '.join(codes)}, and there are no questions in that language"
    )
