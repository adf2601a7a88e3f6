import gzip
import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from benchmarks.evaluate.leaks import LEAKS, planted
from pyarrow import parquet

from anadil.artifacts import scored_text, storage
from anadil.artifacts.scored_text import read_retained
from anadil.artifacts.text_files import TEXT_SUFFIXES
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import MIB
from anadil.evaluate.heldout import Contamination, Heldout, find_contamination, read_heldout
from anadil.recipe.sections import Evaluate
from anadil.text.corpus import write_documents
from anadil.text.language import load_language
from anadil.text.ngram_overlap import CHARACTERS_OF_NGRAM, ngram_hashes, unit_hashes
from tests.kit.child import peak_memory

from .conftest import TEXTS, document

LINES = "".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)).encode()


ENDLESS = """

import sys
from anadil.core.errors import DataError
from anadil.evaluate.heldout import read_heldout
try:
    read_heldout([], sys.argv[1:], "text", "az")
except DataError as error:
    print(error)
"""


def read(*files: Path, field: str = "text", corpus: Path = Path("/nowhere")) -> Heldout:
    return read_heldout([corpus], [str(file) for file in files], field, "az")


def put(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


def test_parquet_without_pyarrow_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(
        PreflightError, match=r"a\.parquet: reading Parquet and Arrow needs pyarrow; run .*\[clean\]"
    ):
        read(put(tmp_path, "a.parquet", b"PAR1"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", zstandard.compress(LINES)),
        ("frames.jsonl.zst", b"".join(zstandard.compress(line + b"\n") for line in LINES.splitlines())),
        ("A.JSONL", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")),
    ],
)
def test_json_lines_are_read_as_they_are(name: str, content: bytes, tmp_path: Path) -> None:
    found = read(put(tmp_path, name, content))

    assert [one.text for one in found.documents] == list(TEXTS)
    assert found.documents[1].id == "d1"
    assert found.source == "files"


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    found = read(put(tmp_path, "a.txt", "Bir.\r\nİki.\n".encode()))

    assert [one.text for one in found.documents] == ["Bir.\r\nİki.\n"]


def test_a_parquet_column_is_read(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"content": TEXTS}), tmp_path / "a.parquet")

    found = read(tmp_path / "a.parquet", field="content")

    assert [one.text for one in found.documents] == list(TEXTS)


def test_the_corpus_part_is_the_default(tmp_path: Path) -> None:
    write_documents(tmp_path, "heldout", [document(text) for text in TEXTS])

    found = read(corpus=tmp_path)

    assert [one.text for one in found.documents] == list(TEXTS)
    assert found.source == "corpus"


def test_repeated_documents_are_scored_and_counted_and_empty_ones_are_not(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": text}) for text in ("Salam.", "", "Salam.", "\n"))

    found = read(put(tmp_path, "a.jsonl", lines.encode()))

    assert [one.text for one in found.documents] == ["Salam.", "Salam.", "\n"]
    assert (found.empty, found.repeated) == (1, 1)


def test_the_digest_follows_the_texts(tmp_path: Path) -> None:
    one = read(put(tmp_path, "a.jsonl", LINES))
    other = read(put(tmp_path, "b.jsonl", LINES.replace(b"Bak", b"bak")))

    assert one.sha256 == read(put(tmp_path, "c.jsonl.gz", gzip.compress(LINES))).sha256
    assert one.sha256 != other.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", r"held-out text is empty: .*a\.jsonl; give evaluate\.heldout"),
        ("a.html", b"<p>", r"a\.html: held-out text is read from \.jsonl, .* only; convert"),
        (
            "a.warc.gz",
            b"",
            r"a\.warc\.gz: held-out text is read from .*; convert the file \(anadil clean takes",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a\.jsonl:2: not a JSON line"),
        ("a.jsonl", b'{"body": "a"}\n', r"a\.jsonl:1: has no text in 'text'; set clean\.text_field"),
        ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1: not a JSON line"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: has no text in 'text'"),
        ("a.jsonl", b'{"text": "\\ud83d"}\n', r"a\.jsonl:1: holds half a surrogate pair"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl:1: not a JSON line .*utf-8"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], r"a\.jsonl\.gz: is damaged"),
        ("a.txt", b"\xff\xfe", r"a\.txt: is damaged or not UTF-8"),
        ("a.parquet", b"no parquet", r"a\.parquet: is a damaged table"),
    ],
)
def test_what_cannot_be_read_is_a_data_error(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = put(tmp_path, name, content)

    with pytest.raises(DataError, match=message):
        read(file)


def test_a_missing_column_is_a_data_error(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"content": TEXTS}), tmp_path / "a.parquet")

    with pytest.raises(DataError, match=r"a\.parquet: has no column 'text'; set clean\.text_field"):
        read(tmp_path / "a.parquet")


