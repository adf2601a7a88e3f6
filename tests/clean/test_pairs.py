"""Parallel text: where its sides are read, what drops a pair, and both directions in the corpus."""

import gzip
import json
import logging
import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from anadil.artifacts.artifact import finished_manifest
from anadil.clean.filters.figures import unlike_figures
from anadil.clean.filters.judge_record import Settings
from anadil.clean.filters.pairs import judge_pair
from anadil.clean.inspect.explain import explain_record, find_record
from anadil.clean.inspect.verify import verify_corpus
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.runtime.execute import execute
from anadil.text.corpus import Document, read_documents, write_documents
from anadil.text.language import load_language
from anadil.text.parallel import other_direction, write_pair
from tests.kit.clean_stage import documents, rows, samples, stats
from tests.kit.parallel import PAIRS, TURKISH, clean_pairs, recipe_of_pairs, write_pairs

DATA = os.environ.get("ANADIL_DATA", "")
SIDES = (load_language("en"), load_language("az"))


def by_id(corpus: Path) -> dict[str, list[Document]]:
    by: defaultdict[str, list[Document]] = defaultdict(list)
    for document in documents(corpus):
        by[document.id].append(document)
    return by


def written(pair: tuple[str, str]) -> list[str]:
    text = f"English: {pair[0]}\nAzerbaijani: {pair[1]}"
    return [text, f"Azerbaijani: {pair[1]}\nEnglish: {pair[0]}"]


def test_each_pair_is_two_documents_one_a_direction_in_the_same_part(tmp_path: Path) -> None:
    corpus = clean_pairs(tmp_path, write_pairs(tmp_path / "en-az.tsv", PAIRS))

    texts = [[each.text for each in both] for both in by_id(corpus).values()]
    assert sorted(texts) == sorted(written(pair) for pair in PAIRS)
    parts = [
        {each.id for each in read_documents(corpus, "train")},
        {each.id for each in read_documents(corpus, "heldout")},
    ]
    assert all(parts)
    assert not parts[0] & parts[1]
    counts = stats(corpus)
    assert (counts["in"], counts["kept"]) == (len(PAIRS), len(PAIRS))
    assert sum(counts["records"].values()) == 2 * len(PAIRS)
    assert counts["pairs"]["sides"]["en"] == {"en": 10, "unjudged": 2}
    assert {each.lang for each in documents(corpus)} == {"en-az"}


TRANSLATION = {"en": PAIRS[0][0], "az": PAIRS[0][1]}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", "az\tid\ten\n{az}\t1\t{en}\n"),
        ("a.tsv.gz", "English\tAzerbaijani\n{en}\t{az}\n"),
        ("a.csv", 'eng_Latn,azj_Latn\n"{en}","{az}"\n'),
        ("a.jsonl", '{{"az": "{az}", "en": "{en}", "id": 1}}\n'),
        ("a.jsonl", '{{"id": "1", "translation": {{"az": "{az}", "en": "{en}"}}}}\n'),
    ],
)
def test_sides_are_found_by_the_ids_of_their_languages(tmp_path: Path, name: str, data: str) -> None:
    raw = data.format(**TRANSLATION).encode()
    packed = {".gz": gzip.compress(raw), ".zst": zstandard.compress(raw)}
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, raw))
    others = write_pairs(tmp_path / "others.tsv", PAIRS[1:])

    corpus = clean_pairs(tmp_path, tmp_path / name, others)

    texts = {each.text for each in documents(corpus) if each.source.startswith(f"{name}:")}
    assert texts == set(written(PAIRS[0]))


@pytest.mark.parametrize("nested", [True, False])
def test_sides_are_columns_of_parquet_or_of_a_table_in_it(tmp_path: Path, nested: bool) -> None:
    pairs = [{"en": en, "az": az} for en, az in PAIRS]
    table = pa.table({"translation": pairs}) if nested else pa.Table.from_pylist(pairs)
    pq.write_table(table, tmp_path / "a.parquet")

    corpus = clean_pairs(tmp_path, tmp_path / "a.parquet")

    assert {each.text for each in documents(corpus)} == {text for pair in PAIRS for text in written(pair)}


