"""Guesses at columns that are not read: marks of answers, or passages that a question is about."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from anadil.text.chat_columns import known_name
from anadil.text.chat_marks import MARK_KEYS, MAX_VALUES, mark_of, number_of

log = logging.getLogger(__name__)

MIN_PROSE_WORDS, MIN_PROSE_CHARS = 5, 40
"""Least words of a text that a question may be about; least characters if no spaces are written."""


class UnreadValues:
    """Those of one file, column by column."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: Counter[str] = Counter()
        self._prose: Counter[str] = Counter()
        self._values: dict[str, Counter[str]] = {}
        self._many: set[str] = set()

    def add(self, unread: Mapping[str, Iterable[object]], said: Iterable[object]) -> None:
        """Note the values of a row that are not read, by column or key of a turn, and the texts that are."""
        texts: list[str] | None = None
        for name, values in unread.items():
            self._rows[name] += 1
            for value in values:
                self._count(name, value)
                # Text without spaces is told by its characters.
                if isinstance(value, str) and (
                    len(value.split()) >= MIN_PROSE_WORDS
                    or (len(value) >= MIN_PROSE_CHARS and not value.isascii())
                ):
                    texts = [*_texts(said)] if texts is None else texts
                    is_copy = any(value in text for text in texts) or all(text in value for text in texts)
                    self._prose[name] += not is_copy

    def _count(self, name: str, value: object) -> None:
        counts = self._values.setdefault(name, Counter())
        is_short = isinstance(value, bool | int | float | str) and len(str(value)) <= MIN_PROSE_CHARS
        if not is_short or (len(counts) == MAX_VALUES and str(value) not in counts):
            self._many.add(name)
        elif name not in self._many:
            counts[str(value)] += 1

    def say(self, file: str, classes: Iterable[str] = ()) -> None:
        """Warn of columns that may mean something and are not read."""
        marks = [name for name in self._rows if name not in classes and self._may_mark(name)]
        for name in marks:
            counts = ", ".join(f"{value} ({number:,})" for value, number in self._values[name].most_common())
            log.warning(
                "%s: `%s` is not read and may mark answers as bad or as not to be learnt: %s; all are taught. If it does, "
                "write it as `label: true` and `label: false`",
                file, name, counts,
            )  # fmt: skip
        if texts := [name for name, rows in self._rows.items() if 2 * self._prose[name] > rows]:
            log.warning(
                "%s: texts that are not read: %s; if questions are about one, finetune.columns: {context: %s} sets it below "
                "them",
                file, ", ".join(f"{name} ({self._prose[name]:,})" for name in texts), texts[0],
            )  # fmt: skip

    def _may_mark(self, name: str) -> bool:
        values = [] if name in self._many else [*self._values[name]]
        numbers = [value for value in values if number_of(value) is not None]
        if known_name(name.rpartition(".")[2]) in MARK_KEYS:
            return len(values) > 1 or len(values) > len(numbers)
        marks = {mark_of(value) for value in values}
        return False in marks and (None not in marks or (True in marks and not numbers))


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield from [value.strip()] if value.strip() else []
    elif not isinstance(value, bytes):
        for each in (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, Iterable) else ()
        ):
            yield from _texts(each)
