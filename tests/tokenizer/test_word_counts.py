import random
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from anadil.core.errors import IntegrityError
from anadil.text.byte_symbols import SYMBOLS, to_text
from anadil.tokenizer.word_counts import (
    WordCounts,
    of_bytes,
    read_counts,
    sum_counts,
    word_counts,
    write_counts,
)

COUNTS = {"kitab": 3, "Ġkitab": 2**40, "ÉĻ": 1, "": 4}


def random_counts(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    words = ("".join(rng.choices(SYMBOLS[:4], k=rng.randint(1, 5))) for _ in range(300))
    return {word: rng.randint(1, 2**40) for word in words}


def file_of(table: WordCounts, path: Path) -> bytes:
    write_counts(table, path)
    return path.read_bytes()


def test_byte_symbols_are_those_of_the_library() -> None:
    text = "".join(chr(code) for code in range(256))
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)

    assert set(SYMBOLS) == set(ByteLevel.alphabet())
    assert "".join(piece for piece, _ in pieces) == "".join(SYMBOLS[byte] for byte in text.encode())
    assert [to_text(each) for each in ("ÃĸlkÉĻ", "Ġbu", "Ã")] == ["Ölkə", " bu", "\ufffd"]


def test_a_table_gives_back_its_pretokens_sorted_by_their_bytes() -> None:
    table = word_counts(COUNTS.items())

    assert list(table.items()) == [("", 4), ("Ġkitab", 2**40), ("kitab", 3), ("ÉĻ", 1)]
    assert len(table) == 4
    assert table.total == 2**40 + 8


def test_a_pretoken_that_is_given_twice_is_added_up() -> None:
    assert dict(word_counts([("ev", 1), ("su", 2), ("ev", 3)]).items()) == {"ev": 4, "su": 2}


def test_tables_are_added_up_whatever_their_order(tmp_path: Path) -> None:
    parts = [random_counts(seed) for seed in range(4)]
    expected = Counter[str]()
    for part in parts:
        expected.update(part)

    tables = [word_counts(part.items()) for part in parts]

    results = {file_of(sum_counts(order), tmp_path / "sum") for order in permutations(tables)}
    assert len(results) == 1
    assert dict(read_counts(tmp_path / "sum").items()) == expected


def test_records_of_tables_are_added_up() -> None:
    one, other = of_bytes({b"a": 1}, {"documents": 2}), of_bytes({}, {"documents": 3, "too_long": 1})

    assert sum_counts([one, other]).records == {"documents": 5, "too_long": 1}


def test_no_table_at_all_is_an_empty_one(tmp_path: Path) -> None:
    write_counts(sum_counts([]), tmp_path / "empty")

    table = read_counts(tmp_path / "empty")

    assert len(table) == table.total == 0
    assert list(table.items()) == []


def test_a_file_gives_back_the_table(tmp_path: Path) -> None:
    write_counts(of_bytes({b"ev": 2, b"\xc9\x99": 2**50}, {"documents": 7}), tmp_path / "counts")

    table = read_counts(tmp_path / "counts")

    assert list(table.items()) == [("ev", 2), ("ÉĻ", 2**50)]
    assert table.records == {"documents": 7}


def test_rare_pretokens_can_be_left_out() -> None:
    table = word_counts(COUNTS.items()).pruned(3)

    assert dict(table.items()) == {"": 4, "kitab": 3, "Ġkitab": 2**40}


@pytest.mark.parametrize("place", range(0, 190, 7))
def test_a_file_with_any_byte_changed_is_refused(tmp_path: Path, place: int) -> None:
    path = tmp_path / "counts"
    content = bytearray(file_of(word_counts(COUNTS.items()), path))
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(IntegrityError, match="word counts"):
        read_counts(path)


@pytest.mark.parametrize(
    "change", [lambda content: content[:-1], lambda content: content + b"x", lambda _: b""]
)
def test_a_file_of_another_length_is_refused(tmp_path: Path, change: object) -> None:
    path = tmp_path / "counts"
    assert callable(change)
    path.write_bytes(change(file_of(word_counts(COUNTS.items()), path)))

    with pytest.raises(IntegrityError, match="word counts"):
        read_counts(path)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counts").write_bytes(b"\x00\xff" * 50_000)

    with pytest.raises(IntegrityError, match="no word counts of this program's format"):
        read_counts(tmp_path / "counts")