def test_a_table_without_names_says_which_side_it_took_for_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    clean_pairs(tmp_path, write_pairs(tmp_path / "en-az.tsv", PAIRS))

    assert "en-az.tsv: its first row names no columns; they are taken for en and az" in caplog.text


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("source\ttarget", "columns 'source', 'target' do not say which language is which; name them en and az"),
        ("en\tru", "no column 'az' among 'en', 'ru'; name the columns of the sides en and az"),
        ("en\taz\taz", "2 columns are named 'az'; rename all but one"),
    ],
)  # fmt: skip
def test_a_table_whose_columns_say_no_side_is_refused(tmp_path: Path, first: str, said: str) -> None:
    file = tmp_path / "a.tsv"
    cells = "\t".join(["Hello there!"] * len(first.split("\t")))
    file.write_text(f"{first}\n{cells}\n", encoding="utf-8")

    with pytest.raises(DataError, match=said):
        clean_pairs(tmp_path, file)


def test_rows_with_more_or_fewer_cells_and_records_without_a_side_are_bad_with_their_place(
    tmp_path: Path,
) -> None:
    table = write_pairs(
        tmp_path / "a.tsv", [("en", "az"), *PAIRS[:2], ("Hello!",), ("Hi!", "Salam!", "Hey!")]
    )
    lines = write_pairs(tmp_path / "b.jsonl", PAIRS[2:])
    with lines.open("a", encoding="utf-8") as file:
        file.write('{"en": "Hello!", "tr": "Merhaba!"}\n{"en": 7, "az": "yeddi"}\n')

    with pytest.raises(DataError) as caught:
        clean_pairs(tmp_path, table, lines)

    said = str(caught.value)
    assert "4 of 16 records are unreadable" in said
    assert "a.tsv:4: 1 cells, and 2 columns are named" in said
    assert "a.tsv:5: 3 cells, and 2 columns are named" in said
    assert "b.jsonl:11: no Azerbaijani side: no key 'az' among 'en', 'tr'" in said
    assert "b.jsonl:12: 'en' is not text but a int" in said


def test_files_without_fields_are_refused_with_the_way_to_make_a_table(tmp_path: Path) -> None:
    file = tmp_path / "corpus.en.txt"
    file.write_text("Hello!", encoding="utf-8")

    with pytest.raises(
        DataError, match=r"1 file without a field for each side .*corpus.en.txt.*; make a table .*: paste"
    ):
        clean_pairs(tmp_path, file)


@pytest.mark.parametrize(
    ("pair", "reason", "value"),
    [
        (("Where are you?", ""), "missing_side", "az"),
        (("***", "Haradasan?"), "missing_side", "en"),
        (("Microsoft  Windows", "microsoft «Windows»!"), "equal_sides", None),
        (("No.", "Bu cümlə o qədər uzundur ki, tərcüməsi ola bilməz."), "side_lengths", 16.7),
        ((PAIRS[0][1], PAIRS[0][0]), "swapped_sides", None),
        (("Köhnə şəhər harada?", "Where is the old town?"), "swapped_sides", None),
        ((PAIRS[0][0], TURKISH[0]), "side_language", "az: tr"),
        (("It was sold in 1990 for 5 manats.", "O, 1995-ci ildə 5 manata satıldı."), "side_figures", "1990 | 1995"),
        (("It cost 12 manats in 1990.", "1990-cı ildə o, 21 manat idi."), "side_figures", "12 | 21"),
        # Other ways to write the same.
        (("It was May 5, 1990, 3 pm; 1.5 million came.", "05.05.1990, saat 15:00 idi; 1 500 000 nəfər gəldi."), None, None),
        (("In the 1990s, three of 1,200 left.", "90-cı illərdə 1200 nəfərdən 3-ü getdi."), None, None),
        (("It is 5 miles away, not 10.", "O, 8 km uzaqdadır, 16 deyil."), None, None),
        (PAIRS[0], None, None),
        # Too short to tell: it counts as right, and is counted.
        (("The shop is closed today.", "Mağaza bugün bağlıdır."), None, None),
    ],
)  # fmt: skip
def test_a_pair_is_dropped_for_the_first_fault_of_its_sides(
    pair: tuple[str, str], reason: str | None, value: object
) -> None:
    judged = judge_pair(pair, SIDES)

    assert (judged.reason, judged.value) == (reason, value)


