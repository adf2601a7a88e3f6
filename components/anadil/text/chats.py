"""Chats: what one is, and how a row of the usual layouts becomes one.

A row is read by the first of these layouts that it has. Its other columns are counted as not read.
- `messages` or `conversations`: lists of `role` and `content`, or ShareGPT's `from` and `value`. A passage (`context`)
  stands below the first question.
- A question (`prompt`, `instruction`, `question`), with its passage (`input`, `context`) below it, and its answer
  (`response`, `completion`, `output`, `answer`).

A row of a preference has `chosen` and `rejected`: each a text, a message, or a list of messages. A list that begins
with the user or a system turn is the whole chat (UltraFeedback, Capybara). Else the question is in a column of
questions, or in `conversations` (LLaMA-Factory). Texts with turns of `Human:` and `Assistant:` (hh-rlhf) are whole chats.
"""

import hashlib
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anadil.text import chat_columns

Reason = Literal[
    "no_chat", "malformed", "not_text", "tool_turn", "unknown_role", "role_order", "no_answer", "empty_message", "no_choice",
    "no_passage", "marked", "unknown_mark", "not_unicode", "template", "too_long", "duplicate", "near_duplicate",
    "evaluation_question", "bad_row", "no_pair", "other_question", "same_answer", "question_in_answer",
]  # fmt: skip
DROP_REMEDIES: dict[Reason, str] = {
    "no_chat": "a row needs `messages`, `conversations`, or a question and its answer, such as `prompt` and `response`; "
    "finetune.columns names columns of other names, such as {question: Q, answer: A}",
    "malformed": "each message needs the texts `role` and `content`, or `from` and `value`",
    "not_text": "only text can be trained on; take images and sounds out",
    "tool_turn": "calls and results of tools cannot be trained on; take such chats out, or write them as text",
    "unknown_role": "roles are user (human), assistant (gpt, model) and system (developer)",
    "role_order": "turns must be user, assistant, user, assistant, ..., after at most one system turn",
    "no_answer": "a chat needs an assistant turn, from which the model learns",
    "empty_message": "a message needs text",
    "no_choice": "beside `choices` a row needs the right one as `answer`: its text, letter (A, B, ...) or place",
    "no_passage": "what a question is about must be a text or a list of texts",
    "marked": "the data set marks its answer as bad or as not to be learnt; take that column out if it means something else",
    "unknown_mark": "a mark of an answer is true or false; write it so, and give the column another name where it says something "
    "else",
    "not_unicode": "text holds half a surrogate pair; write it as UTF-8",
    "template": "the base's chat template cannot write it; change the chat",
    "too_long": "shorten the chats or raise finetune.max_length, which ends at the model's context",
    "duplicate": "another chat says the same",
    "near_duplicate": "another chat says nearly the same",
    "evaluation_question": "evaluate asks it, so no model may learn its answer",
    "bad_row": "a row of a table has a cell for each name of the first row, in the file's encoding; put a text that holds the "
    "separator, a quote or a line end between quotes, and write a quote in it twice",
    "no_pair": "a row of pairs needs `chosen` and `rejected`, and a `prompt` unless both are whole chats",
    "other_question": "both chats of a pair must be the same up to their last answer",
    "same_answer": "the answers of a pair must differ",
    "question_in_answer": "both answers begin with the question, which would be learnt; cut it off",
}
HARMLESS: tuple[Reason, ...] = ("duplicate", "near_duplicate", "evaluation_question")
"""Reasons to drop a good chat on purpose."""


log = logging.getLogger(__name__)

MAX_NAMED = 30
"""Columns in a message."""
MAX_DROPPED_PLACES = 5  # Places kept for each reason
TOOL_ROLES = frozenset((
    "tool", "function", "function_call", "function_response", "tool_call", "tool_response", "observation", "ipython",
))  # fmt: skip
TOOL_KEYS = ("tool_calls", "function_call")
MAX_TOPICS = 200
"""Most groups of a column that sorts rows. Chosen by us."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a part that is text; the last two of OpenAI's Responses."""
UNTAUGHT = "reasoning (reasoning_content, reasoning, thinking)"
"""Its name in `mask_audit.json` and in the log if it is not taught."""
PUNCTUATION = ".,;:!?…\"'()[]{}«»“”„‘’–—。、「」『』（）！？¿¡؟،"
LETTERS_I = str.maketrans({"ı": "i", "\u0307": None})
"""So that I and İ fold to i in Turkic text too; the second is the dot that `casefold` leaves of İ."""

