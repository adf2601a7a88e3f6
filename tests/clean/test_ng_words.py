import gzip
from pathlib import Path

import pytest

from anadil.clean.filters.judge import Judge
from anadil.clean.kernels.characters import characters_of
from anadil.clean.kernels.ng_words import NgWords, read_ng_words
from anadil.core.errors import DataError
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, stats, write_jsonl
from tests.kit.texts import AZERBAIJANI, JAPANESE, MORE_JAPANESE

az = load_language("az")
ja = load_language("ja")


def share(text: str, *words: str, code: str = "ja") -> float:
    language = load_language(code)
    return float(NgWords(words, characters_of(language)).shares([language.normalize(text)])[0])


@pytest.mark.parametrize("spelling", ["エロゲー", "えろげー", "ｴﾛｹﾞｰ"])
@pytest.mark.parametrize("entry", ["エロゲー", "えろげー", "ｴﾛｹﾞｰ"])
def test_kind_of_kana_and_width_do_not_matter(entry: str, spelling: str) -> None:
    assert share(f"{spelling}を買う本日", entry) == pytest.approx(4 / 9)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("あいうえお", ("あい", "あいう", "いうえ"), 3 / 5),  # no letter counts twice
        ("あいえお", ("あい", "あいうえ"), 2 / 4),  # what begins as a longer entry and breaks off
        ("日本語sexと書く", ("SEX",), 3 / 6),
        ("日本のEssexと書く", ("sex",), 0),
        ("あいう", ("い",), 0),  # one letter is chance
        ("あいう", (), 0),
    ],
)
def test_the_longest_entry_counts_and_latin_ones_are_whole_words(
    text: str, words: tuple[str, ...], expected: float
) -> None:
    assert share(text, *words) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "entry", "expected"),
    [
        ("pis söz", "pis", 3 / 6),
        ("PİS, söz", "pis", 3 / 6),
        ("pişik", "pis", 0),
        ("apis pisa", "pis", 0),
        ("çox pis söz deyir", "pis söz", 7 / 14),
    ],
)
def test_a_language_with_spaces_is_matched_by_whole_words(text: str, entry: str, expected: float) -> None:
    assert share(text, entry, code="az") == pytest.approx(expected)


def test_each_text_of_a_batch_has_its_own_share() -> None:
    assert NgWords(["pis"], characters_of(az)).shares(["söz", "", "pis", "söz"]).tolist() == [0, 0, 1, 0]


def test_a_page_full_of_entries_is_dropped_and_one_that_quotes_one_is_kept() -> None:
    sound = JAPANESE + MORE_JAPANESE
    judge = Judge(ja, ng_words=["禁句であります"])

    assert judge.judge([sound + "禁句であります。", sound + "禁句であります。" * 5]).reasons == [
        None,
        "ng_words",
    ]


def test_the_stage_reads_the_lists_that_the_recipe_names(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("GÜCLÜ KÜLƏK\n# fəsillər\n\n", encoding="utf-8-sig")
    raw = write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, *texts(6)])

    corpus = clean(tmp_path, raw, ng_words=[str(words)], rules={"max_ng_words": 0.02})

    assert stats(corpus)["dropped"]["ng_words"] == 1


def test_a_packed_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "words.gz").write_bytes(gzip.compress("söz\n# söz\nağır söz\n".encode()))

    assert read_ng_words([str(tmp_path / "words.gz")]) == ["söz", "ağır söz"]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\0\1\2", "is not text"), ("söz".encode("latin-1"), "not UTF-8"), (b"# nothing yet\n", "holds no entry")],
)  # fmt: skip
def test_what_is_no_list_of_words_is_refused_by_name(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)

    with pytest.raises(DataError, match=rf"clean.ng_words: .*a\.txt.*{why}"):
        read_ng_words([str(tmp_path / "a.txt")])
