"""Questions whose answer is one of some choices."""

import itertools
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping

NUMBERED = re.compile(r"\s*(?:[(（]?(\d{1,2}|[A-Za-zＡ-Ｚａ-ｚア-コ])[).:）．：、]|([①-⑳]))\s*(\S.*?)\s*")
"""A line that names a choice: `1) ...`, `2. ...`, `(b) ...`, `（３）...`, `④...`, `オ．...`."""
KANA = list("アイウエオカキクケコ")
"""How Japanese numbers choices beside figures and letters."""
ORDERS = (list(map(str, range(1, 100))), list(string.ascii_lowercase), KANA)
CHOICE_ANSWERS = ("answer", "answerKey")
"""Columns that name the right choice; the second is ARC's and CommonsenseQA's."""
CHOICE_COLUMNS = [f"choice{place}" for place in range(10)]
"""A column for each choice, and `label` for the place of the right one, from 0 on: JCommonsenseQA's layout. Those that
begin with `choice1` are left alone: COPA's `question` is `cause` or `effect`, not what is asked."""


def choices_of(row: Mapping[str, object], question: str, answer: str) -> tuple[str, ...]:
    """The choices of a question: the texts of the row's `choices`, or numbered lines at the question's end.

    Empty if its answer is free. `answer` is the one to the row's last question and must be among them.
    """
    choices = tuple(text.strip() for text in _listed(row)[0]) or _numbered(question)
    return choices if all(choices) and answer in choices and len(set(choices)) == len(choices) > 1 else ()


def chosen_text(row: Mapping[str, object], first: int = 0) -> str | None:
    """The text among `choices` that a row's `answer` names by itself, its letter or its place (counted from `first`), or None."""
    texts, labels = _listed(row)
    answer = _answer(row)
    if isinstance(answer, str):
        plain = answer.strip()
        if plain in texts:
            return plain
        # Japanese sets write letters and brackets in full width.
        label = unicodedata.normalize("NFKC", plain).strip("().").upper()
        for order in (labels, KANA):
            if label in order[: len(texts)]:
                return texts[order.index(label)]
    place = _place(row)
    return texts[place - first] if place is not None and 0 <= place - first < len(texts) else None


def names_no_choice(row: Mapping[str, object]) -> bool:
    """Return True if a row has choices and does not say which one is right."""
    if not _listed(row)[0] or chosen_text(row) is not None:
        return False
    free = (key for key in ("response", "completion", "output") if row.get(key) is not None)
    return _answer(row) is not None or next(free, None) is None


def first_place(rows: Iterable[Mapping[str, object]]) -> int:
    """0 or 1: the place of the first choice in rows that name the right one by its place."""
    is_last = False
    for row in rows:
        place = _place(row)
        if place == 0:
            return 0
        is_last |= place is not None and place == len(_listed(row)[0])
    return int(is_last)


def with_chosen(row: dict[str, object], first: int) -> dict[str, object]:
    """The row with the text of its right choice where it gives a place."""
    text = chosen_text(row, first) if names_place(row) else None
    return row if text is None else {**row, CHOICE_ANSWERS[0]: text}


def has_choices(row: Mapping[str, object]) -> bool:
    """Return True if a row has choices, whose `label` is the right one."""
    return "choices" in row or CHOICE_COLUMNS[0] in row


def names_place(row: Mapping[str, object]) -> bool:
    """Return True if a row names the right choice by its place."""
    return _place(row) is not None


def _answer(row: Mapping[str, object]) -> object:
    keys = (*CHOICE_ANSWERS, "label") if CHOICE_COLUMNS[0] in row else CHOICE_ANSWERS
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _place(row: Mapping[str, object]) -> int | None:
    """The number that a row's answer is, unless that is one of the choices' own texts."""
    texts, labels = _listed(row)
    answer = _answer(row)
    if isinstance(answer, str) and answer.strip().isdecimal():
        plain = answer.strip()
        return None if plain in texts or plain in labels else int(plain)
    return answer if texts and isinstance(answer, int) and not isinstance(answer, bool) else None


def _listed(row: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """The texts of a row's choices and their letters; none unless all are texts. ARC's are a table of both."""
    listed: object = row.get("choices")
    if listed is None:
        listed = [row[key] for key in itertools.takewhile(row.__contains__, CHOICE_COLUMNS)]
    labels: object = list(string.ascii_uppercase)
    if isinstance(listed, Mapping):
        labels, listed = listed.get("label"), listed.get("text")
    texts = list(listed) if isinstance(listed, list | tuple) else []
    if not isinstance(labels, list) or not all(isinstance(text, str) for text in (*texts, *labels)):
        return [], []
    return texts, labels


def _numbered(question: str) -> tuple[str, ...]:
    """Choices in the last lines of a question, which are numbered one after another from 1 or A."""
    lines: list[tuple[str, str]] = []
    for line in reversed(question.split("\n")):
        match = NUMBERED.fullmatch(line)
        if match is None:
            return ()
        lines.insert(0, (unicodedata.normalize("NFKC", match[1] or match[2]).lower(), match[3]))
        if any(lines[0][0] == order[0] for order in ORDERS):
            break
    # A list that begins at 3 or skips a number is text that only looks like choices.
    names = [name for name, _ in lines]
    return tuple(text for _, text in lines) if any(names == order[: len(names)] for order in ORDERS) else ()
