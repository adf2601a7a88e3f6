import dataclasses
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anadil.clean.kernels.characters import Characters
from anadil.clean.kernels.columns import COLUMN, STATISTICS
from anadil.clean.kernels.statistics import Statistics
from anadil.core.errors import AnadilError
from anadil.text.language import load_language
from tests.kit.reference_statistics import lines_of, repetition_of, words_of
from tests.kit.texts import ANOTHER, AZERBAIJANI, JAPANESE, MORE_JAPANESE, RUSSIAN

az, ja = load_language("az"), load_language("ja")
MEASURES = {"az": Statistics(az), "ja": Statistics(ja)}
PIECES = (
    *AZERBAIJANI.split(), *AZERBAIJANI.split()[:5], "və", "(Və),", "ə", "#", "...", "…", "……", "son.»", "\n", "\n\n", "- bir",
    "* iki", "lorem ipsum", "Lorem IPSUM", "{", "privacy policy", "12", "3.14", "İSTİ", "ISTI", JAPANESE, "東京タワー", "3回",
    "。", "x" * 40, " \n ", "Ünvan:",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join)


def measured(text: str, code: str = "az") -> dict[str, float]:
    return dict(zip(STATISTICS, MEASURES[code].measure([text])[0].tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
@example(text="")
@example(text="\n \n")
@example(text=f"{AZERBAIJANI}\n{ANOTHER}\n{AZERBAIJANI}")
@pytest.mark.parametrize("code", ["az", "ja"])
def test_the_compiled_pass_finds_what_plain_python_finds(code: str, text: str) -> None:
    language = load_language(code)
    expected = words_of(text, language) | lines_of(text, language) | repetition_of(language.words(text))

    found = measured(text, code)

    assert {name: found[name] for name in expected} == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
@example(text=f"{AZERBAIJANI}\n{ANOTHER}\n{AZERBAIJANI}")
@example(text=AZERBAIJANI.replace(". ", "\n") + "\n" + ANOTHER.lower())
@pytest.mark.parametrize("code", ["az", "ja"])
def test_blank_lines_between_lines_change_no_statistic_but_paragraphs(code: str, text: str) -> None:
    lines = [line for line in load_language(code).normalize(text).split("\n") if line]

    one, two = (measured(between.join(lines), code) for between in ("\n", "\n\n"))

    paragraphs = {"duplicate_paragraphs", "duplicate_paragraph_chars"}
    assert {name for name in one if not np.array_equal(one[name], two[name], equal_nan=True)} <= paragraphs
    assert two["duplicate_paragraphs"] == two["duplicate_lines"]


@pytest.mark.parametrize(
    ("word", "damaged"),
    [
        ("китaп", 1), ("Aйдaр", 1), ("iPhoneның", 0), ("PDF-ке", 0), ("кітап", 0), ("кі\ufffdап", 1),
        ("xyz", 0), ("o\u02bbzbek", 0),
    ],
)  # fmt: skip
def test_a_word_with_another_alphabets_letters_between_its_own_is_damaged(word: str, damaged: int) -> None:
    found = Statistics(load_language("kk"), Characters(load_language("kk"))).measure([f"бір {word}"])[0]

    assert found[COLUMN["isolated"]] == damaged / 2


@pytest.mark.parametrize(
    ("word", "kept"), [("x" * 1_000, 1.0), ("x" * 1_001, 0.5), ("(" * 1_200 + "x", 0.5), ("x," * 700, 0.5)]
)
def test_c4_leaves_out_a_line_with_a_word_of_more_than_a_thousand_characters(word: str, kept: float) -> None:
    found = measured(f"Bu sətirdə beş söz var.\nBu sətirdə uzun {word} söz var.")

    assert found["c4_lines"] == kept


def test_a_batch_finds_what_each_text_alone_finds() -> None:
    texts = [AZERBAIJANI, "", RUSSIAN, "bir", f"{ANOTHER}\n" * 3]

    together = MEASURES["az"].measure(texts)

    np.testing.assert_array_equal(together, np.vstack([MEASURES["az"].measure([text]) for text in texts]))


def test_batches_beyond_the_memory_limit_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.kernels.characters.MAX_BATCH_CHARS", 1_800)
    texts = [AZERBAIJANI, ANOTHER, "", AZERBAIJANI * 3, RUSSIAN]

    words = MEASURES["az"].measure(texts)[:, COLUMN["words"]]

    assert words.tolist() == [len(text.split()) for text in texts]


def test_a_text_beyond_the_memory_limit_is_measured_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.kernels.statistics.MAX_BATCH_CHARS", 100)

    rows = MEASURES["az"].measure(["söz " * 1_000, "söz " * 10])

    assert rows[:, COLUMN["words"]].tolist() == [25, 10]
    assert rows[:, COLUMN["chars"]].tolist() == [4_000, 40]


@pytest.mark.parametrize("text", [".", "a", "a\n", "。", "あ。", "abc. ", "ab", "\n", "' "])
@pytest.mark.parametrize("code", ["az", "ja"])
def test_time_grows_with_the_text_whatever_it_repeats(code: str, text: str) -> None:
    judge = MEASURES[code]
    judge.measure([text])
    started = time.process_time()

    judge.measure([text * (400_000 // len(text))])

    # Linear: some hundredths; to look back or ahead from every character would take minutes.
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("Külək əsdi. Ağac yıxıldı. Yağış da yağdı.", 0),
        ("Külək əsdi. ağac Bakıda yıxıldı. yağış Gəncədə yağdı.", 2 / 4),
        ("Bax, m. 5 və s. ilə st. əli və 149.1. maddə budur", 0),
        ("Gəldi dedi «dayan!» və getdi. (Sonra qayıtdı.)", 0),
        ("Külək əsdi.\nağac\nKülək əsdi.\nyağış Bakıda və Gəncədə küçələri basdı, sonra hava yenə də dərhal açıldı.", 1 / 3),
    ],
)  # fmt: skip
def test_a_sentence_is_broken_where_the_next_begins_small(text: str, broken: float) -> None:
    assert measured(text)["broken_sentences"] == pytest.approx(broken)


def test_a_japanese_sentence_is_broken_where_the_next_begins_with_a_particle() -> None:
    assert measured("雨が降った。風が吹いた。", "ja")["broken_sentences"] == 0
    assert measured("雨が降った。は風が吹いた。を見た。", "ja")["broken_sentences"] == pytest.approx(2 / 4)


def test_where_each_letter_is_a_word_lists_are_told_by_nothing_that_counts_words_of_sentences() -> None:
    letters = re.compile(r"[^\W\d_]|\d+")
    thai = dataclasses.replace(
        az, words=letters.findall, shingle_units=list, is_script=lambda letter: letter > "\u0e00"
    )
    text = "ภาษาไทย 123 ab"

    found = dict(zip(STATISTICS, Statistics(thai).measure([text])[0].tolist(), strict=True))

    assert found["words"] == len(letters.findall(text))
    assert np.isnan(found["words_per_sentence"])


def test_a_script_of_small_letters_only_breaks_no_sentence() -> None:
    text = "თბილისი დედაქალაქია. ქალაქი დიდია. მდინარე ლამაზია."

    assert measured(text)["broken_sentences"] == 0


def test_a_language_with_spaces_measures_nothing_of_swallow() -> None:
    assert np.isnan(MEASURES["az"].measure([JAPANESE])[0, COLUMN["japanese_chars"] :]).all()
    assert not np.isnan(
        MEASURES["ja"].measure([JAPANESE + MORE_JAPANESE])[0, COLUMN["japanese_chars"] :]
    ).any()


def test_a_statistic_that_no_kernel_fills_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.kernels.statistics.STATISTICS", (*STATISTICS, "exclamations"))

    with pytest.raises(AnadilError, match=r"no kernel fills: exclamations; fill COLUMN\['exclamations'\]"):
        Statistics(az).measure([AZERBAIJANI])


def test_lone_surrogates_are_characters_too() -> None:
    assert measured("söz \ud800 söz")["words"] == 3


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_compiled() -> None:
    source = (
        "from anadil.clean.kernels import text_kernel\n"
        "from anadil.clean.kernels.statistics import Statistics\n"
        "from anadil.text.language import load_language\n"
        "Statistics(load_language('az')).measure(['bir iki'])\n"
        "print(sum(text_kernel.measure_batch.stats.cache_misses.values()))\n"
    )
    measured("bir iki")

    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, env=os.environ
    )

    assert done.stdout == "0\n"


def test_who_follows_a_run_loads_neither_the_compiler_nor_the_second_extractor() -> None:
    source = "import sys, anadil.clean.run; print({'numba', 'trafilatura'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
