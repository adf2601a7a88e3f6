import json
from pathlib import Path

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.text.chats import DroppedChats
from anadil.text.choices import choices_of

XCOPA = "Kişi kranı açdı.\nBu hadisənin nəticəsi hansıdır?\n1) Tualet su ilə doldu.\n2) Krandan su axdı."


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (XCOPA, "Krandan su axdı.", ("Tualet su ilə doldu.", "Krandan su axdı.")),
        ("どれ？\n1. 世界\n2. 写真集\n3. 絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\n１．世界\n２．写真集\n３．絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\n（１）世界\n（２）写真集", "世界", ("世界", "写真集")),
        ("どれ？\n①世界\n②写真集", "世界", ("世界", "写真集")),
        ("どれ？\nＡ：世界\nＢ：写真集", "世界", ("世界", "写真集")),
        ("どれ？\nア、世界\nイ、写真集\nウ、絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\nア、世界\nウ、写真集", "世界", ()),
        ("Hansı?\n(a) bir\n(b) iki", "bir", ("bir", "iki")),
        (XCOPA, "Bilmirəm.", ()),
        ("Sıra:\n2) bir\n3) iki", "iki", ()),
        ("Sıra:\n1) bir\n3) iki", "iki", ()),
        ("Sıra:\n1) bir\n2) bir", "bir", ()),
        ("1) bir\n2) iki\nHansı?", "iki", ()),
        ("Paytaxt haradır?", "Bakı", ()),
    ],
)
def test_numbered_lines_at_the_end_of_a_question_are_choices_if_its_answer_is_one(
    question: str, answer: str, expected: tuple[str, ...]
) -> None:
    assert choices_of({}, question, answer) == expected


CHOICES = {"question": "Hansı?", "choices": ["bir", "iki"]}
ARC = {"question": "Hansı?", "choices": {"text": ["bir", "iki"], "label": ["1", "2"]}}
COMMONSENSE = {"question": "Hansı?", "choice0": "bir", "choice1": "iki"}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        *(({**CHOICES, "answer": each}, "iki") for each in (1, "iki", "B", "1", "（Ｂ）", "イ")),
        *(({**CHOICES, "answer": each}, "bir") for each in (0, "(a)")),
        ({"prompt": "Hansı?", "choices": ["bir", "iki"], "answer": "iki"}, "iki"),
        ({**ARC, "answerKey": "1"}, "bir"),
        ({**COMMONSENSE, "label": 1}, "iki"),
        ({**COMMONSENSE, "label": 0}, "bir"),
    ],
)
def test_a_row_of_choices_is_a_chat_whose_answer_is_one_of_them(
    row: dict[str, object], answer: str, tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps(row), encoding="utf-8")

    (chat,) = read_chats([str(tmp_path / "c.jsonl")], DroppedChats())

    assert chat.choices == ("bir", "iki")
    assert chat.messages[-1].content == answer
    assert chat.as_row()["choices"] == ["bir", "iki"]


def rows(*answers: object) -> str:
    made = ({**CHOICES, "question": f"Hansı {n}?", "answer": each} for n, each in enumerate(answers))
    return "".join(json.dumps(row) + "\n" for row in made)


def test_rows_whose_question_is_cause_or_effect_are_left_out_and_counted(tmp_path: Path) -> None:
    dropped = DroppedChats()
    copa = {"premise": "Yağış yağdı.", "choice1": "bir", "choice2": "iki", "question": "cause", "label": 0}
    (tmp_path / "c.jsonl").write_text(json.dumps(copa), encoding="utf-8")

    assert not list(read_chats([str(tmp_path / "c.jsonl")], dropped))
    assert dropped.counts == {"no_chat": 1}


@pytest.mark.parametrize("answer", [3, -1, True, None, "üç", "C"])
def test_an_answer_that_is_none_of_the_choices_is_counted_with_line_and_remedy(
    answer: object, tmp_path: Path
) -> None:
    dropped = DroppedChats()
    (tmp_path / "c.jsonl").write_text(rows(answer), encoding="utf-8")

    assert not list(read_chats([str(tmp_path / "c.jsonl")], dropped))
    assert dropped.counts == {"no_choice": 1}
    assert "needs the right one as `answer`: its text, letter (A, B, ...) or place; c.jsonl:1" in str(dropped)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((1, 2, 1), ["bir", "iki", "bir"]),
        (("1", "2"), ["bir", "iki"]),
        ((1, 0, 1), ["iki", "bir", "iki"]),
        ((1, 1), ["iki", "iki"]),
        ((1, 0, 2), ["iki", "bir"]),
    ],
)
def test_places_count_from_1_where_some_row_names_the_last_one_so_and_none_0(
    answers: tuple[object, ...], expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_text(rows(*answers), encoding="utf-8")

    chats = list(read_chats([str(tmp_path / "c.jsonl")], DroppedChats()))

    assert [chat.messages[-1].content for chat in chats] == expected
