"""Marks of answers in files of chats: those of public formats are heeded, and what they say unclearly is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.chat_files import read_chats, refuse_no_chats
from anadil.core.errors import DataError
from anadil.text.chats import DroppedChats

NUMBER = 12


def read(folder: Path, *rows: dict[str, Any]) -> tuple[int, DroppedChats]:
    """How many chats a file has, and what was left out."""
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    dropped = DroppedChats()
    return sum(1 for _ in read_chats([str(file)], dropped)), dropped


def marked(key: str, *values: object) -> list[dict[str, Any]]:
    """Free answers, marked with some values in turn."""
    return [
        {"prompt": f"Sual {each}?", "completion": f"Cavab {each}", key: values[each % len(values)]}
        for each in range(NUMBER)
    ]


@pytest.mark.parametrize(
    ("key", "good", "bad"), [("LABEL", True, False), ("Label", "true", "false"), ("Loss-Mask", 1.0, 0.0)]
)
def test_rows_that_are_marked_as_bad_are_left_out_however_key_and_mark_are_written(
    tmp_path: Path, key: str, good: object, bad: object
) -> None:
    number, dropped = read(tmp_path, *marked(key, good, bad))

    assert (number, dropped.counts) == (NUMBER // 2, {"marked": NUMBER // 2})


@pytest.mark.parametrize("value", ["düzgün", 1, 2])
def test_a_mark_that_says_neither_true_nor_false_is_not_taught_and_the_run_ends_with_its_remedy(
    tmp_path: Path, value: object
) -> None:
    number, dropped = read(tmp_path, *marked("label", value))

    assert number == 0
    with pytest.raises(DataError, match=rf"unknown_mark 12 \(a mark .* true or false.*'label {value}'"):
        refuse_no_chats(["chats.jsonl"], number, dropped)


def test_a_label_beside_choices_is_no_mark(tmp_path: Path) -> None:
    rows = [row | {"choices": ["a", "b"], "answer": "B"} for row in marked("label", 0, 1)]

    assert read(tmp_path, *rows)[0] == NUMBER


@pytest.mark.parametrize(
    ("mark", "number"),
    [
        ({"Loss Mask": 0}, 0),
        ({"LABEL": False}, 0),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]}, 0),
        ({"training_detail": [{"begin_offset": 0, "end_offset": 3, "train": True}]}, NUMBER),
        ({"masked": False, "Score": 0.5}, NUMBER),
    ],
)
def test_marks_of_turns_are_heeded_however_they_are_written(
    tmp_path: Path, mark: dict[str, Any], number: int
) -> None:
    rows = [
        {
            "messages": [
                {"Role": "user", "Content": f"Sual {each}"},
                {"Role": "assistant", "Content": f"Cavab {each}", **mark},
            ]
        }
        for each in range(NUMBER)
    ]

    assert read(tmp_path, *rows)[0] == number