def test_a_corpus_without_held_out_documents_is_a_data_error(tmp_path: Path) -> None:
    write_documents(tmp_path, "heldout", [])

    with pytest.raises(
        DataError, match=r"held-out text is empty: .*/heldout; .* raise clean\.heldout_fraction"
    ):
        read(corpus=tmp_path)


def test_all_formats_that_the_recipe_promises_are_read() -> None:
    promised = str(Evaluate.model_fields["heldout"].description).split(";")[0]

    assert re.findall(r"`(.*?)`", promised) == [".jsonl[.gz|.zst]", ".txt", ".parquet"]
    assert {each.replace(".ndjson", ".jsonl") for each in TEXT_SUFFIXES} == {
        ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt", ".parquet",
    }  # fmt: skip


def test_a_text_file_longer_than_a_document_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with file.open("wb") as stream:
        stream.truncate(17 * MIB)

    with pytest.raises(
        DataError, match=r"a\.txt: is one document of 17\.0 MiB, longer than 16\.0 MiB; give its"
    ):
        read(file)


@pytest.mark.parametrize("limit", ["MAX_DOCUMENTS", "MAX_BYTES"])
def test_more_text_than_can_be_scored_is_refused(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps({"text": f"{number:05}"}) + "\n" for number in range(5_000)).encode()
    monkeypatch.setattr(scored_text, limit, {"MAX_DOCUMENTS": 4_000, "MAX_BYTES": 20_000}[limit])

    with pytest.raises(
        DataError, match=r"b\.jsonl\.gz:1501: text of evaluate\.heldout exceeds .*; give it a sample"
    ):
        read(put(tmp_path, "a.jsonl", rows[: 2_500 * 18]), put(tmp_path, "b.jsonl.gz", gzip.compress(rows)))


def test_a_file_that_unpacks_to_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    # 4 GB of one document a line, in 4 MB.
    row = json.dumps({"text": "x" * 1_000_000}).encode() + b"\n"
    file = put(tmp_path, "a.jsonl.gz", gzip.compress(row) * 4_000)

    used, output = peak_memory(ENDLESS, file)

    assert "exceeds 100,000 documents or 256.0 MiB" in output
    assert used < 1_000


def test_the_held_out_text_of_a_source_is_retained_text_with_a_figure_of_its_own(tmp_path: Path) -> None:
    for name in ("en", "code"):
        write_documents(tmp_path / name, "heldout", [document(f"held out of {name}")])

    retained = read_retained(sources={name: tmp_path / name for name in ("en", "code")})

    by_text = {each.text: each.lang for each in retained}
    # The text that comes with the program is `en` in every run.
    assert by_text["held out of en"] == "en_source"
    assert by_text["held out of code"] == "code"
    assert {each.lang for each in retained} == {"en", "en_source", "code"}


HELDOUT = (
    "Balıqçılar gün doğmamış dənizə çıxdılar, axşam isə dolu səbətlərlə sahilə qayıtdılar və balıqları satdılar.",
    "Müəllimə lövhədə yeni mövzunun adını yazdı, sonra uşaqlardan bu barədə nə bildiklərini bir-bir soruşdu.",
    "Köhnə dəmirçi emalatxanasında oğluna nalın necə hazırlandığını səbirlə göstərir, o da diqqətlə baxırdı.",
)
JAPANESE = "東京は日本の首都であり、世界でも有数の大都市として知られている。毎年たくさんの観光客がこの街を訪れ、歴史ある寺や新しい高層ビルを見て回る。"


def find(heldout: tuple[str, ...], train: tuple[str, ...], code: str = "az") -> Contamination:
    heldout_documents = [document(text, f"h{i}") for i, text in enumerate(heldout)]
    return find_contamination(heldout_documents, iter(map(document, train)), load_language(code))[0]


def test_other_items_are_compared_in_the_same_pass_and_change_no_figure() -> None:
    heldout, train, items = (
        [document(text, f"{name}{place}") for place, text in enumerate(part)]
        for name, part in (
            ("h", HELDOUT[:2]),
            ("t", (*TEXTS, HELDOUT[1], HELDOUT[2])),
            ("i", (*HELDOUT[2:], "Çörək nədir?")),
        )
    )
    language = load_language("az")

    found, seen = find_contamination(heldout, iter(train), language, items)

    assert found == find_contamination(heldout, iter(train), language)[0]
    assert (found.contaminated, found.num_documents) == (("h1",), 2)
    assert seen == {"i0"}


def test_clean_text_is_clean() -> None:
    found = find(HELDOUT, TEXTS)

    assert (found.exact, found.contaminated, found.overlapping, found.coverage) == ((), (), (), 0)
    assert (found.num_documents, found.num_train_documents) == (3, len(TEXTS))
    assert (found.unit, found.ngram) == ("words", 8)
    assert find(HELDOUT, ()).contaminated == ()


