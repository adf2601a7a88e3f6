"""Chats out of JSON lines: which rows can be trained on, and why the others cannot.

A row holds `messages` (`role` and `content`), or `prompt` beside `response` or `completion`;
`messages` go first, and every other column is ignored. A row that is no good chat is left out
under a reason; a line that is no JSON ends the stage, because then the file itself is damaged.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from anadil.artifacts import storage
from anadil.artifacts.line_reader import TooLong, bounded_lines
from anadil.core.errors import DataError

Reason = Literal[
    "no_chat", "malformed", "role_order", "no_answer", "empty_message", "not_unicode", "too_long"
]

DROP_REMEDIES: dict[Reason, str] = {
    "no_chat": "a row needs `messages`, or `prompt` and `response`",
    "malformed": "each of `messages` needs the texts `role` and `content`",
    "role_order": "turns must be user, assistant, user, assistant, ..., after at most one system turn",
    "no_answer": "a chat needs an assistant turn, from which the model learns",
    "empty_message": "a message needs text",
    "not_unicode": "text holds half a surrogate pair; write it as UTF-8",
    "too_long": "shorten the chats or raise finetune.max_length",
}
"""What each reason asks of the user."""
MAX_DROPPED_PLACES = 5
"""Places kept for each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat; its text has no blanks at its ends."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A checked conversation and the `file:line` that it came from."""

    messages: tuple[Message, ...]
    place: str


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


def read_chats(
    uris: Sequence[str], dropped: DroppedChats, copy: storage.Copy = storage.local_copy
) -> Iterator[Chat]:
    """The good chats of `.jsonl` files, in order; the other rows are counted in `dropped`.

    Args:
        uris: The files.
        dropped: Gets the rows that are no chats.
        copy: Gives what is to be read of a file.

    Raises:
        DataError: A file is no `.jsonl`, or a line is not a JSON object; with file and line.
    """
    check_chat_files(uris)
    for uri in uris:
        with copy(uri) as path:
            for number, row in _rows(path, uri):
                place = f"{Path(uri).name}:{number}"
                found = _messages(row)
                if isinstance(found, tuple):
                    yield Chat(messages=found, place=place)
                else:
                    dropped.add(found, place)


def check_chat_files(uris: Sequence[str]) -> None:
    """Refuse files of another kind, before any is read.

    Raises:
        DataError: Of the first such file.
    """
    for uri in uris:
        if not uri.endswith(".jsonl"):
            raise DataError(f"{uri}: is not a .jsonl file; give chats as one JSON object a line")


def refuse_no_chats(uris: Sequence[str], num_chats: int, dropped: DroppedChats) -> None:
    """Refuse files without a chat to train on.

    Raises:
        DataError: With the reason of each kind of row.
    """
    if num_chats:
        return
    if not dropped.total:
        raise DataError(f"chats: {', '.join(uris)} hold no rows; {DROP_REMEDIES['no_chat']}")
    raise DataError(f"chats: none of {dropped.total:,} rows can be trained on: {dropped}")


def _rows(path: Path, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(bounded_lines(path, ".jsonl"), start=1):
        if isinstance(line, TooLong):
            raise DataError(f"{name}:{number}: {line}; write each chat as a line of its own")
        if not line.strip():
            continue
        try:
            # Some editors begin a file with a byte order mark.
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{name}:{number}: not a JSON line ({error}); correct or remove the line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{name}:{number}: a {type(row).__name__}, not an object; {DROP_REMEDIES['no_chat']}"
            )
        yield number, row


def _messages(row: dict[str, object]) -> tuple[Message, ...] | Reason:
    """The messages of a row, or why there are none."""
    given = row.get("messages")
    if given is None:
        answer = row.get("response", row.get("completion"))
        if row.get("prompt") is None or answer is None:
            return "no_chat"
        given = [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": answer},
        ]
    if not isinstance(given, list):
        return "malformed"
    messages = []
    for item in given:
        role = item.get("role") if isinstance(item, dict) else None
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            return "malformed"
        messages.append(Message(role=role, content=content.strip()))
    return _fault(messages) or tuple(messages)


def _fault(messages: list[Message]) -> Reason | None:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        return "no_answer"
    turns = roles[1:] if roles[0] == "system" else roles
    if len(turns) % 2 or turns != ["user", "assistant"] * (len(turns) // 2):
        return "role_order"
    if not all(message.content for message in messages):
        return "empty_message"
    try:
        "".join(message.content for message in messages).encode()
    except UnicodeEncodeError:
        return "not_unicode"
    return None
