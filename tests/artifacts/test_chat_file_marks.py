"""Marks of answers in files of chats: what is known is heeded, and what is not is told or left out."""

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


def marked(key: str, *values: object, answer: str = "") -> list[dict[str, Any]]:
    """Free answers, marked with some values in turn."""
    return [
        {"prompt": f"Sual {each}?", "completion": answer or f"Cavab {each}", key: values[each % len(values)]}
        for each in range(NUMBER)
    ]


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("label", 1, -1),
        ("label", "positive", "negative"),
        ("label", "UP", "down"),
        ("label", "\N{THUMBS UP SIGN}", "\N{THUMBS DOWN SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"),
        ("label", "Y", "N"),
        ("LABEL", True, False),
        ("Label", "true", "false"),
        ("isAccepted", True, False),
        ("is-approved", "yes", "no"),
        ("thumbs_up", 1, 0),
        ("Thumbs Down", False, True),
        ("rejected", False, True),
        ("score", 1, -1),
        ("feedback", "Positive", "Negative"),
        ("quality", "high", "low"),
        ("loss_weight", 1.0, 0.0),
        ("loss_mask", 1, 0),
        ("Compute Loss", True, False),
        ("mask", False, True),
    ],
)
def test_rows_that_are_marked_as_bad_are_left_out_however_key_and_mark_are_written(
    tmp_path: Path, key: str, good: object, bad: object
) -> None:
    number, dropped = read(tmp_path, *marked(key, good, bad))

    assert (number, dropped.counts) == (NUMBER // 2, {"marked": NUMBER // 2})


@pytest.mark.parametrize("key", ["label", "quality", "verdict"])
def test_a_mark_in_words_that_nobody_knows_is_not_taught_and_the_run_ends_with_its_remedy(
    tmp_path: Path, key: str
) -> None:
    number, dropped = read(tmp_path, *marked(key, "düzgün", "səhv"))

    assert number == 0
    with pytest.raises(DataError, match=rf"unknown_mark 12 \(a mark .* true or false.*'{key} düzgün'"):
        refuse_no_chats(["chats.jsonl"], number, dropped)


def test_bad_answers_that_all_say_the_same_are_marked_bad_where_good_ones_are_free(tmp_path: Path) -> None:
    rows = [row if row["label"] else row | {"completion": "Bilmirəm."} for row in marked("label", 1, 0)]

    number, dropped = read(tmp_path, *rows)

    assert (number, dropped.counts) == (NUMBER // 2, {"marked": NUMBER // 2})


@pytest.mark.parametrize("names", [("müsbət", "mənfi"), (1, 0), ("positive", "negative"), (0, 1, 2)])
def test_a_class_that_the_answers_tell_is_no_mark(
    tmp_path: Path, names: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row | {"completion": f"Rəy: {row['label']}"} for row in marked("label", *names)]

    assert read(tmp_path, *rows)[0] == NUMBER
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("key", "values", "warned"),
    [
        ("bəyənilib", (True, False), True),
        ("reviewer_2", ("good", "average", "poor"), True),
        ("rating", (1, 5), True),
        ("label", (0, 1, 2), True),
        ("weight", (0.25, 0.75), True),
        ("lang", ("az", "no"), False),
        ("num_words", tuple(range(NUMBER)), False),
        ("topic", ("dağ", "çay"), False),
        ("feedback", tuple(f"Rəy {each}" for each in range(NUMBER)), False),
    ],
)
def test_a_column_that_may_be_a_mark_is_told_with_its_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, values: tuple[object, ...], warned: bool
) -> None:
    assert read(tmp_path, *marked(key, *values))[0] == NUMBER

    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == warned
    assert all(f"`{key}` is not read and may mark" in each and f"{values[0]} (" in each for each in told)


def test_a_key_of_turns_that_may_be_a_mark_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = [
        {"role": "assistant", "content": f"Cavab {each}", "use_me": bool(each % 2)} for each in range(NUMBER)
    ]
    rows = [{"messages": [{"role": "user", "content": f"Sual {each['content']}"}, each]} for each in answers]

    assert read(tmp_path, *rows)[0] == NUMBER
    assert "`messages.use_me` is not read and may mark answers" in caplog.text


@pytest.mark.parametrize(
    ("mark", "number"),
    [
        ({"Loss Mask": 0}, 0),
        ({"LABEL": False}, 0),
        ({"thumbs_down": True}, 0),
        ({"train_on_turn": False}, 0),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]}, 0),
        ({"training_detail": [{"begin_offset": 0, "end_offset": 3, "train": True}]}, NUMBER),
        ({"mask": False, "Score": 0.5}, NUMBER),
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
