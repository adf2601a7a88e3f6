"""Rows that make a chat, and the reasons why others do not."""

import json
from pathlib import Path

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.core.errors import DataError
from anadil.text.chats import Chat, DroppedChats, Message

QUESTION = {"role": "user", "content": "Azərbaycanın paytaxtı hansı şəhərdir?"}
ANSWER = {"role": "assistant", "content": "Azərbaycanın paytaxtı Bakı şəhəridir."}


def written(folder: Path, *rows: object) -> str:
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def test_messages_go_before_a_prompt_column_beside_them(tmp_path: Path) -> None:
    file = written(
        tmp_path, {"prompt": "başqa", "response": "başqa", "messages": [QUESTION, ANSWER], "url": 1}
    )

    chats = list(read_chats([file], DroppedChats()))

    expected = (Message(**QUESTION), Message(**ANSWER))
    assert chats == [Chat(messages=expected, place="chats.jsonl:1", source="chats")]


@pytest.mark.parametrize("key", ["response", "completion"])
def test_a_prompt_and_its_answer_make_a_chat(tmp_path: Path, key: str) -> None:
    file = written(tmp_path, {"prompt": " Salam! ", key: "Salam!\n", "lang": "az"})

    [chat] = read_chats([file], DroppedChats())

    assert [(m.role, m.content) for m in chat.messages] == [("user", "Salam!"), ("assistant", "Salam!")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "Salam"}, "no_chat"),
        ({"prompt": "Salam"}, "no_chat"),
        ({"messages": "Salam"}, "malformed"),
        ({"messages": ["Salam"]}, "malformed"),
        ({"messages": [{"role": "user"}]}, "malformed"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text"}]}]}, "malformed"),
        ({"prompt": "Salam", "response": 7}, "malformed"),
        ({"messages": []}, "no_answer"),
        ({"messages": [QUESTION]}, "no_answer"),
        ({"messages": [ANSWER, QUESTION]}, "role_order"),
        ({"messages": [QUESTION, QUESTION, ANSWER]}, "role_order"),
        ({"messages": [QUESTION, ANSWER, ANSWER]}, "role_order"),
        ({"messages": [QUESTION, {**ANSWER, "content": " \n"}]}, "empty_message"),
        ({"prompt": "", "response": "Salam"}, "empty_message"),
        ({"prompt": "Salam", "response": "\ud83d"}, "not_unicode"),
    ],
)
def test_a_row_that_is_no_chat_is_counted_under_its_reason(
    tmp_path: Path, row: dict[str, object], reason: str
) -> None:
    dropped = DroppedChats()

    chats = list(read_chats([written(tmp_path, row)], dropped))

    assert not chats
    assert dropped.counts == {reason: 1}
    assert dropped.places == {reason: ["chats.jsonl:1"]}


def test_one_system_turn_may_come_first(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Qısa cavab ver."}

    [chat] = read_chats([written(tmp_path, {"messages": [system, QUESTION, ANSWER]})], DroppedChats())

    assert [message.role for message in chat.messages] == ["system", "user", "assistant"]


@pytest.mark.parametrize("line", [b'{"prompt": "a",}', b"{", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_bytes(b'{"prompt": "a", "response": "b"}\r\n\r\n' + line + b"\n")

    with pytest.raises(DataError, match=r"chats\.jsonl:3: not a JSON line .*; correct or remove the line"):
        list(read_chats([str(file)], DroppedChats()))


def test_a_line_that_is_no_object_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"chats\.jsonl:1: a list, not an object"):
        list(read_chats([written(tmp_path, ["Salam"])], DroppedChats()))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "response": "b"}\n')

    assert len(list(read_chats([str(file)], DroppedChats()))) == 1


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(DataError, match=r"chats\.csv: chats are read from"):
        list(read_chats(["chats.csv"], DroppedChats()))


def test_reasons_are_told_with_remedy_and_places() -> None:
    dropped = DroppedChats()
    for number in range(1, 9):
        dropped.add("too_long", f"a.jsonl:{number}")
    dropped.add("no_answer", "b.jsonl:1")

    assert dropped.total == 9
    assert str(dropped) == (
        "too_long 8 (shorten the chats or raise finetune.max_length; a.jsonl:1, a.jsonl:2, a.jsonl:3); "
        "no_answer 1 (a chat needs an assistant turn, from which the model learns; b.jsonl:1)"
    )
