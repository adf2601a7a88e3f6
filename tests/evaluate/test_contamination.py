import json
import re

import numpy as np
import pytest
from benchmarks.evaluate.leaks import LEAKS, planted

from anadil.artifacts import storage
from anadil.evaluate.heldout import Contamination, find_contamination
from anadil.text.corpus import Document
from anadil.text.folded_units import ngram_hashes, unit_hashes
from anadil.text.language import load_language
from anadil.text.overlap import CHARACTERS_OF_NGRAM

from .conftest import TEXTS, document

HELDOUT = (
    "Balıqçılar gün doğmamış dənizə çıxdılar, axşam isə dolu səbətlərlə sahilə qayıtdılar və balıqları satdılar.",
    "Müəllimə lövhədə yeni mövzunun adını yazdı, sonra uşaqlardan bu barədə nə bildiklərini bir-bir soruşdu.",
    "Köhnə dəmirçi emalatxanasında oğluna nalın necə hazırlandığını səbirlə göstərir, o da diqqətlə baxırdı.",
)
JAPANESE = "東京は日本の首都であり、世界でも有数の大都市として知られている。毎年たくさんの観光客がこの街を訪れ、歴史ある寺や新しい高層ビルを見て回る。"


def find(heldout: tuple[str, ...], train: tuple[str, ...], code: str = "az") -> Contamination:
    return find_contamination(
        [document(text, f"h{i}") for i, text in enumerate(heldout)],
        iter([document(text) for text in train]),
        load_language(code),
    )


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


def test_ids_follow_the_order_of_the_documents() -> None:
    heldout = [
        Document(id=name, text=text, source="", url="", lang="az")
        for name, text in zip("zya", HELDOUT, strict=True)
    ]

    found = find_contamination(heldout, [document(text) for text in HELDOUT], load_language("az"))

    assert found.exact == ("z", "y", "a")
