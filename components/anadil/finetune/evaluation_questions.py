"""Questions and text of the evaluation, which no model may be taught."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.chat_files import read_chats, rows_of
from anadil.artifacts.line_reader import MAX_LINE_BYTES, TooLong
from anadil.core.errors import DataError
from anadil.runtime.job import Job
from anadil.text.chats import Chat, DroppedChats, fingerprint, folded
from anadil.text.letters import letters_of

MIN_LINE_CHARS = 40
"""Shortest folded line of held-out text: a shorter one could stand in any chat. As `clean.decontaminate`."""


class EvaluationQuestions:
    """Fingerprints of the questions of `evaluate.questions` and of the lines of `evaluate.heldout`."""

    def __init__(self, job: Job) -> None:
        """Read the files that the recipe names."""
        files = job.side_files.get("evaluate.questions", ())
        letters = letters_of(job.recipe.language_code)
        questions = read_chats(files, DroppedChats(), columns=job.recipe.finetune.columns, letters=letters)
        self._turns = {fingerprint(folded(turn)) for chat in questions for turn in chat.questions}
        self._lines = {
            line
            for uri in job.side_files.get("evaluate.heldout", ())
            for text in _texts(uri, job.recipe.clean.text_field)
            for line in _lines(text)
        }

    def without(self, chats: Iterable[Chat], dropped: DroppedChats) -> Iterator[Chat]:
        """Yield the chats that hold none of them, and count the others."""
        for chat in chats:
            if self.holds(chat):
                dropped.add("evaluation_question", chat.place)
            else:
                yield chat

    def holds(self, chat: Chat) -> bool:
        """True if a chat asks such a question or contains such a line."""
        if self._turns and any(fingerprint(folded(turn)) in self._turns for turn in chat.questions):
            return True
        return bool(self._lines) and any(
            line in self._lines for message in chat.messages for line in _lines(message.content)
        )


def _lines(text: str) -> Iterator[int]:
    for line in text.splitlines():
        plain = folded(line)
        if len(plain) >= MIN_LINE_CHARS:
            yield fingerprint(plain)


def _texts(uri: str, text_field: str) -> Iterator[str]:
    with storage.local_copy(uri) as path:
        if uri.lower().endswith(".txt"):
            if (size := Path(path).stat().st_size) > MAX_LINE_BYTES:
                raise DataError(f"{uri}: {TooLong(size, 'text')}; cut it, or give it as .jsonl")
            yield Path(path).read_text(encoding="utf-8", errors="replace")
            return
        for _, row in rows_of(path, uri):
            text = row.get(text_field)
            if isinstance(text, str):
                yield text
