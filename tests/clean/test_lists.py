"""Texts that a corpus must not hold, of files of every layout."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import line_reader
from anadil.clean.filters.lists import read_items
from anadil.core.errors import DataError
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl

ROWS: list[dict[str, Any]] = [
    {"question": "Paytaxt hansıdır?", "answer": "Bakı"},
    {"messages": [{"role": "user", "content": "Salam"}]},
]
TEXTS = {1: ["Paytaxt hansıdır?", "Bakı"], 2: ["user", "Salam"]}


def jsonl(path: Path) -> None:
    path.write_text("\n\n".join(map(json.dumps, ROWS)), encoding="utf-8")


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))


def rows_as_table() -> pa.Table:
    return pa.table({key: [row.get(key) for row in ROWS] for key in ("question", "answer", "messages")})


def table(path: Path) -> None:
    pq.write_table(rows_as_table(), path, row_group_size=1)


def arrow(path: Path) -> None:
    made = rows_as_table()
    with pa.ipc.new_stream(str(path), made.schema) as stream:
        stream.write_table(made)


@pytest.mark.parametrize(
    ("name", "write", "second"),
    [
        ("qa.jsonl", jsonl, 3),  # places are lines, and one is blank
        ("qa.jsonl.gz", packed, 2),
        ("qa.json", lambda path: path.write_text(json.dumps(ROWS)), 2),
        ("qa.PARQUET", table, 2),
        ("qa.arrow", arrow, 2),
    ],
)
def test_every_text_of_every_layout_is_found_with_its_place(
    name: str, write: Callable[[Path], None], second: int, tmp_path: Path
) -> None:
    write(tmp_path / name)

    found = list(read_items([str(tmp_path / name)]))

    assert found == [(f"{name}:1", text) for text in TEXTS[1]] + [
        (f"{name}:{second}", text) for text in TEXTS[2]
    ]


@pytest.mark.parametrize(("name", "separator"), [("qa.csv", ","), ("qa.TSV", "\t")])
def test_each_field_of_a_table_is_a_text(name: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(
        f'\ufeffsual{separator}cavab\n"Paytaxt\nhansıdır?"{separator}Bakı\n', encoding="utf-8"
    )

    assert list(read_items([str(tmp_path / name)])) == [
        (f"{name}:1", "sual"), (f"{name}:1", "cavab"), (f"{name}:2", "Paytaxt\nhansıdır?"), (f"{name}:2", "Bakı"),
    ]  # fmt: skip


def test_a_text_file_is_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("Bakı\nşəhər" * 50).encode() + b"\xff")

    assert list(read_items([str(tmp_path / "a.txt")])) == [("a.txt:1", "Bakı\nşəhər" * 50 + "\ufffd")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qa.xml", b"a,b", r"qa\.xml: cannot be compared with; its name must end in one of \.jsonl"),
        ("qa.jsonl", b'{"a": "b"}\n{"a":', r"qa\.jsonl:2: not a JSON line \(Expecting value"),
        ("qa.jsonl", b"[" * 100_000, r"qa\.jsonl:1: not a JSON line \(nested too deep"),
        ("qa.parquet", b"PAR1", r"qa\.parquet: is a damaged table \("),
        ("qa.jsonl.gz", gzip.compress(b'{"a": "b"}\n' * 50)[:-9], r"qa\.jsonl\.gz: damaged \("),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place_and_the_remedy(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message + r"[\s\S]*set clean\.decontaminate to false"):
        list(read_items([str(tmp_path / name)]))


def test_a_text_of_windows_is_decoded_as_inputs_are(tmp_path: Path) -> None:
    (tmp_path / "qa.txt").write_bytes("Paytaxt hansı şəhərdir?".encode("utf-16"))

    assert list(read_items([str(tmp_path / "qa.txt")])) == [("qa.txt:1", "Paytaxt hansı şəhərdir?")]


def test_a_table_whose_text_is_not_utf_8_is_told(tmp_path: Path) -> None:
    texts = pa.array([b"\xfe\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"a": texts}), tmp_path / "qa.parquet")

    with pytest.raises(DataError, match=r"qa\.parquet:1: 'utf-8' codec"):
        list(read_items([str(tmp_path / "qa.parquet")]))


def test_a_line_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "MAX_LINE_BYTES", 100)
    (tmp_path / "qa.jsonl").write_text(json.dumps({"a": "b"}) + "\n" + "x" * 200)

    with pytest.raises(DataError, match=r"qa\.jsonl:2: .*set clean\.decontaminate to false"):
        list(read_items([str(tmp_path / "qa.jsonl")]))


def test_text_of_task_files_is_left_out_and_tasks_without_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = texts(12)
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = "task: own\ndataset_path: csv\ndataset_kwargs: {data_files: {test: own.csv}}\n"
    (folder / "own.yaml").write_text(data, encoding="utf-8")
    (folder / "own.csv").write_text(f'question\n"{own[3]}"\n', encoding="utf-8")
    (folder / "notes.xml").write_text(own[4], encoding="utf-8")
    choices = tmp_path / "choices.jsonl"
    choices.write_text(json.dumps({"question": own[5], "choices": ["a", "b"], "answer": 0}), encoding="utf-8")
    raw = write_jsonl(tmp_path / "a.jsonl", own)
    tasks = [str(folder), str(choices), "belebele_azj_Latn", "az"]

    made = clean(tmp_path, raw, decontaminate=True, others={"evaluate": {"tasks": tasks}})

    assert stats(made)["dropped"] == {"contaminated": 2}
    assert {own[3], own[5]}.isdisjoint(document.text for document in documents(made))
    assert re.search(
        r"not compared with belebele_azj_Latn, builtin:az/tasks\.yaml, .*notes\.xml", caplog.text
    )
