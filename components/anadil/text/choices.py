"""Questions whose answer is one of some choices."""

import re
from collections.abc import Mapping

NUMBERED = re.compile(r"\s*\(?(\d{1,2}|[A-Za-z])[).:．、]\s*(\S.*?)\s*")
"""A line that names a choice: `1) ...`, `2. ...`, `(b) ...`."""


def choices_of(row: Mapping[str, object], question: str, answer: str) -> tuple[str, ...]:
    """The choices of a question; empty if its answer is free.

    They are the texts of the row's `choices`, or else numbered lines at the end of the question.

    Args:
        row: The record.
        question: Its last question.
        answer: The answer to that; it is among the choices.
    """
    listed = row.get("choices")
    if isinstance(listed, list | tuple):
        found = tuple(text.strip() for text in listed if isinstance(text, str))
    else:
        found = _numbered(question)
    return found if all(found) and answer in found and len(set(found)) == len(found) > 1 else ()


def chosen_text(row: Mapping[str, object]) -> str | None:
    """The text that a row's `answer` names as a place in `choices`, counted from 0; None where it names none."""
    listed, answer = row.get("choices"), row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not isinstance(listed, list | tuple):
        return None
    text = listed[answer] if 0 <= answer < len(listed) else None
    return text if isinstance(text, str) else None


def _numbered(question: str) -> tuple[str, ...]:
    """Choices in the last lines of a question, which are numbered one after another from 1 or A."""
    found: list[tuple[str, str]] = []
    for line in reversed(question.split("\n")):
        match = NUMBERED.fullmatch(line)
        if match is None:
            return ()
        found.insert(0, (match[1].lower(), match[2]))
        if found[0][0] in ("1", "a"):
            break
    first = found[0][0]
    expected = [str(n) if first == "1" else chr(ord("a") + n - 1) for n in range(1, len(found) + 1)]
    return tuple(text for _, text in found) if [name for name, _ in found] == expected else ()
