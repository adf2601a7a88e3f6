"""Chats: what one is, and how a row of the usual layouts becomes one.

A row is read by the first of these layouts that it has; every other column is ignored:
`messages` or `conversations` (lists of `role` and `content`, or ShareGPT's `from` and `value`), or a question
(`prompt`, `instruction` with `input`, `question`) beside its answer (`response`, `completion`, `output`, `answer`).
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from anadil.text.choices import chosen_text, names_no_choice

Reason = Literal[
    "no_chat",
    "malformed",
    "not_text",
    "tool_turn",
    "unknown_role",
    "role_order",
    "no_answer",
    "empty_message",
    "no_choice",
    "not_unicode",
    "template",
    "too_long",
    "duplicate",
    "near_duplicate",
    "evaluation_question",
    "no_pair",
    "other_question",
    "same_answer",
    "question_in_answer",
]

DROP_REMEDIES: dict[Reason, str] = {
    "no_chat": "a row needs `messages`, `conversations`, or a question and its answer, such as `prompt` and `response`",
    "malformed": "each message needs the texts `role` and `content`, or `from` and `value`",
    "not_text": "only text can be trained on; take images and sounds out",
    "tool_turn": "calls and results of tools cannot be trained on; take such chats out, or write them as text",
    "unknown_role": "roles are user (human), assistant (gpt, model) and system (developer)",
    "role_order": "turns must be user, assistant, user, assistant, ..., after at most one system turn",
    "no_answer": "a chat needs an assistant turn, from which the model learns",
    "empty_message": "a message needs text",
    "no_choice": "beside `choices` a row needs the right one as `answer`: its text, letter (A, B, ...) or place",
    "not_unicode": "text holds half a surrogate pair; write it as UTF-8",
    "template": "the base's chat template cannot write it; change the chat",
    "too_long": "shorten the chats or raise finetune.max_length",
    "duplicate": "another chat says the same",
    "near_duplicate": "another chat says nearly the same",
    "evaluation_question": "evaluate asks it, so no model may learn its answer",
    "no_pair": "a row of pairs needs `chosen` and `rejected`, and a `prompt` unless both are whole chats",
    "other_question": "both chats of a pair must be the same up to their last answer",
    "same_answer": "the answers of a pair must differ",
    "question_in_answer": "both answers begin with the question, which would be learnt; cut it off",
}
"""What each reason asks of the user."""
HARMLESS: tuple[Reason, ...] = ("duplicate", "near_duplicate", "evaluation_question")
"""Reasons for which a good chat is left out on purpose."""
MAX_DROPPED_PLACES = 5
"""Places kept for each reason."""
LISTS = ("messages", "conversations", "conversation")
QUESTIONS = ("prompt", "instruction", "question", "query", "input")
"""Columns that hold what is asked; to `instruction` belongs the text of `input` or `context`."""
ANSWERS = ("response", "completion", "output", "answer")
INSTRUCTION, INPUTS = "instruction", ("input", "context")
HISTORY = "history"
"""Column of LLaMA-Factory's Alpaca layout: pairs of what was asked and answered before."""
SYSTEMS = ("system", "system_prompt")
ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "system": "system", "developer": "system",
}  # fmt: skip
TOOL_ROLES = frozenset(
    (
        "tool",
        "function",
        "function_call",
        "function_response",
        "tool_call",
        "tool_response",
        "observation",
        "ipython",
    )
)
TOOL_KEYS = ("tool_calls", "function_call")
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a part that is text; the last two of OpenAI's Responses."""
PUNCTUATION = ".,;:!?…\"'()[]{}«»“”„‘’–—。、「」『』（）！？¿¡؟،"
LETTERS_I = str.maketrans({"ı": "i", "\u0307": None})
"""So that I and İ fold to i in Turkic text too; the second is the dot that `casefold` leaves of İ."""