Part = Literal["train", "validation", "heldout"]
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
TURN = re.compile(r"\n\n(Human|Assistant):")
"""Beginning of a turn in a text. Source: Anthropic's hh-rlhf, README."""
OPENED = "\n\nAssistant:"
"""End of a question there: the answer follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat; its text has no blanks at its ends."""

    role: str
    """`user`, `assistant` or `system`."""
    content: str
    trained: bool = True
    """False of an answer that is context only, such as `weight` 0 in OpenAI's layout."""
    reasoning: str = ""
    """Reasoning of the assistant before its answer. It is taught if the chat template writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A checked conversation: user and assistant in turns, after at most one system turn."""

    messages: tuple[Message, ...]
    place: str
    """`file:line` that it came from."""
    source: str = ""
    choices: tuple[str, ...] = ()
    """Texts of which the last answer is one; empty where it is free."""
    topics: tuple[tuple[str, str], ...] = ()
    """Columns of its row that are no part of it, with their short texts: a section of a sheet."""

    @property
    def questions(self) -> tuple[str, ...]:
        """The user's texts, turn by turn."""
        return tuple(message.content for message in self.messages if message.role == "user")

    def with_system(self, system: str | None) -> "Chat":
        """The chat, with a system turn if it has none."""
        if not system or self.messages[0].role == "system":
            return self
        return replace(self, messages=(Message(role="system", content=system.strip()), *self.messages))

    def without_reasoning(self, *, but_last: bool) -> "Chat":
        """The chat without the reasoning before its answers, or before all but the last."""
        *earlier, last = self.messages
        turns = [replace(message, reasoning="") for message in earlier]
        return replace(self, messages=(*turns, last if but_last else replace(last, reasoning="")))

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits; equal for chats that differ in case, blanks and punctuation alone."""
        text = "\0".join(f"{message.role}\0{folded(message.content)}" for message in self.messages)
        return f"{fingerprint(text):016x}"

    def as_row(self) -> dict[str, object]:
        """Its line in `heldout_chats.jsonl` and `seen_chats.jsonl`."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        row: dict[str, object] = {"id": self.id, "messages": messages, "source": self.source}
        row |= {"choices": list(self.choices)} if self.choices else {}
        return row | {"topics": dict(self.topics)} if self.topics else row