@pytest.mark.parametrize(
    ("code", "first", "second", "expected"),
    [
        ("fa", "He was born in 1990.", "او در سال ۱۳۶۹ به دنیا آمد.", None),
        ("fa", "He was born in 1990.", "او در سال ۱۳۷۹ به دنیا آمد.", "1990 | 1379"),
        ("ja", "It raised 142 million yen in 1990.", "平成2年に1億4,200万円を集めた。", None),
        ("hi", "There were 250 people.", "वहाँ २५० लोग थे।", None),
        ("az", "It is 10 km away, in 1990.", "1990-cı il, 6.2 mil var.", None),
        ("az", "It is 30 °C, 4.2-3.9 million came.", "86 dərəcə, 4,2-3,9 milyon nəfər gəldi.", None),
        ("az", "It is 10 km away.", "8 mil var.", "10 | 8"),
        ("az", "They left at 00:41.", "Saat 01:41-də getdilər.", "24 | 01"),
        ("de", "They left at 00:41.", "Sie gingen um 0.41 Uhr, 12:41 AM.", None),
        ("hi", "There were 250 people.", "वहाँ २०५ लोग थे।", "250 | 205"),
    ],
)
def test_figures_are_compared_in_any_script_and_calendar(
    code: str, first: str, second: str, expected: str | None
) -> None:
    assert unlike_figures((first, second), ("en", code)) == expected


@pytest.mark.parametrize("year", ["", " {}"])
def test_a_side_whose_lines_are_one_too_late_is_refused(tmp_path: Path, year: str) -> None:
    lines = [
        (
            f"Line {'is long ' * (n * 7 % 13)}here{year.format(1900 + n)}.",
            f"Sətir {'uzundur ' * (n * 7 % 13)}burada{year.format(1900 + n)}.",
        )
        for n in range(40)
    ]
    late = [(first, second) for (first, _), (_, second) in zip(lines[1:], lines, strict=False)]

    clean_pairs(tmp_path, write_pairs(tmp_path / "good.tsv", lines))
    with pytest.raises(DataError, match=r"late\.tsv: lines of az stand one line below"):
        clean_pairs(tmp_path / "corpus", write_pairs(tmp_path / "late.tsv", late))


def test_the_separator_of_a_tsv_is_the_tab(tmp_path: Path) -> None:
    first = ("No, sir, I did not, ever; no.", "Xeyr, cənab, mən, heç; yox.")
    corpus = clean_pairs(tmp_path, write_pairs(tmp_path / "en-az.tsv", [first, *PAIRS]))

    assert stats(corpus)["kept"] == len(PAIRS) + 1


def test_sides_are_normalised_by_their_languages_to_a_line_each() -> None:
    judged = judge_pair(("Where are\r\nyou,  e\u0301tienne?", "Hara&#601;\u200b,  i\u0307ndi?"), SIDES)

    assert judged.text == write_pair(("English", "Azerbaijani"), ("Where are you, étienne?", "Haraə, indi?"))
    assert other_direction(judged.text).splitlines() == judged.text.splitlines()[::-1]
    assert (judged.marks["normalized"], judged.marks["unescaped"]) == (True, True)


def test_dropped_pairs_are_counted_by_reason_with_samples_and_rows(tmp_path: Path) -> None:
    near = (f"{PAIRS[0][0]} Really.", PAIRS[0][1])
    bad = [
        ("Hello!", ""),
        ("Windows", "Windows"),
        ("No", "Bu cümlə həddən artıq uzundur."),
        (PAIRS[1][0], TURKISH[1]),
    ]
    swapped = PAIRS[2][::-1]
    file = write_pairs(tmp_path / "a.tsv", [("en", "az"), *PAIRS, PAIRS[3], near, *bad, swapped])

    corpus = clean_pairs(tmp_path, file)

    expected = {
        "duplicate": 1, "equal_sides": 1, "missing_side": 1, "side_language": 1, "side_lengths": 1,
        "swapped_sides": 1,
    }  # fmt: skip
    dropped = stats(corpus)["dropped"]
    assert {reason: dropped.get(reason) for reason in expected} == expected
    assert Counter(row["reason"] for row in rows(corpus) if row["reason"]) == dropped
    assert samples(corpus, "side_language")[0]["value"] == "az: tr"
    assert stats(corpus)["in"] == stats(corpus)["kept"] + sum(dropped.values())


def test_near_duplicates_are_found_among_pairs_before_directions_are_written(tmp_path: Path) -> None:
    words = " ".join(each[0] for each in PAIRS)
    azerbaijani = " ".join(each[1] for each in PAIRS)
    file = write_pairs(tmp_path / "a.tsv", [*PAIRS, (words, azerbaijani), (f"{words} Yes", azerbaijani)])

    corpus = clean_pairs(tmp_path, file)

    assert stats(corpus)["dropped"] == {"near_duplicate": 1}
    assert all(len(both) == 2 for both in by_id(corpus).values())


def test_swapped_sides_are_refused_with_the_order_to_write(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "a.tsv", [pair[::-1] for pair in PAIRS])

    with pytest.raises(DataError) as caught:
        clean_pairs(tmp_path, file)

    said = str(caught.value)
    assert "sources.pairs.inputs: the sides of 10 of 10 pairs are swapped, such as a.tsv:" in said
    assert "write sources.pairs.pairs: [az, en], or name the columns by their languages" in said