Part = Literal["train", "validation", "heldout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat; its text has no blanks at its ends."""

    role: str
    """`user`, `assistant` or `system`."""
    content: str
    trained: bool = True
    """False of an answer that is context only: `weight` 0 in OpenAI's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A checked conversation: user and assistant in turns, after at most one system turn."""

    messages: tuple[Message, ...]
    place: str
    """`file:line` that it came from."""
    source: str = ""
    """Name of the data set that it came from."""
    choices: tuple[str, ...] = ()
    """Texts of which the last answer is one; empty where it is free."""

    @property
    def questions(self) -> tuple[str, ...]:
        """What the user says, turn by turn."""
        return tuple(message.content for message in self.messages if message.role == "user")

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits; equal for chats that differ in case, blanks and punctuation alone."""
        text = "\0".join(f"{message.role}\0{folded(message.content)}" for message in self.messages)
        return f"{fingerprint(text):016x}"

    def as_row(self) -> dict[str, object]:
        """Its line in `heldout_chats.jsonl` and `seen_chats.jsonl`."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        row: dict[str, object] = {"id": self.id, "messages": messages, "source": self.source}
        return row | {"choices": list(self.choices)} if self.choices else row


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row is no chat."""

    reason: Reason
    value: str = ""
    """What it was about, such as the unknown role."""


@dataclass(slots=True)
class DroppedChats:
    """How many rows were left out, by reason, and where the first of them are."""

    counts: dict[Reason, int] = field(default_factory=dict)
    places: dict[Reason, list[str]] = field(default_factory=dict)

    def add(self, reason: Reason, place: str) -> None:
        """Count one row."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_DROPPED_PLACES:
            places.append(place)

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


def messages_of(row: Mapping[str, object]) -> tuple[Message, ...] | Refusal:
    """The messages of a row, or why there are none; turns at the end from which nothing is learnt are left out."""
    listed = next((row[key] for key in LISTS if row.get(key) is not None), None)
    given = _pair(row) if listed is None else _unpacked(listed)
    if listed is None and names_no_choice(row):
        return Refusal("no_choice", str(row.get("answer", "")))
    if given is None:
        return Refusal("no_chat")
    given = turns_of(given)
    if not isinstance(given, list | tuple):
        return Refusal("malformed")
    messages: list[Message] = []
    for item in given:
        message = _message(item)
        if isinstance(message, Refusal):
            return message
        messages.append(message)
    if messages and messages[0].role == "system" and not messages[0].content:
        messages.pop(0)  # as ShareGPT's files have it where nothing is to be said
    system = next((text for key in SYSTEMS if isinstance(text := row.get(key), str) and text.strip()), None)
    if system and not (messages and messages[0].role == "system"):
        messages.insert(0, Message(role="system", content=system.strip()))
    while messages and (messages[-1].role == "user" or not messages[-1].trained):
        messages.pop()
    fault = _fault(messages)
    return Refusal(fault) if fault else tuple(messages)


def turns_of(given: object) -> object:
    """A list of turns, also where Hugging Face's `Sequence` keeps it: a list of each column of the turns."""
    if not isinstance(given, Mapping):
        return given
    columns = [column for column in given.values() if isinstance(column, list | tuple)]
    if not columns or len(columns) < len(given) or len({len(column) for column in columns}) > 1:
        return given
    return [dict(zip(given, turn, strict=True)) for turn in zip(*columns, strict=True)]


def split_of(chat: Chat, validation_fraction: float, heldout_fraction: float) -> Part:
    """The part of the data that a chat belongs to, by a hash of its folded first question.

    So a chat stays where it is when others come or go, and two answers to one question are never on both sides.

    Args:
        chat: The chat.
        validation_fraction: Share of questions on which training is judged, 0 to 1.
        heldout_fraction: Share that training never sees.
    """
    place = fingerprint(folded(chat.questions[0])) / 2**64
    if place < heldout_fraction:
        return "heldout"
    return "validation" if place < heldout_fraction + validation_fraction else "train"


def folded(text: str) -> str:
    """A text without what an equal question may differ in: case, forms of letters, blanks, punctuation of words."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(LETTERS_I)
    # A word of punctuation alone stays: "2 - 2" is not "2 2".
    return " ".join(word.strip(PUNCTUATION) or word for word in plain.split())


def fingerprint(text: str) -> int:
    """A number of 64 bits for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _unpacked(listed: object) -> object:
    """The turns also where a table keeps them as one JSON text."""
    if isinstance(listed, str) and listed.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(listed)
    return listed


def _pair(row: Mapping[str, object]) -> list[object] | None:
    """The turns of a question and its answer; each may be a text or already a list of turns."""
    answer = next((row[key] for key in ANSWERS if row.get(key) is not None), None)
    # A row of choices may name its answer by its letter or place.
    answer = chosen_text(row) or answer
    turns = question_turns(row)
    if turns is None or answer is None:
        return None
    return turns + (answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}])


def question_turns(row: Mapping[str, object]) -> list[object] | None:
    """What a row asks, as turns that are not checked yet; None where no column holds it."""
    asked = next((key for key in QUESTIONS if row.get(key) is not None), None)
    if asked is None:
        return None
    question = row[asked]
    if asked == INSTRUCTION and isinstance(question, str):
        more = next((text for key in INPUTS if isinstance(text := row.get(key), str) and text.strip()), "")
        question = f"{question.strip()}\n\n{more.strip()}" if more else question
    if isinstance(question, list):
        return question
    return [*_history(row.get(HISTORY)), {"role": "user", "content": question}]


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
    found = item.get(name)
    return item.get(other) if found is None else found


def _message(item: object) -> Message | Refusal:
    if not isinstance(item, Mapping):
        return Refusal("malformed")
    role = _either(item, "role", "from")
    if not isinstance(role, str):
        return Refusal("malformed")
    plain = role.strip().casefold()
    if plain in TOOL_ROLES or any(item.get(key) for key in TOOL_KEYS):
        return Refusal("tool_turn", role)
    if plain not in ROLES:
        return Refusal("unknown_role", role)
    text = _text(_either(item, "content", "value"))
    if isinstance(text, Refusal):
        return text
    weight = item.get("weight")
    if weight not in (None, 0, 1):
        return Refusal("malformed", f"weight {weight}")
    return Message(role=ROLES[plain], content=text.strip(), trained=weight != 0)


def _text(content: object) -> str | Refusal:
    """A content, or the texts of its parts one after another, as chat templates write them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return Refusal("malformed")
    texts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type", "text") not in TEXT_PARTS:
            return Refusal("not_text", str(part.get("type")))
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            return Refusal("malformed")
        texts.append(text)
    return "".join(texts)


def _fault(messages: list[Message]) -> Reason | None:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        return "no_answer"
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != ["user", "assistant"] * (len(turns) // 2):
        return "role_order"
    if not all(message.content for message in messages):
        return "empty_message"
    try:
        "".join(message.content for message in messages).encode()
    except UnicodeEncodeError:
        return "not_unicode"
    return None
