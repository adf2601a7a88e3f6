"""`.json` files are read value by value."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import json_values as module
from anadil.artifacts.json_values import holds_lines, json_values
from anadil.core.errors import DataError
from tests.kit.child import peak_memory

ROWS: list[Any] = [{"a": "ğ" * 9, "b": [1, {"c": None}]}, [], "x]", 12, {"d": ""}]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIB", 3)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2, ensure_ascii=False),
        "\ufeff" + json.dumps(ROWS),
        "\n".join(map(json.dumps, ROWS)),
        " \n\n".join(json.dumps(row, indent=1) for row in ROWS) + "\n ",
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_items_of_a_list_and_values_that_follow_one_another_are_read(
    tmp_path: Path, content: str, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content.encode()) if suffix.endswith(".gz") else content.encode())

    assert list(json_values(path, suffix)) == list(enumerate(ROWS, 1))


@pytest.mark.parametrize(("content", "expected"), [("", []), ("[]", []), (" [ ] \n", []), ("[{}]", [{}])])
def test_few_values_are_read(tmp_path: Path, content: str, expected: list[Any]) -> None:
    (tmp_path / "a.json").write_text(content)

    assert [value for _, value in json_values(tmp_path / "a.json", ".json")] == expected


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('[{"a": 1} {"a": 2}]', "after value 1 stands neither a comma nor the list's end"),
        ('[{"a": 1},', "the list has no end"),
        ('[{"a": 1}] x', "something follows the end of the list"),
        ('[{"a": 1}, {"a": ', "Expecting value"),
        ("[" * 100_000, "nested too deep"),
        ('["' + "a" * 200, "a value is longer than 100"),
    ],
)
def test_what_is_not_json_is_told_after_the_values_before_it(
    tmp_path: Path, content: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(module, "MIB", 1 << 20 if len(content) > 300 else 3)
    (tmp_path / "a.json").write_text(content)

    with pytest.raises(ValueError, match=why):
        list(json_values(tmp_path / "a.json", ".json"))


def test_a_file_of_lines_is_known_by_its_first(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, expected in [('{"a": 1}\n{"a":', True), ('{\n"a": 1}', False), ("[{}]", False), ("", False)]:
        path.write_text(content)
        assert holds_lines(path, ".json") == expected
    path.write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(DataError, match="UTF-16"):
        holds_lines(path, ".json")


def test_a_list_takes_no_more_memory_than_a_few_of_its_values(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    item = b'"' + b"a" * 10_000 + b'"'
    path.write_bytes(b"[" + b",".join([item] * 12_000) + b"]")
    code = """
import sys
from pathlib import Path
from anadil.artifacts.json_values import json_values
print(sum(1 for _ in json_values(Path(sys.argv[1]), ".json")))
"""

    peak, printed = peak_memory(code, path)

    assert printed == "12000"
    assert peak < 150


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text", ['[{"a": "b"}]', '[\n  {\n "a": 1}\n]', '{"a": "b"}\n{"a": "c"}\n', '{\n"a": 1}', "[\n"]
)
def test_json_of_wide_characters_without_a_mark_is_named_by_its_encoding(
    tmp_path: Path, codec: str, text: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode(codec))

    with pytest.raises(
        DataError, match=rf"a\.json: is in {codec.upper().replace('-LE', 'LE').replace('-BE', 'BE')}"
    ):
        holds_lines(path, ".json")