def test_a_side_in_another_language_is_refused_with_the_language(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "a.jsonl", list(zip((en for en, _ in PAIRS), TURKISH, strict=False)))

    with pytest.raises(DataError) as caught:
        clean_pairs(tmp_path, file)

    said = str(caught.value)
    assert (
        "sources.pairs.inputs: the side az is in another language in 4 of 4 pairs that are long enough"
        in said
    )
    assert "mostly in tr (CLD2's code), such as a.jsonl:" in said


def test_pairs_of_which_nothing_is_left_name_the_fault(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "a.jsonl", [("Hello!", ""), ("Hi!", "")])

    with pytest.raises(DataError, match=r"missing_side 2; correct the files, or `pairs` of the source"):
        clean_pairs(tmp_path, file)


def test_a_corpus_of_pairs_is_verified_in_both_directions(tmp_path: Path) -> None:
    recipe = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "a.tsv", PAIRS))
    corpus = Path(execute(STAGES["clean"], recipe.of_source("pairs"), {}, (), None).uri)
    manifest = finished_manifest(str(corpus), "corpus")

    assert verify_corpus(corpus, manifest)["documents"].startswith("24, ")

    train = list(read_documents(corpus, "train"))
    train[1] = replace(train[1], text=f"{train[1].text}?")
    write_documents(corpus, "train", train)
    with pytest.raises(
        IntegrityError, match=f"the second direction of {train[1].id} is not that of the first"
    ):
        verify_corpus(corpus, manifest)


def test_pairs_are_added_to_an_earlier_corpus(tmp_path: Path) -> None:
    first = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "a.tsv", PAIRS[:9])).of_source("pairs")
    earlier = execute(STAGES["clean"], first, {}, (), None).uri
    more = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "b.tsv", PAIRS[6:])).of_source("pairs")
    since = more.clean.model_copy(update={"since": earlier})

    corpus = Path(execute(STAGES["clean"], more.model_copy(update={"clean": since}), {}, (), None).uri)

    assert stats(corpus)["dropped"] == {"duplicate": 3}
    # A pair is looked at once, not in both directions.
    assert stats(corpus)["heldout"]["looked_at"] == len(
        {each.id for each in read_documents(corpus, "heldout")}
    )
    assert {each.text for each in documents(corpus)} == {text for pair in PAIRS for text in written(pair)}
    assert verify_corpus(corpus, finished_manifest(str(corpus), "corpus"))


def test_text_of_tests_is_found_in_either_side(tmp_path: Path) -> None:
    (tmp_path / "heldout.txt").write_text(f"{PAIRS[3][1]}", encoding="utf-8")
    file = write_pairs(tmp_path / "a.tsv", PAIRS)
    more: dict[str, Any] = {
        "clean": {"workers": 1, "decontaminate": True, "text_field": "body", "ng_words": [str(tmp_path / "heldout.txt")]},
        "evaluate": {"heldout": [str(tmp_path / "heldout.txt")]},
    }  # fmt: skip

    corpus = clean_pairs(tmp_path, file, **more)

    assert stats(corpus)["dropped"] == {"contaminated": 1}


def test_one_pair_is_explained_with_its_sides(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "a.tsv", [*PAIRS[:3], (PAIRS[0][0], TURKISH[0])])
    settings = Settings(recipe=recipe_of_pairs(tmp_path, file).of_source("pairs"))

    steps = explain_record(find_record([str(file)], "a.tsv:4", settings), settings)

    assert steps["pair"]["value"] == "az: tr"
    assert steps["pair"]["languages"] == {"own": 1, "en en": 1, "az tr": 1}
    assert steps["verdict"] == "side_language"


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with qa/")
def test_real_pairs_of_tatoeba_stay(tmp_path: Path) -> None:
    pairs = []
    for line in (Path(DATA) / "qa/az_translation_tatoeba.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sides = row["prompt"].partition(": ")[2], row["response"]
        pairs.append(sides[::-1] if row["prompt"].startswith("Bu cümləni Azərbaycan") else sides)

    corpus = clean_pairs(tmp_path, write_pairs(tmp_path / "en-az.tsv", pairs))

    assert (stats(corpus)["in"], stats(corpus)["dropped"]) == (2270, {})
    with pytest.raises(DataError, match="the sides of 2,118 of 2,126 pairs are swapped"):
        clean_pairs(tmp_path / "corpus", tmp_path / "en-az.tsv", pairs=("az", "en"))
