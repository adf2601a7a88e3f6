"""Layouts in which people keep chats, and the part of the data that each falls in."""

import json
from typing import Any

import pytest

from anadil.text.chats import Chat, Message, Refusal, folded, messages_of, split_of

ASKED, ANSWERED = "Paytaxt hansıdır?", "Bakı."
PAIR = (("user", ASKED), ("assistant", ANSWERED))
SYSTEM = ("system", "Qısa cavab ver.")


def turn(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def said(role: str, value: str) -> dict[str, str]:
    return {"from": role, "value": value}


def part(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "text": text}


def read(row: dict[str, Any]) -> Any:
    messages = messages_of(row)
    return (
        messages if isinstance(messages, Refusal) else tuple((each.role, each.content) for each in messages)
    )


def chat(*questions: str) -> Chat:
    turns = [
        Message(role=role, content=text)
        for asked in questions
        for role, text in (("user", asked), ("assistant", "B"))
    ]
    return Chat(messages=tuple(turns), place="a:1")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [turn("user", ASKED), turn("assistant", ANSWERED)]},
        {"messages": [turn("USER", [{"type": "text", "text": ASKED}]), turn("Model", [ANSWERED])]},
        {"conversations": [said("human", ASKED), said("gpt", ANSWERED)]},
        {"conversations": [turn("user", ASKED), turn("assistant", ANSWERED)], "id": 7},
        {"messages": {"role": ["user", "assistant"], "content": [ASKED, ANSWERED]}},
        {"conversations": {"from": ["human", "gpt"], "value": [ASKED, ANSWERED]}},
        {"messages": [{"role": None, "content": None, **said("human", ASKED)}, turn("assistant", ANSWERED)]},
        {"messages": [turn("system", " "), turn("user", ASKED), turn("assistant", ANSWERED)]},
        {"prompt": ASKED, "response": ANSWERED},
        {"prompt": ASKED, "completion": ANSWERED},
        {"prompt": [turn("user", ASKED)], "completion": [turn("assistant", ANSWERED)]},
        {"instruction": ASKED, "input": "", "output": ANSWERED},
        {"question": ASKED, "answer": ANSWERED},
        {"messages": json.dumps([turn("user", ASKED), turn("assistant", ANSWERED)])},
        {
            "messages": [
                turn("user", [part("input_text", ASKED)]),
                turn("assistant", [part("output_text", ANSWERED)]),
            ]
        },
        {"messages": None, "question": ASKED, "answer": ANSWERED},
        {"messages": [turn("user", f" {ASKED}\n"), turn("assistant", ANSWERED), turn("user", "Bəs?")]},
    ],
)
def test_usual_layouts_give_the_same_chat(row: dict[str, Any]) -> None:
    assert read(row) == PAIR


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [turn("developer", SYSTEM[1]), turn("user", ASKED), turn("assistant", ANSWERED)]},
        {"system": SYSTEM[1], "conversations": [said("human", ASKED), said("gpt", ANSWERED)]},
        {"system_prompt": SYSTEM[1], "question": ASKED, "response": ANSWERED},
    ],
)
def test_a_system_turn_is_read_in_each_layout(row: dict[str, Any]) -> None:
    assert read(row) == (SYSTEM, *PAIR)


def test_the_history_of_an_instruction_comes_before_it() -> None:
    row = {"instruction": "Bəs əhalisi?", "output": "İki milyon.", "history": [[ASKED, ANSWERED]]}

    assert read(row) == (*PAIR, ("user", "Bəs əhalisi?"), ("assistant", "İki milyon."))
    assert read({**row, "history": []}) == read({**row, "history": None}) == read({**row, "history": "1990"})