class TopicColumns:
    """Counts of the texts of columns, of which some sort rows into groups."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, topics: Iterable[tuple[str, str]]) -> None:
        """Count a row."""
        for column, value in topics:
            known = self._counts[column]
            # A column of numbers or names would fill the memory.
            if value in known or len(known) <= MAX_TOPICS:
                known[value] += 1

    def shared(self, topics: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Return the topics of a row whose columns make two groups or more, of two rows or more on average."""
        counts = self._counts
        return tuple(
            (column, value)
            for column, value in topics
            if 2 <= len(known := counts[column]) <= MAX_TOPICS and known.total() >= 2 * len(known)
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a row is no chat."""

    reason: Reason
    value: str = ""
    """Detail, such as the unknown role."""


@dataclass(slots=True)
class DroppedChats:
    """Counts of dropped rows by reason, with the first places, and of columns that are not read."""

    counts: dict[Reason, int] = field(default_factory=dict)
    places: dict[Reason, list[str]] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)
    unread: dict[str, dict[str, int]] = field(default_factory=dict)
    """File -> column, or key of a turn, that holds something and is not read -> rows."""

    def add(self, reason: Reason, place: str) -> None:
        """Count one row."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_DROPPED_PLACES:
            places.append(place)

    def add_columns(self, file: str, columns: Iterable[str], unread: Iterable[str]) -> None:
        """Note what one row has, and count what of it is not read."""
        self.columns.update(columns)
        for column in unread:
            counts = self.unread.setdefault(file, {})
            counts[column] = counts.get(column, 0) + 1

    def add_untaught(self, place: str) -> None:
        """Count one row with reasoning that is not taught, or not before each answer."""
        self.add_columns(place.rpartition(":")[0], (), [UNTAUGHT])

    def say_untaught(self) -> None:
        """Log how many rows have reasoning that is not taught."""
        if number := sum(counts.get(UNTAUGHT, 0) for counts in self.unread.values()):
            log.warning(
                "%s of %s rows is not taught, or before their last answer alone: the chat template does not write it; "
                "take a base.model whose template does, such as Qwen3, or write it into the answer",
                UNTAUGHT, f"{number:,}",
            )  # fmt: skip

    def say_unread(self, file: str) -> None:
        """Log the columns of a file that are not read."""
        counts = self.unread.get(file, {})
        if names := sorted(counts, key=lambda one: (-counts[one], one)):
            listed = ", ".join(f"{name} ({counts[name]:,})" for name in names[:MAX_NAMED])
            listed += f", and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
            log.info(
                "%s: columns that are not read, and in how many rows they hold something: %s; finetune.columns names the one "
                "of a question, an answer, a system turn or a context",
                file, listed,
            )  # fmt: skip

    @property
    def total(self) -> int:
        """Rows left out for any reason."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        """Reasons, the most frequent first, each with its remedy and its first places."""
        by_count = sorted(self.counts, key=lambda reason: -self.counts[reason])
        return "; ".join(
            f"{reason} {self.counts[reason]:,} ({DROP_REMEDIES[reason]}; {', '.join(self.places[reason][:3])})"
            for reason in by_count
        )


class RefusedRowError(Exception):
    """A row is no chat. Whoever reads a row turns it into its `refusal`."""

    def __init__(self, reason: Reason, value: str = "") -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, value)


def messages_of(row: Mapping[str, object]) -> tuple[Message, ...] | Refusal:
    """The messages of a row, without turns at the end from which nothing is learnt; or why there are none."""
    try:
        return read_messages(row)
    except RefusedRowError as error:
        return error.refusal


def read_messages(row: Mapping[str, object]) -> tuple[Message, ...]:
    """Read a row as `messages_of` does."""
    listed = chat_columns.first_of(row, chat_columns.LISTS)
    if listed is None and chat_columns.names_no_choice(row):
        raise RefusedRowError("no_choice", str(row.get("answer", "")))
    given = _pair(row) if listed is None else chat_columns.given_turns(row[listed])
    if given is None:
        names = [name for name, value in row.items() if value is not None]
        raise RefusedRowError("no_chat", ", ".join(names[:MAX_NAMED]))
    if not isinstance(given, list | tuple):
        raise RefusedRowError("malformed")
    if listed:
        given = _with_passages(given, chat_columns.below(row, listed), row)
    if mark := chat_columns.mark_of_row(row):
        raise RefusedRowError(*mark)
    messages = [_message(item) for item in given]
    if messages and messages[0].role == "system" and not messages[0].content:
        messages.pop(0)  # as ShareGPT's files have it where nothing is to be said
    try:
        learnt = chat_columns.masks_of(row, [message.role == "assistant" for message in messages])
    except ValueError as error:
        raise RefusedRowError("unknown_mark", str(error)) from None
    if learnt:
        messages = [
            replace(one, trained=one.trained and mark) for one, mark in zip(messages, learnt, strict=True)
        ]
    parts = (
        each for key in chat_columns.SYSTEMS if (each := chat_columns.system_parts(row.get(key))) is not None
    )
    system = next(filter(None, (_stripped(_text(each)) for each in parts)), "")
    if system and not (messages and messages[0].role == "system"):
        messages.insert(0, Message(role="system", content=system))
    # Turns behind the last answer that is learnt cost tokens and teach nothing.
    while messages and (messages[-1].role == "user" or not messages[-1].trained):
        messages.pop()
    _check_turns(messages)
    return tuple(messages)


def split_of(chat: Chat, validation_fraction: float, heldout_fraction: float) -> Part:
    """The part of the data that a chat belongs to, by a hash of its folded first question.

    So a chat stays where it is when others come or go, and two answers to one question are never on both sides. Both
    fractions are shares of questions, 0 to 1.
    """
    place = fingerprint(folded(chat.questions[0])) / 2**64
    if place < heldout_fraction:
        return "heldout"
    return "validation" if place < heldout_fraction + validation_fraction else "train"


def folded(text: str) -> str:
    """A text without differences that equal questions may have: case, forms of letters, blanks, punctuation of words."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(LETTERS_I)
    # A word of punctuation alone stays: "2 - 2" is not "2 2".
    return " ".join(word.strip(PUNCTUATION) or word for word in plain.split())


def fingerprint(text: str) -> int:
    """A number of 64 bits for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _pair(row: Mapping[str, object]) -> list[object] | None:
    """The turns of a question and its answer; each may be a text or already a list of turns."""
    name = chat_columns.first_of(row, chat_columns.ANSWERS)
    # A row of choices may name its answer by its letter or place.
    answer = chat_columns.chosen_text(row) or (chat_columns.first_answer(row[name]) if name else None)
    turns = question_turns(row)
    if turns is None or answer is None:
        return None
    if answer == []:
        raise RefusedRowError("no_answer")
    thought = chat_columns.reasoning_beside(row, name)
    turn = {
        "role": "assistant",
        "content": answer,
        **({chat_columns.REASONINGS[0]: row[thought]} if thought else {}),
    }
    return turns + (answer if isinstance(answer, list) else [turn])


def question_turns(row: Mapping[str, object]) -> list[object] | None:
    """Question of a row, as turns that are not checked yet; None if no column holds it."""
    asked = chat_columns.first_of(row, chat_columns.QUESTIONS)
    if asked is None:
        return None
    question = row[asked]
    turns = (
        question
        if isinstance(question, list)
        else [*_history(row.get(chat_columns.HISTORY)), {"role": "user", "content": question}]
    )
    return _with_passages(turns, chat_columns.below(row, asked), row, len(turns) - 1)


def _with_passages(
    given: Sequence[object], names: Iterable[str], row: Mapping[str, object], place: int | None = None
) -> list[object]:
    """Turns with a row's passages below one of them, by default the first question."""
    turns = list(given)
    if place is None:
        place = next((at for at, turn in enumerate(turns) if chat_columns.role_of(turn) == "user"), -1)
    for name in names if place >= 0 else ():
        passage, texts = chat_columns.passage_text(row[name]), [*map(_turn_text, turns)]
        text = texts[place]
        if passage is None or text is None:
            raise RefusedRowError("no_passage", name)
        if not any(passage in each for each in texts if each):  # as in a prompt that is already written out
            turn: Any = turns[place]
            turns[place] = {**chat_columns.with_known_names(turn), "content": f"{text.strip()}\n\n{passage}"}
    return turns


def _turn_text(turn: object) -> str | None:
    given = chat_columns.with_known_names(turn) if isinstance(turn, Mapping) else {}
    try:
        return _text(_either(given, "content", "value"))
    except RefusedRowError:
        return None


def _history(given: object) -> list[object]:
    """The turns of earlier pairs; what is no list of pairs belongs to another layout."""
    pairs = given if isinstance(given, list | tuple) else []
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return []
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _either(item: Mapping[str, object], name: str, other: str) -> object:
    """The one that is set: of mixed layouts a table has both columns, one of them empty."""
    first = item.get(name)
    return item.get(other) if first is None else first


def _message(item: object) -> Message:
    if not isinstance(item, Mapping):
        raise RefusedRowError("malformed")
    item = chat_columns.with_known_names(item)
    role = _either(item, "role", "from")
    if not isinstance(role, str):
        raise RefusedRowError("malformed")
    plain = role.strip().casefold()
    if plain in TOOL_ROLES or any(item.get(key) for key in TOOL_KEYS):
        raise RefusedRowError("tool_turn", role)
    if plain not in chat_columns.ROLES:
        raise RefusedRowError("unknown_role", role)
    text = _text(_either(item, "content", "value"))
    learnt = chat_columns.is_learnt(item)
    if isinstance(learnt, str):
        raise RefusedRowError("unknown_mark", learnt)
    thought = chat_columns.reasoning_of(item) if chat_columns.ROLES[plain] == "assistant" else ""
    return Message(role=chat_columns.ROLES[plain], content=_stripped(text), trained=learnt, reasoning=thought)


def _stripped(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _text(content: object) -> str:
    """A content, or the texts of its parts one after another, as chat templates write them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RefusedRowError("malformed")
    texts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type", "text") not in TEXT_PARTS:
            raise RefusedRowError("not_text", str(part.get("type")))
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RefusedRowError("malformed")
        texts.append(text)
    return "".join(texts)


def _check_turns(messages: list[Message]) -> None:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise RefusedRowError("no_answer")
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != ["user", "assistant"] * (len(turns) // 2):
        raise RefusedRowError("role_order")
    if not all(message.content for message in messages):
        raise RefusedRowError("empty_message")
    try:
        "".join(message.content + message.reasoning for message in messages).encode()
    except UnicodeEncodeError:
        raise RefusedRowError("not_unicode") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two chats that differ in their last answer alone."""

    chosen: Chat
    rejected: Chat

    @property
    def place(self) -> str:
        """`file:line` that it came from."""
        return self.chosen.place


def pair_of(row: Mapping[str, object]) -> tuple[tuple[Message, ...], tuple[Message, ...]] | Refusal:
    """The messages of the chosen and of the rejected chat of a row, or why there are none."""
    try:
        return _read_pair(row)
    except RefusedRowError as error:
        return error.refusal


def _read_pair(row: Mapping[str, object]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    listed = next(
        (
            turns
            for key in chat_columns.LISTS
            if isinstance(turns := chat_columns.turns_of(row.get(key)), list)
        ),
        None,
    )
    asked = listed or _asked(row)
    sides: list[tuple[Message, ...]] = []
    for name in chat_columns.SIDES:
        turns = _turns(chat_columns.turns_of(row.get(name)), asked)
        if turns is None:
            raise RefusedRowError("no_pair", "" if row.get(name) is not None else f"no {name}")
        system = {key: row[key] for key in chat_columns.SYSTEMS if key in row}
        sides.append(read_messages({**system, "messages": turns}))
    chosen, rejected = sides
    if chosen[:-1] != rejected[:-1]:
        raise RefusedRowError("other_question")
    if chosen[-1].content == rejected[-1].content:
        raise RefusedRowError("same_answer")
    # The question would be learnt as a part of the answer.
    if all(side[-1].content.startswith(chosen[-2].content) for side in sides):
        raise RefusedRowError("question_in_answer")
    return chosen, rejected


def _asked(row: Mapping[str, object]) -> list[object] | None:
    """Question of a row. A text with turns of `Human:` ends in an opened turn of the assistant (Dahoas/rm-static)."""
    asked = question_turns(row)
    text = asked[-1].get("content") if asked and isinstance(asked[-1], Mapping) else None
    turns = _transcript(text.rstrip().removesuffix(OPENED)) if isinstance(text, str) else []
    return turns or asked


def _transcript(text: str) -> list[object]:
    """Turns of a text that is a chat as hh-rlhf writes it; else none."""
    parts = TURN.split(text)
    if len(parts) == 1 or parts[0].strip() or parts[1] != "Human":
        return []
    return [
        {"role": SPEAKERS[speaker], "content": said}
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _turns(side: object, asked: list[object] | None) -> list[object] | None:
    """All turns of one side, not checked yet; None if nothing says what it answers."""
    if isinstance(side, str):
        if turns := _transcript(side):
            return turns
        answer: list[object] = [{"role": "assistant", "content": side}]
    elif isinstance(side, Mapping):
        answer = [side]
    elif isinstance(side, list) and side:
        if chat_columns.role_of(side[0]) != "assistant":
            return side
        answer = side
    else:
        return None
    return None if asked is None else [*asked, *answer]
