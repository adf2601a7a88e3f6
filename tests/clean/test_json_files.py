"""`.json` files as input: lists, lines, objects over several lines."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from tests.kit.clean_stage import read_file


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([{"text": "bir"}, {"text": "iki"}], indent=1).encode()),
        ("a.json", line("bir") + line("iki")),
        ("a.json.gz", gzip.compress(line("bir") + b"\n" + line("iki"))),
        ("a.json.zst", zstandard.compress(b'{"text":\n"bir"}\n{"text":\n"iki"}')),
    ],
)
def test_a_json_file_is_a_list_or_objects_one_after_another(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)

    found, read_stats = read_file(tmp_path / name)

    assert [raw.text for raw in found] == ["bir", "iki"]
    assert read_stats.bad == 0


@pytest.mark.parametrize(
    ("content", "texts", "why"),
    [
        (b'[{"text": "bir"}, 7, {"text": "iki"}]', ["bir", "iki"], "a.json:2: not a JSON object but a int"),
        (b'[{"text": "bir"}, {"text" "iki"}]', ["bir"], "a.json:2: not JSON from here on: "),
        (line("bir") + b"{\n" + line("iki"), ["bir", "iki"], "a.json:2: not JSON: "),
        (b'[{"text": "b\xff"}]', [], "a.json:1: not JSON from here on: 'utf-8' codec"),
    ],
)
def test_what_is_bad_in_a_json_file_is_counted_with_its_place(
    tmp_path: Path, content: bytes, texts: list[str], why: str
) -> None:
    (tmp_path / "a.json").write_bytes(content)

    found, read_stats = read_file(tmp_path / "a.json")

    assert [raw.text for raw in found] == texts
    assert read_stats.places[0].startswith(why)
