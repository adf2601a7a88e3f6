"""Documents that hold text of the files that models are judged by are found."""

import json
from pathlib import Path

import pytest
import zstandard

from anadil.clean.filters import lists
from anadil.clean.filters.lists import Decontamination, texts_of
from anadil.text.language import load_language
from tests.kit.child import peak_memory
from tests.kit.texts import ANOTHER, AZERBAIJANI, JAPANESE, TURKISH

az, ja = load_language("az"), load_language("ja")
ITEM = "Göygöl milli parkının ərazisində neçə göl var və onlardan ən böyüyü hansıdır?"


@pytest.mark.parametrize(
    "text",
    [
        f"{AZERBAIJANI} {ITEM} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.upper()} {ANOTHER}",
        f"{AZERBAIJANI} «{ITEM.replace(' və', ', və')}» {ANOTHER}",
        f"{AZERBAIJANI} {' '.join(ITEM.split()[:8])} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.replace(' ', ' , ')} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.translate(str.maketrans('öüığəç', 'ouigec')).replace('hansidir', 'hansi')} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.replace('hansıdır', 'hansıydı').replace('milli', '')} {ANOTHER}",
    ],
)
def test_an_item_is_found_in_any_case_and_frame(text: str) -> None:
    assert Decontamination([("eval.jsonl:7", ITEM)], az).matches(text) == ["eval.jsonl:7"]


def test_a_long_item_is_found_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PIECE_CHARS", 100)
    monkeypatch.setattr(lists, "MIN_MERGED", 10)
    item = f"{AZERBAIJANI} {ITEM} {ANOTHER}"
    words = item.split()

    found = Decontamination([("first", AZERBAIJANI), ("long", item), ("last", TURKISH)], az)

    for start in range(len(AZERBAIJANI.split()) - 7, len(words) - 8):
        assert found.matches(" ".join(words[start : start + 8]))[-1] == "long"
    assert found.matches(AZERBAIJANI) == ["first"]
    assert found.matches(TURKISH) == ["last"]


def test_items_that_repeat_themselves_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    line = json.dumps({"text": ITEM * 40_000}).encode() + b"\n"
    path.write_bytes(zstandard.compress(line * 10, 1))
    code = """
import sys
from anadil.clean.filters.lists import Decontamination
from anadil.clean.filters.lists import read_items
from anadil.text.language import load_language
found = Decontamination(read_items([sys.argv[1]]), load_language("az"))
print(len(found._hashes) < 1_000)
"""

    peak, printed = peak_memory(code, path)

    assert printed == "True"
    assert peak < 250


def test_other_text_is_clean() -> None:
    found = Decontamination([("a", ITEM), ("b", AZERBAIJANI)], az)

    assert found.matches(f"{ANOTHER} {TURKISH}") == []
    assert found.matches("") == []
    assert Decontamination([], az).matches(AZERBAIJANI) == []


def test_seven_words_of_an_item_are_chance() -> None:
    item = "bu il də o var ya yox nə"

    assert Decontamination([("a", item)], az).matches(f"{ANOTHER} {item}") == ["a"]
    assert Decontamination([("a", item)], az).matches(f"{ANOTHER} {item.rpartition(' ')[0]} {TURKISH}") == []


def test_an_item_of_a_few_words_is_not_looked_for() -> None:
    found = Decontamination([("short", "Bakı şəhəri"), ("long", ITEM)], az)

    assert found.matches(f"Bakı şəhəri. {ANOTHER}") == []


def test_japanese_is_compared_by_characters() -> None:
    found = Decontamination([("a", JAPANESE[:45])], ja)

    assert found.matches("前置き。" + JAPANESE) == ["a"]
    assert found.matches("前置き。" + JAPANESE[:20] + "別の文です。" + JAPANESE[60:]) == []


def test_texts_are_taken_from_any_layout() -> None:
    row = {"messages": [{"role": "user", "content": "a"}], "choices": ["b", "c"], "n": 3, "x": None}

    assert list(texts_of(row)) == ["user", "a", "b", "c"]


@pytest.mark.parametrize("text", ["[1] Bakı haqqında qeyd", "{söz", "[" * 100_000])
def test_text_that_begins_as_a_list_and_is_none_is_text(text: str) -> None:
    assert list(texts_of({"question": text})) == [text]