@pytest.mark.parametrize(
    "disguised",
    [
        HELDOUT[1],
        HELDOUT[1].upper().replace("i", "İ"),
        HELDOUT[1].replace(",", " ;").replace(" ", "\n  "),
        HELDOUT[1].replace("ə", "\u01dd").replace(".", ""),
    ],
    ids=["as it is", "upper case", "other spaces and signs", "another schwa"],
)
def test_an_equal_document_is_found_and_case_signs_and_spaces_hide_no_copy(disguised: str) -> None:
    copies = find(HELDOUT, (*TEXTS, disguised))

    assert copies.exact == copies.contaminated == copies.overlapping == ("h1",)


def test_a_copy_inside_a_longer_document_is_contaminated_but_not_exact() -> None:
    found = find(HELDOUT, (f"{TEXTS[0]} {HELDOUT[2]} {TEXTS[1]}",))

    assert found.exact == ()
    assert found.contaminated == ("h2",)


def test_a_shared_phrase_is_an_overlap_only_and_seven_words_are_nothing() -> None:
    phrase = " ".join(HELDOUT[0].split()[:8])

    found = find(HELDOUT, (f"{TEXTS[0]} {phrase} {TEXTS[1]}",))

    assert found.contaminated == ()
    assert found.overlapping == ("h0",)
    assert 0 < found.coverage < 0.1
    assert find(HELDOUT, (" ".join(HELDOUT[0].split()[:7]),)).overlapping == ()


def test_a_document_shorter_than_the_ngram_is_found_only_as_a_whole() -> None:
    found = find(("Sabah gəl.", "Bu gün gəl."), ("Sabah gəl!", "Dedi ki, bu gün gəl."))

    assert found.exact == ("h0",)
    assert found.contaminated == ("h0",)


def test_japanese_is_compared_by_characters() -> None:
    found = find((JAPANESE, JAPANESE[::-1]), (f"昨日、{JAPANESE}と聞いた。",), "ja")

    assert (found.unit, found.ngram) == ("characters", CHARACTERS_OF_NGRAM)
    assert found.contaminated == ("h0",)


def built_in(name: str) -> list[str]:
    with storage.built_in(name).open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


PROSE = tuple(built_in("builtin:az/prose.jsonl")[::8][:8])


@pytest.mark.parametrize("leak", LEAKS)
def test_a_disguised_copy_is_found_and_no_other_document_is_blamed(leak: str) -> None:
    found = find(PROSE, (*TEXTS, *planted_texts(leak, PROSE[::2])))

    assert found.contaminated == ("h0", "h2", "h4", "h6")


def planted_texts(leak: str, texts: tuple[str, ...]) -> list[str]:
    train = [document(text) for text in (*TEXTS, *HELDOUT)]
    return [one.text for one in planted(leak, [document(text) for text in texts], train)]


@pytest.mark.parametrize("dotted", ["I", "İ", "ı", "i"])
def test_each_letter_i_is_one_letter(dotted: str) -> None:
    text = "Sakit qış gecəsi bizim kiçik kənddə ildırım çaxdı"

    found = find((text,), (re.sub("[ıi]", dotted, text),))

    assert found.exact == ("h0",)


def test_a_mark_that_makes_another_word_is_no_diacritic() -> None:
    found = find(("かき。" * 20, "कि" * 60), ("がき。" * 20, "का" * 60), "ja")

    assert found.overlapping == ()


def test_thirteen_words_of_a_short_document_contaminate_it_and_of_a_long_one_do_not() -> None:
    words = [f"söz{n}" for n in range(13)]
    own = [f"başqa{n}" for n in range(200)]

    found = find((" ".join(words + own[:30]), " ".join(words + own)), (" ".join(["filan", *words, "və"]),))

    assert found.contaminated == ("h0",)
    assert found.overlapping == ("h0", "h1")
    assert [(one.id, one.stretch) for one in found.seen] == [("h0", 13), ("h1", 13)]
    assert found.seen[0].stretch_share == pytest.approx(13 / 43)
    assert found.seen[1].share == pytest.approx(6 / 206)


def test_twelve_words_are_no_stretch() -> None:
    words = [f"söz{n}" for n in range(12)]

    found = find((" ".join(words + [f"başqa{n}" for n in range(30)]),), (" ".join(words),))

    assert (found.contaminated, found.seen, found.overlapping) == ((), (), ("h0",))


def test_words_of_any_length_have_hashes_of_their_own() -> None:
    def hashes(text: str) -> set[int]:
        return set(unit_hashes(text, load_language("az"), by_character=False).tolist())

    words = ["ab", "ba", "a", "b", "aa", "abc", "cba", "1", "11", "a" * 500, "a" * 499]

    assert len(hashes(" ".join(words))) == len(words)
    assert hashes("ab-ba") == hashes("AB (bà)")
    assert hashes("كِتَابٌ") == hashes("كتاب")


def test_hashes_depend_on_the_order_of_units() -> None:
    units = np.arange(50, dtype=np.uint64) ** 3

    forward, backward = ngram_hashes(units, 8), ngram_hashes(units[::-1].copy(), 8)

    assert len(set(forward.tolist()) | set(backward.tolist())) == 2 * 43
