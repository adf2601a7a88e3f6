"""Layouts in which people keep chats, and the part of the data that each falls in."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.text.chat_columns import choices_of
from anadil.text.chats import Chat, DroppedChats, Message, Refusal, folded, messages_of, pair_of, split_of

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
        *(
            {"system": each, "question": ASKED, "response": ANSWERED}
            for each in (
                [{"text": SYSTEM[1]}],
                {"role": "system", "content": SYSTEM[1]},
                json.dumps([{"type": "text", "text": SYSTEM[1]}]),
            )
        ),
        {"system_instruction": {"parts": [{"text": SYSTEM[1]}]}, "question": ASKED, "response": ANSWERED},
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
        ("«Əli və Nino» kimindir?", "Əli və Nino kimindir"),
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


@pytest.mark.parametrize("marks", [[0, 1], "[0, 1]", [1, 0, 1, 1]])
def test_a_list_of_marks_beside_the_turns_says_which_answers_are_learnt(marks: object) -> None:
    messages = [turn(role, text) for role, text in [*PAIR, *PAIR]]

    found = messages_of({"messages": messages, "loss_mask": marks})

    assert not isinstance(found, Refusal)
    assert [each.trained for each in found if each.role == "assistant"] == [False, True]
    wrong = messages_of({"messages": messages, "loss_mask": [0, 1, 1]})
    assert wrong == Refusal("unknown_mark", "loss_mask of 3 marks")


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
        ({"instruction": "Tərcümə et:", "input": "salam"}, "Tərcümə et:\n\nsalam"),
        ({"question": "Kim?", "passages": "x", "documents": ["Əli gəldi.", {"title": "A", "text": "Vəli getdi."}]}, "Kim?\n\nƏli gəldi.\n\nVəli getdi."),
        ({"instruction": "Cavab ver.", "question": "Kim?", "passage": "Əli gəldi."}, "Cavab ver.\n\nƏli gəldi.\n\nKim?"),
        ({"prompt": "Mətn: Əli gəldi. Kim?", "context": "Əli gəldi."}, "Mətn: Əli gəldi. Kim?"),
        ({"prompt": [turn("user", "Kim?")], "context": "Əli gəldi."}, "Kim?\n\nƏli gəldi."),
    ],
)  # fmt: skip
def test_the_passage_of_a_question_stands_below_it(row: dict[str, Any], asked: str) -> None:
    assert read(row | {"answer": "Əli."}) == (("user", asked), ("assistant", "Əli."))


def test_a_row_whose_passage_is_no_text_is_left_out() -> None:
    row = {"question": "Kim?", "context": {"title": ["A"], "sentences": [["Əli gəldi."]]}, "answer": "Əli."}

    assert read(row) == Refusal("no_passage", "context")


def test_a_row_without_a_chat_is_refused_with_its_columns() -> None:
    assert read({"Sual": "Kim?", "Cavab": "Əli.", "Qeyd": None}) == Refusal("no_chat", "Sual, Cavab")


BETTER, WORSE = "Bakıdır.", "Bilmirəm."
USER = {"role": "user", "content": ASKED}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


LAYOUTS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": ASKED, "chosen": BETTER, "rejected": WORSE},
    "prompt of messages": {"prompt": [USER], "chosen": [assistant(BETTER)], "rejected": [assistant(WORSE)]},
    "prompt of messages, answers as texts": {"prompt": [USER], "chosen": BETTER, "rejected": WORSE},
    "answers as messages": {"prompt": ASKED, "chosen": assistant(BETTER), "rejected": assistant(WORSE)},
    "HuggingFaceH4/ultrafeedback_binarized": {
        "prompt": ASKED, "prompt_id": "1", "chosen": [USER, assistant(BETTER)], "rejected": [USER, assistant(WORSE)],
        "messages": [USER, assistant(BETTER)], "score_chosen": 8.5, "score_rejected": 2.0,
    },
    "trl-lib/ultrafeedback_binarized": {"chosen": [USER, assistant(BETTER)], "rejected": [USER, assistant(WORSE)]},
    "Intel/orca_dpo_pairs": {"system": "", "question": ASKED, "chosen": BETTER, "rejected": WORSE},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": ASKED}],
        "chosen": {"from": "gpt", "value": BETTER}, "rejected": {"from": "gpt", "value": WORSE},
    },
    "Anthropic/hh-rlhf": {
        "chosen": f"\n\nHuman: {ASKED}\n\nAssistant: {BETTER}",
        "rejected": f"\n\nHuman: {ASKED}\n\nAssistant: {WORSE}",
    },
    "Dahoas/rm-static": {
        "prompt": f"\n\nHuman: {ASKED}\n\nAssistant:", "response": f" {BETTER}",
        "chosen": f" {BETTER}", "rejected": f" {WORSE}",
    },
    "hh-rlhf beside its prompt": {
        "prompt": f"\n\nHuman: {ASKED}\n\nAssistant:",
        "chosen": f"\n\nHuman: {ASKED}\n\nAssistant: {BETTER}",
        "rejected": f"\n\nHuman: {ASKED}\n\nAssistant: {WORSE}",
    },
    "turns as columns": {
        "chosen": {"role": ["user", "assistant"], "content": [ASKED, BETTER]},
        "rejected": {"role": ["user", "assistant"], "content": [ASKED, WORSE]},
    },
    "a user's turn after the answer": {"chosen": [USER, assistant(BETTER), USER], "rejected": [USER, assistant(WORSE)]},
}  # fmt: skip


@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_usual_layouts_give_the_same_pair(row: dict[str, Any]) -> None:
    asked = Message(role="user", content=ASKED)

    assert pair_of(row) == (
        (asked, Message(role="assistant", content=BETTER)),
        (asked, Message(role="assistant", content=WORSE)),
    )


def test_a_system_turn_and_earlier_turns_belong_to_both_chats() -> None:
    turns = [USER, assistant("Hansı ölkənin?"), {"role": "user", "content": "Azərbaycanın."}]

    found = pair_of({"system": "Qısa cavab ver.", "prompt": turns, "chosen": BETTER, "rejected": WORSE})

    assert not isinstance(found, Refusal)
    assert [message.role for message in found[0]] == ["system", "user", "assistant", "user", "assistant"]
    assert found[0][:-1] == found[1][:-1]


@pytest.mark.parametrize(
    ("row", "refusal"),
    [
        ({"prompt": ASKED}, Refusal("no_pair", "no chosen")),
        ({"chosen": BETTER, "rejected": WORSE}, Refusal("no_pair")),
        ({"prompt": ASKED, "chosen": ["a", "b"], "rejected": WORSE}, Refusal("malformed")),
        ({"prompt": ASKED, "chosen": BETTER, "rejected": f" {BETTER}\n"}, Refusal("same_answer")),
        (
            {"prompt": ASKED, "chosen": f"{ASKED} {BETTER}", "rejected": f"{ASKED}\n{WORSE}"},
            Refusal("question_in_answer"),
        ),
        ({"prompt": ASKED, "chosen": BETTER, "rejected": "  "}, Refusal("empty_message")),
        ({"prompt": ASKED, "chosen": "\ud83d", "rejected": WORSE}, Refusal("not_unicode")),
        ({"prompt": ASKED, "chosen": [{"role": "boss", "content": "a"}], "rejected": WORSE}, Refusal("unknown_role", "boss")),
        ({"prompt": ASKED, "chosen": [USER], "rejected": [USER]}, Refusal("no_answer")),
        (
            {"chosen": [USER, assistant(BETTER)], "rejected": [{"role": "user", "content": "?"}, assistant(WORSE)]},
            Refusal("other_question"),
        ),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused_by_name(row: dict[str, Any], refusal: Refusal) -> None:
    assert pair_of(row) == refusal


XCOPA = "Kişi kranı açdı.\nBu hadisənin nəticəsi hansıdır?\n1) Tualet su ilə doldu.\n2) Krandan su axdı."


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (XCOPA, "Krandan su axdı.", ("Tualet su ilə doldu.", "Krandan su axdı.")),
        ("どれ？\n1. 世界\n2. 写真集\n3. 絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\n１．世界\n２．写真集\n３．絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\nア、世界\nイ、写真集\nウ、絵本", "絵本", ("世界", "写真集", "絵本")),
        ("どれ？\nア、世界\nウ、写真集", "世界", ()),
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
        *(
            ({"question": "Hansı?", "options": each, "answer": "B"}, "iki")
            for each in (
                ["bir", "iki"],
                '["bir", "iki"]',
                {"A": "bir", "B": "iki"},
                "A) bir\nB) iki",
                [{"key": "A", "value": "bir"}, {"key": "B", "value": "iki"}],
            )
        ),
        ({"instruction": "Hansı?", "Options": ["bir", "iki"], "output": "(b)"}, "iki"),
        ({"question": "Hansı?", "options": ["bir", "iki"], "label": 0}, "bir"),
        ({"question": "Hansı?", "A": "bir", "B": "iki", "answer": "B"}, "iki"),
        *(
            ({"question": "Hansı?", "Option A": "bir", "Option B": "iki", "answer": each}, "bir")
            for each in ("a", "option_a", "Variant (A)")
        ),
        *(
            ({"question": "Hansı?", "variant_1": "bir", "variant_2": "iki", "answer": each}, "iki")
            for each in (2, "2")
        ),
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


def test_a_table_of_many_columns_is_read_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"c{number}" for number in range(60_000)]
    (tmp_path / "c.csv").write_text(f"question,answer,{','.join(names)}\nBir?,Bir!{',x' * len(names)}\n")
    caplog.set_level("INFO")
    started = time.process_time()

    assert len(list(read_chats([str(tmp_path / "c.csv")], DroppedChats()))) == 1
    assert time.process_time() - started < 10
    assert "and 59,970 more" in caplog.text


def test_a_letter_whose_choices_cannot_be_read_is_not_taught() -> None:
    row = {"question": "Hansı?", "options": "bir yaxud iki", "answer": "B"}

    assert read(row) == Refusal("no_choice", "B")
    assert read({**row, "answer": "iki"}) == (("user", "Hansı?"), ("assistant", "iki"))
    assert read({**row, "options": ["bir", "iki"], "answer": "C"}) == Refusal("no_choice", "C")


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
