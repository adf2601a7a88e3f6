"""Rows that make a chat, and the reasons why others do not."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet as pq

from anadil.artifacts.chat_files import check_chat_files, read_chats, refuse_no_chats
from anadil.artifacts.storage import expand
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

    expected = tuple(Message(role=each["role"], content=each["content"]) for each in (QUESTION, ANSWER))
    assert [(chat.messages, chat.place, chat.source) for chat in chats] == [
        (expected, "chats.jsonl:1", "chats")
    ]


@pytest.mark.parametrize("key", ["response", "completion"])
def test_a_prompt_and_its_answer_make_a_chat_beside_empty_columns_of_other_layouts(
    tmp_path: Path, key: str
) -> None:
    others: dict[str, object] = {"messages": [], "conversations": "", "prompt": "", "response": ""}
    file = written(tmp_path, {**others, "instruction": " Salam,\r\ndost! ", key: "Salam!\r", "lang": "az"})

    [chat] = read_chats([file], DroppedChats())

    said = [("user", "Salam,\ndost!"), ("assistant", "Salam!")]
    assert [(m.role, m.content) for m in chat.messages] == said


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
        ({"messages": []}, "no_chat"),
        ({"messages": [QUESTION]}, "no_answer"),
        ({"messages": [ANSWER, QUESTION]}, "role_order"),
        ({"messages": [QUESTION, QUESTION, ANSWER]}, "role_order"),
        ({"messages": [QUESTION, ANSWER, ANSWER]}, "role_order"),
        ({"messages": [QUESTION, {**ANSWER, "content": " \n"}]}, "empty_message"),
        ({"prompt": "", "response": "Salam"}, "no_chat"),
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
    assert [place.partition(" ")[0] for place in dropped.places[reason]] == ["chats.jsonl:1"]  # type: ignore[index]


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
    with pytest.raises(DataError, match=r"chats\.xls: chats are read from .*; convert the file, another"):
        list(read_chats(["chats.xls"], DroppedChats()))


def test_reasons_are_told_with_remedy_and_places() -> None:
    dropped = DroppedChats()
    for number in range(1, 9):
        dropped.add("too_long", f"a.jsonl:{number}")
    dropped.add("no_answer", "b.jsonl:1")

    assert dropped.total == 9
    assert str(dropped) == (
        "too_long 8 (shorten the chats or raise finetune.max_length, which ends at the model's context; a.jsonl:1, a.jsonl:2, a.jsonl:3); "
        "no_answer 1 (a chat needs an assistant turn, from which the model learns; b.jsonl:1)"
    )


PAIRS = [{"prompt": f"Sual {number}?", "response": f"Cavab {number}."} for number in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in PAIRS).encode()


def table(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(PAIRS), path)


def stream(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.Table.from_pylist(PAIRS)
    with path.open("wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)


def arrow_file(path: Path) -> None:
    """As Feather and `pyarrow.ipc.new_file` write it."""
    rows = pa.Table.from_pylist(PAIRS)
    with path.open("wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)


def dataset(path: Path) -> None:
    """As `DatasetDict.save_to_disk` of datasets writes it."""
    for part in ("train", "test"):
        stream(path / part / "data-00000-of-00001.arrow")
        (path / part / "state.json").write_text("{}")
        (path / part / "dataset_info.json").write_text("{}")
    (path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


def repository(path: Path) -> None:
    """As the hub keeps a dataset."""
    for part in ("train", "test"):
        table(path / "data" / f"{part}-00000-of-00001.parquet")
    (path / "README.md").write_text("# A dataset")
    (path / ".gitattributes").write_text("")


WRITERS: dict[str, Callable[[Path], object]] = {
    "dolly.jsonl": lambda path: path.write_bytes(LINES),
    "dolly.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "dolly.jsonl.zst": lambda path: path.write_bytes(zstandard.compress(LINES)),
    "dolly.ndjson": lambda path: path.write_bytes(LINES),
    "dolly.NDJSON.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "dolly.arrow": arrow_file,
    "dolly.json": lambda path: path.write_text(json.dumps(PAIRS)),
    "dolly.parquet": table,
    "dolly": dataset,
    "dolly/": repository,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_chats_of_a_named_source(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    dropped = DroppedChats()

    chats = list(read_chats(expand([str(tmp_path / name)], "finetune.inputs"), dropped))

    assert [(chat.messages[0].content, chat.messages[1].content) for chat in chats] == [
        (row["prompt"], row["response"]) for row in PAIRS
    ]
    assert {chat.source for chat in chats} == {"dolly"}
    assert chats[4].place.endswith(":5")
    assert not dropped.total


def test_a_json_file_of_lines_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(LINES)
    (tmp_path / "a.jsonl").write_bytes(LINES)

    as_json, as_lines = (
        [chat.id for chat in read_chats([str(tmp_path / name)], DroppedChats())]
        for name in ("a.json", "a.jsonl")
    )

    assert as_json == as_lines
    assert as_json


def test_a_test_part_alone_is_read(tmp_path: Path) -> None:
    table(tmp_path / "data" / "test-00000-of-00001.parquet")

    assert len(check_chat_files(expand([str(tmp_path / "data")], "finetune.inputs"))) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-9], r"a\.jsonl\.gz: is damaged .*; repair the file"),
        ("a.jsonl.zst", zstandard.compress(LINES)[:-5], r"a\.jsonl\.zst: is damaged .*; repair the file"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet: is a damaged table .*; repair the file"),
        ("a.arrow", b"no stream", r"a\.arrow: is a damaged table .*; repair the file"),
        ("a.json", b'[{"a": 1},', r"a\.json: is not JSON behind item 1 \(the list has no end\); correct it"),
        ("a.json", b"[1]", r"a\.json:1: a int, not an object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message):
        list(read_chats([str(tmp_path / name)], DroppedChats()))


def test_tool_turns_and_unknown_roles_are_named_with_their_value(tmp_path: Path) -> None:
    dropped = DroppedChats()
    rows = [{"messages": [{**QUESTION, "role": role}, ANSWER]} for role in ("tool", "narrator")]

    assert not list(read_chats([written(tmp_path, *rows)], dropped))
    assert dropped.places == {
        "tool_turn": ["chats.jsonl:1 ('tool')"],
        "unknown_role": ["chats.jsonl:2 ('narrator')"],
    }


def said(chat: Chat) -> list[str]:
    return [message.content for message in chat.messages]


def test_columns_of_other_names_are_read_as_the_recipe_says(tmp_path: Path) -> None:
    row = {"Sual": "Kim?", "Cavab": "Əli.", "Mətn": "Əli gəldi.", "prompt": "başqa", "answer": "başqa"}
    usual = {"prompt": "Bəs?", "answer": "Vəli."}
    dropped = DroppedChats()
    columns = {"question": "Sual", "answer": "Cavab", "context": "Mətn"}

    chats = list(read_chats([written(tmp_path, row, usual)], dropped, columns=columns))  # type: ignore[arg-type]

    assert [said(chat) for chat in chats] == [["Kim?\n\nƏli gəldi.", "Əli."], ["Bəs?", "Vəli."]]
    assert dropped.unread == {"chats.jsonl": {"prompt": 1, "answer": 1}}


def test_a_list_of_turns_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    file = written(tmp_path, {"Söhbət": [QUESTION, ANSWER], "question": "başqa"})

    [chat] = read_chats([file], DroppedChats(), columns={"messages": "Söhbət"})

    assert said(chat) == [QUESTION["content"], ANSWER["content"]]


def test_a_column_that_no_row_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    dropped = DroppedChats()
    file = written(tmp_path, {"question": "Kim?", "answer": "Əli.", "Mətn": "Əli gəldi."})
    number = sum(1 for _ in read_chats([file], dropped, columns={"context": "Metn"}))

    with pytest.raises(DataError, match=r"finetune\.columns: context: Metn: no row .* are Mətn, answer"):
        refuse_no_chats([file], number, dropped, columns={"context": "Metn"})


@pytest.mark.parametrize(
    "kind", ["jsonl", "json", "jsonl.gz", "jsonl.zst", "csv", "xlsx", "parquet", "arrow"]
)
def test_a_file_that_has_gone_since_it_was_listed_is_named_and_not_called_damaged(
    tmp_path: Path, kind: str
) -> None:
    file = tmp_path / f"chats.{kind}"

    with pytest.raises(DataError, match=rf"{re.escape(str(file))}: no such file any more; put it back, or"):
        list(read_chats([str(file)], DroppedChats()))


def test_what_is_not_read_is_said_once_a_file_with_its_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scored = {**ANSWER, "reasoning_content": "Bakı paytaxtdır.", "score": 0.5, "name": ""}
    asked = {**QUESTION, "thinking": "Nə soruşum?"}
    rows = [
        {"messages": [asked, scored], "lang": "az", "system": "Qısa."},
        {"messages": [QUESTION, ANSWER], "lang": "az", "tags": []},
        {
            "Prompt ": "Kim?",
            "answer": "Əli.",
            "rationale": "Mətndə yazılıb.",
            "PROMPT": "Nə?",
            "Answer": "O.",
        },
    ]
    dropped = DroppedChats()
    caplog.set_level("INFO")

    list(read_chats([written(tmp_path, *rows)], dropped))

    unread = {
        "messages.score": 1,
        "messages.thinking": 1,
        "lang": 2,
        "rationale": 1,
        "PROMPT": 1,
        "Answer": 1,
    }
    assert dropped.unread == {"chats.jsonl": unread}
    [told] = caplog.messages
    assert told == (
        "chats.jsonl: columns that are not read, and in how many rows they hold something: "
        "lang (2), Answer (1), PROMPT (1), messages.score (1), messages.thinking (1), rationale (1); finetune.columns names the "
        "one of a question, an answer, a system turn or a context"
    )
