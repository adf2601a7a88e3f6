"""Rows of a file of pairs as questions with choices."""

import re
from collections.abc import Mapping
from typing import Any

CHOICE = re.compile(r"^\s*(?:\d{1,2}|[A-Za-z])[.)]\s+(\S.*?)\s*$", re.MULTILINE)
"""A line such as `1) Krandan su axdı.` or `B. 10`."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def with_choices(rows: Any) -> Any:
    """Return the rows that are questions with choices, as `question`, `choices` and `answer` (a place)."""
    questions = [question for row in rows if (question := question_of(row)) is not None]
    return type(rows).from_list(questions)


def question_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one row as `question`, `choices`, `answer`; None where it is not a question with choices."""
    if row.get("choices"):
        choices, answer = [str(each) for each in row["choices"]], row.get("answer")
        question = row.get("question")
    else:
        question, answer = row.get("prompt"), row.get("response")
        choices = CHOICE.findall(question) if isinstance(question, str) else []
    place = _place(answer, choices)
    if not isinstance(question, str) or place is None or len(choices) < 2:
        return None
    return {"question": question.strip(), "choices": choices, "answer": place}


def _place(answer: object, choices: list[str]) -> int | None:
    if isinstance(answer, int):
        return answer if 0 <= answer < len(choices) else None
    text = str(answer).strip()
    if text in choices:
        return choices.index(text)
    return LETTERS.index(text) if len(text) == 1 and text in LETTERS[: len(choices)] else None