def test_an_answer_of_weight_0_is_context_and_none_at_the_end_is_kept() -> None:
    untrained = {**turn("assistant", "Gəncə."), "weight": 0}
    messages = [
        turn("user", ASKED),
        untrained,
        turn("user", ASKED),
        {**turn("assistant", ANSWERED), "weight": 1},
    ]

    found = messages_of({"messages": [*messages, turn("user", "Bəs?"), untrained]})

    assert not isinstance(found, Refusal)
    assert [(each.content, each.trained) for each in found] == [
        (ASKED, True), ("Gəncə.", False), (ASKED, True), (ANSWERED, True),
    ]  # fmt: skip
    assert read({"messages": messages[:2]}) == Refusal("no_answer")


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        ([turn("tool", "42"), turn("assistant", "B")], Refusal("tool_turn", "tool")),
        ([said("function_call", "f()"), said("gpt", "B")], Refusal("tool_turn", "function_call")),
        ([{**turn("assistant", None), "tool_calls": [{}]}], Refusal("tool_turn", "assistant")),
        ([turn("narrator", "A"), turn("assistant", "B")], Refusal("unknown_role", "narrator")),
        ([turn("user", [{"type": "image_url"}]), turn("assistant", "B")], Refusal("not_text", "image_url")),
        ([turn("user", "A")], Refusal("no_answer")),
        (
            [turn("user", "A"), {**turn("assistant", "B"), "weight": 0.5}],
            Refusal("unknown_mark", "weight 0.5"),
        ),
        ([turn("assistant", "A"), turn("user", "B")], Refusal("role_order")),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_name(messages: list[object], refusal: Refusal) -> None:
    assert read({"messages": messages}) == refusal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("PAYTAXT hansıdır", "paytaxt  hansıdır?"),
        ("Işıq nədir?", "işıq nədir"),
        ("İşıq", "ışıq"),
        ("«Əli və Nino» kimindir?", "Əli və Nino kimindir"),
        ("カタカナ", "ｶﾀｶﾅ"),
    ],
)
def test_a_question_is_the_same_in_other_case_blanks_and_punctuation(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert split_of(chat(one), 0.3, 0.3) == split_of(chat(other), 0.3, 0.3)


@pytest.mark.parametrize(("one", "other"), [("2 - 2", "2 2"), ("2-2", "2+2"), ("5%", "5"), ("हिंदी", "हदी")])
def test_other_questions_stay_apart(one: str, other: str) -> None:
    assert folded(one) != folded(other)


def test_a_question_falls_in_one_part_whatever_its_answer_and_the_shares_hold() -> None:
    chats = [chat(f"Sual {number}?") for number in range(2_000)]
    parts = [split_of(each, 0.1, 0.2) for each in chats]

    assert parts.count("heldout") / len(chats) == pytest.approx(0.2, abs=0.03)
    assert parts.count("validation") / len(chats) == pytest.approx(0.1, abs=0.03)
    assert split_of(chat("Sual 5?", "Bəs?"), 0.1, 0.2) == parts[5]
    assert {split_of(each, 0.0, 0.0) for each in chats} == {"train"}
    more = [split_of(each, 0.0, 0.3) for each in chats]
    assert all(now == "heldout" for before, now in zip(parts, more, strict=True) if before == "heldout")


@pytest.mark.parametrize(
    "mark",
    [
        {"weight": 0.0}, {"train": False}, {"training": False}, {"loss": False}, {"loss_scale": 0},
        {"train": "false"}, {"masked": True}, {"label": False},
    ],
)  # fmt: skip
def test_a_turn_that_is_marked_as_not_to_be_learnt_is_context(mark: dict[str, Any]) -> None:
    turns = [
        turn("user", "Çay?"),
        {**turn("assistant", "Kür."), **mark},
        turn("user", "Göl?"),
        turn("assistant", "Göygöl."),
    ]

    found = messages_of({"messages": turns})

    assert not isinstance(found, Refusal)
    assert [each.trained for each in found] == [True, False, True, True]


def test_a_mark_that_lets_a_turn_be_learnt_changes_nothing() -> None:
    marks = {"weight": 1, "train": True, "loss": None, "loss_scale": 1.0, "masked": False}
    turns = [turn("user", ASKED), {**turn("assistant", ANSWERED), **marks}]

    assert messages_of({"messages": turns}) == messages_of(
        {"messages": [turns[0], turn("assistant", ANSWERED)]}
    )


@pytest.mark.parametrize(
    "mark",
    [
        {"label": False}, {"kto_tag": "False"}, {"train": False}, {"weight": 0}, {"loss_mask": 0}, {"masked": True},
    ],
)  # fmt: skip
def test_a_row_whose_answer_is_marked_as_bad_is_no_good_chat(mark: dict[str, Any]) -> None:
    [(name, value)] = mark.items()

    assert read({"prompt": "Çay?", "completion": "Kür."} | mark) == Refusal("marked", f"{name} {value}")
    assert read({"messages": [turn("user", ASKED), turn("assistant", ANSWERED)]} | mark).reason == "marked"


@pytest.mark.parametrize(
    "mark", [{"label": True}, {"label": None}, {"rating": 0}, {"loss": 2.3}, {"rejected": True}]
)
def test_what_is_no_mark_of_a_bad_answer_leaves_the_row(mark: dict[str, Any]) -> None:
    assert read({"prompt": ASKED, "completion": ANSWERED} | mark) == PAIR


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"question": "Nə vaxt?", "context": "Qatar altıda gedir."}, "Nə vaxt?\n\nQatar altıda gedir."),
        ({"prompt": "Tərcümə et:", "input": "kitab"}, "Tərcümə et:\n\nkitab"),
        ({"instruction": "Tərcümə et:", "input": "salam"}, "Tərcümə et:\n\nsalam"),
        ({"question": "Kim?", "passages": "x", "documents": ["Əli gəldi.", {"title": "A", "text": "Vəli getdi."}]}, "Kim?\n\nƏli gəldi.\n\nVəli getdi."),
        ({"instruction": "Cavab ver.", "question": "Kim?", "passage": "Əli gəldi."}, "Cavab ver.\n\nƏli gəldi.\n\nKim?"),
        ({"prompt": "Mətn: Əli gəldi. Kim?", "context": "Əli gəldi."}, "Mətn: Əli gəldi. Kim?"),
        ({"prompt": [turn("user", "Kim?")], "context": "Əli gəldi."}, "Kim?\n\nƏli gəldi."),
        ({"question": "Kim?", "document": 17}, "Kim?"),
    ],
)  # fmt: skip
def test_the_passage_of_a_question_stands_below_it(row: dict[str, Any], asked: str) -> None:
    assert read(row | {"answer": "Əli."}) == (("user", asked), ("assistant", "Əli."))


def test_a_row_whose_passage_is_no_text_is_left_out() -> None:
    row = {"question": "Kim?", "context": {"title": ["A"], "sentences": [["Əli gəldi."]]}, "answer": "Əli."}

    assert read(row) == Refusal("no_passage", "context")


def test_a_row_without_a_chat_is_refused_with_its_columns() -> None:
    assert read({"Sual": "Kim?", "Cavab": "Əli.", "Qeyd": None}) == Refusal("no_chat", "Sual, Cavab")
