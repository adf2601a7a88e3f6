"""What a question in a file is about: taught below it, or told where nothing says what a column is."""

import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.chat_files import read_chats, refuse_no_chats
from anadil.text.chat_columns import Names
from anadil.text.chats import DroppedChats

STORY = "Kənddə bir qoca yaşayırdı, onun da üç oğlu var idi."
ASKED, ANSWERED = "Oğul neçədir?", "Üç."
MESSAGES = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]


def read(folder: Path, row: dict[str, Any], columns: Names) -> list[str]:
    file = folder / "chats.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    dropped = DroppedChats()
    chats = list(read_chats([str(file)], dropped, columns=columns))
    refuse_no_chats([str(file)], len(chats), dropped, columns=columns)
    return [message.content for message in chats[0].messages]


@pytest.mark.parametrize("beside", [{"question": ASKED, "answer": ANSWERED}, {"messages": MESSAGES}])
@pytest.mark.parametrize(
    ("column", "columns"),
    [("article", {}), ("Story", {}), ("documents", {}), ("evidence", {}), ("Hekayə", {"context": "Hekayə"})],
)
def test_a_passage_stands_below_the_question_of_each_layout(
    tmp_path: Path, beside: dict[str, Any], column: str, columns: Names
) -> None:
    assert read(tmp_path, {**beside, column: STORY}, columns) == [f"{ASKED}\n\n{STORY}", ANSWERED]


def test_a_passage_that_a_chat_holds_already_is_not_said_again(tmp_path: Path) -> None:
    row = {"messages": [{"role": "system", "content": f"Mətn: {STORY}"}, *MESSAGES], "context": STORY}

    assert read(tmp_path, row, {})[1:] == [ASKED, ANSWERED]


@pytest.mark.parametrize(
    "answers",
    [{"text": [ANSWERED, "3"], "answer_start": [4, 9]}, [ANSWERED], [{"text": ANSWERED, "answer_start": 1}]],
)
def test_of_several_right_answers_the_first_is_taught(tmp_path: Path, answers: object) -> None:
    assert read(tmp_path, {"question": ASKED, "answers": answers}, {}) == [ASKED, ANSWERED]


def test_a_question_without_an_answer_is_counted_so(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"question": ASKED, "answers": {"text": [], "answer_start": []}}))
    dropped = DroppedChats()

    assert list(read_chats([str(file)], dropped)) == []
    assert dropped.counts == {"no_answer": 1}


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"data": {"Sual": ASKED}, "Cavab": ANSWERED}, {"question": "data.Sual", "answer": "Cavab"}),
        ({"a": {"b": {"c": MESSAGES}}}, {"messages": "a.b.c"}),
        ({"data.Sual": ASKED, "ANSWER": ANSWERED}, {"question": "data.Sual"}),
        ({"Question": ASKED, "Answer": ANSWERED}, {}),
        ({" PROMPT ": ASKED, "Output": ANSWERED}, {}),
        ({"Messages": MESSAGES}, {}),
    ],
)
def test_columns_are_found_by_path_and_in_any_case(
    tmp_path: Path, row: dict[str, Any], columns: Names
) -> None:
    assert read(tmp_path, row, columns) == [ASKED, ANSWERED]


def test_an_instruction_stays_above_a_question_with_a_name_of_its_own(tmp_path: Path) -> None:
    row = {"instruction": "Qısa cavab ver.", "Sual": ASKED, "Cavab": ANSWERED}
    columns: Names = {"question": "Sual", "answer": "Cavab"}

    assert read(tmp_path, row, columns) == [f"Qısa cavab ver.\n\n{ASKED}", ANSWERED]
    assert read(tmp_path, {**row, "output": "Three."}, columns) == [ASKED, ANSWERED]
