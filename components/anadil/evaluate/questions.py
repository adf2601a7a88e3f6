"""Questions with known answers, as each candidate is asked them.

A question is the chat before its last answer. A model that learned chats is asked through its chat template.
Any other is scored through the template, where its tokenizer has one, and as plain text. The better of both counts, so
that no model seems to have learned an answer when all that it learned was the template.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anadil.artifacts.chat_files import (
    HELDOUT_CHATS,
    SEEN_CHATS,
    kept_chats,
    read_chats,
    refuse_no_questions,
)
from anadil.evaluate.models import ScoredModel, encode_for_all
from anadil.model.chat_ids import chat_ids
from anadil.model.chat_template import rendered
from anadil.model.load import encode_texts
from anadil.runtime.job import Job
from anadil.text.chat_columns import Names
from anadil.text.chats import Chat, DroppedChats, TopicColumns, fingerprint
from anadil.text.corpus import Document
from anadil.text.letters import Letters, letters_of

log = logging.getLogger(__name__)

KEY = "evaluate.questions"
"""Recipe key of the files."""
MAX_SCORED = 2_000
"""Questions whose answers' likelihood is measured; an interval gains little from more. Chosen by us."""
BLANK_LINE = "\n\n"
"""Separator of turns without a template."""

Rendering = Literal["chat template", "plain text"]
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and its answer."""

    chat: Chat
    seen: bool
    """Training saw it."""

    @property
    def turns(self) -> list[dict[str, str]]:
        """The question with the turns before it, for a chat template."""
        return [{"role": turn.role, "content": turn.content} for turn in self.chat.messages[:-1]]

    @property
    def reference(self) -> str:
        """The right answer."""
        return self.chat.messages[-1].content

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the right answer."""
        return len(self.reference.encode())


@dataclass(frozen=True, kw_only=True)
class Questions:
    """All questions; those that training saw come last."""

    listed: tuple[Question, ...] = ()
    asked: frozenset[int] = frozenset()
    """Places of those that each model answers itself."""
    files: tuple[str, ...] = ()
    """Where they were read; the adapter's own are not named."""

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each right answer."""
        return np.array([one.num_bytes for one in self.listed], dtype=np.int64)

    @cached_property
    def is_seen(self) -> NDArray[np.bool_]:
        """Mask of the questions that training saw."""
        return np.array([one.seen for one in self.listed], dtype=np.bool_)


def read_questions(job: Job) -> Questions:
    """Read the questions that the recipe names, or the adapter's held-out chats, and some chats that training saw."""
    files = job.side_files.get(KEY, ())
    adapter = job.inputs.get("adapter")
    heldout = (
        _chats_of_files(files, job.recipe.finetune.columns, letters_of(job.recipe.language_code))
        if files
        else _beside(adapter, HELDOUT_CHATS)
    )
    most = job.recipe.evaluate.max_questions
    asked_ids = {chat.id for chat in _sample(heldout, most)}
    questions = [Question(chat=chat, seen=False) for chat in _sample(heldout, MAX_SCORED)]
    questions += [Question(chat=chat, seen=True) for chat in _sample(_beside(adapter, SEEN_CHATS), most)]
    asked = (place for place, each in enumerate(questions) if each.seen or each.chat.id in asked_ids)
    return Questions(listed=tuple(questions), asked=frozenset(asked), files=tuple(files))


def _chats_of_files(files: Sequence[str], columns: Names, letters: Letters) -> list[Chat]:
    dropped, topics = DroppedChats(), TopicColumns()
    by_id: dict[str, Chat] = {}
    for chat in read_chats(files, dropped, columns=columns, letters=letters):
        topics.add(chat.topics)
        by_id.setdefault(chat.id, chat)
        if len(by_id) > 2 * MAX_SCORED:  # so that memory does not grow with the files
            by_id = {one.id: one for one in _sample(list(by_id.values()), MAX_SCORED)}
    chats = [replace(chat, topics=topics.shared(chat.topics)) for chat in by_id.values()]
    refuse_no_questions(files, len(chats), dropped)
    if dropped.total:
        log.warning("%s: %d rows are not questions: %s", KEY, dropped.total, dropped)
    return chats


def _beside(adapter: Path | None, name: str) -> list[Chat]:
    return kept_chats(adapter / name) if adapter else []


def _sample(chats: Sequence[Chat], size: int) -> list[Chat]:
    """Return an even sample, in order, and the same one however the others change."""
    if len(chats) <= size:
        return list(chats)
    ranked = sorted(range(len(chats)), key=lambda place: fingerprint(chats[place].id))
    return [chats[place] for place in sorted(ranked[:size])]


def renderings_of(candidate: ScoredModel, questions: Sequence[Question]) -> tuple[Rendering, ...]:
    """Return the ways to ask a candidate: in plain text if its template refuses a question, as Gemma 2's a system turn."""
    tokenizer: Any = candidate.tokenizer
    if tokenizer.chat_template is None:
        return ("plain text",)
    try:
        for question in questions:
            rendered(tokenizer, question.turns, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # noqa: BLE001  a template raises what it likes
        log.warning(
            "%s: asked in plain text; its chat template refuses a question (%s)", candidate.name, error
        )
        return ("plain text",)
    return ("chat template",) if candidate.answers else ("plain text", "chat template")


def render(candidate: ScoredModel, questions: Sequence[Question], how: Rendering) -> list[Ids]:
    """Return the token ids of each question, up to where its answer begins."""
    if how == "chat template":
        return [
            tuple(chat_ids(candidate.tokenizer, each.turns, add_generation_prompt=True)) for each in questions
        ]
    texts = ["".join(turn["content"] + BLANK_LINE for turn in each.turns) for each in questions]
    return [(candidate.prefix, *ids) for ids in encode_texts(candidate.tokenizer, texts)]


def encode_references(
    candidates: Sequence[ScoredModel], questions: Questions
) -> tuple[Questions, dict[str, list[NDArray[np.int32]]]]:
    """Return the questions whose answers every tokenizer gives back unchanged, and the answers' ids by candidate."""
    if not questions.listed:
        return questions, {}
    answers = [
        Document(id=f"{one.chat.id} ({one.chat.place})", text=one.reference, source=KEY, url="", lang="")
        for one in questions.listed
    ]
    encoded = encode_for_all(candidates, answers)
    altered = set(encoded.altered)
    unaltered = [place for place, answer in enumerate(answers) if answer.id not in altered]
    listed = tuple(questions.listed[place] for place in unaltered)
    asked = frozenset(new for new, place in enumerate(unaltered) if place in questions.asked)
    return replace(questions, listed=listed, asked=asked), encoded.ids
