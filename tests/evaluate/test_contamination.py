import numpy as np
import pytest

from anadil.evaluate.contamination import (
    CHARACTERS_OF_NGRAM,
    Contamination,
    _ngram_hashes,
    find_contamination,
)
from anadil.text.corpus import Document
from anadil.text.language import load_language

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


def test_an_equal_document_is_found() -> None:
    found = find(HELDOUT, (*TEXTS, HELDOUT[1]))

    assert found.exact == found.contaminated == found.overlapping == ("h1",)


@pytest.mark.parametrize(
    "disguised",
    [
        HELDOUT[1].upper().replace("i", "İ"),
        HELDOUT[1].replace(",", " ;").replace(" ", "\n  "),
        HELDOUT[1].replace("ə", "\u01dd").replace(".", ""),
    ],
    ids=["upper case", "other spaces and signs", "another schwa"],
)
def test_case_signs_and_spaces_hide_no_copy(disguised: str) -> None:
    found = find(HELDOUT, (disguised,))

    assert found.exact == ("h1",)


def test_a_copy_inside_a_longer_document_is_contaminated_but_not_exact() -> None:
    found = find(HELDOUT, (f"{TEXTS[0]} {HELDOUT[2]} {TEXTS[1]}",))

    assert found.exact == ()
    assert found.contaminated == ("h2",)


def test_a_shared_phrase_is_an_overlap_only() -> None:
    phrase = " ".join(HELDOUT[0].split()[:8])

    found = find(HELDOUT, (f"{TEXTS[0]} {phrase} {TEXTS[1]}",))

    assert found.contaminated == ()
    assert found.overlapping == ("h0",)
    assert 0 < found.coverage < 0.1


def test_seven_shared_words_are_nothing() -> None:
    found = find(HELDOUT, (" ".join(HELDOUT[0].split()[:7]),))

    assert found.overlapping == ()


def test_a_document_shorter_than_the_ngram_is_found_only_as_a_whole() -> None:
    found = find(("Sabah gəl.", "Bu gün gəl."), ("Sabah gəl!", "Dedi ki, bu gün gəl."))

    assert found.exact == ("h0",)
    assert found.contaminated == ("h0",)


def test_one_leak_in_a_hundred_is_found_and_nothing_else() -> None:
    numbered = [f"Sıra {n}: " + " ".join(f"söz{n * 31 + k}" for k in range(30)) for n in range(300)]

    found = find(tuple(numbered[:100]), (*numbered[100:], numbered[42]))

    assert found.contaminated == ("h42",)


def test_japanese_is_compared_by_characters() -> None:
    found = find((JAPANESE, JAPANESE[::-1]), (f"昨日、{JAPANESE}と聞いた。",), "ja")

    assert (found.unit, found.ngram) == ("characters", CHARACTERS_OF_NGRAM)
    assert found.contaminated == ("h0",)


def test_no_training_text_is_no_contamination() -> None:
    assert find(HELDOUT, ()).contaminated == ()


def test_hashes_depend_on_the_order_of_units() -> None:
    units = np.arange(50, dtype=np.uint64) ** 3

    forward, backward = _ngram_hashes(units, 8), _ngram_hashes(units[::-1].copy(), 8)

    assert len(set(forward.tolist()) | set(backward.tolist())) == 2 * 43


def test_ids_follow_the_order_of_the_documents() -> None:
    heldout = [
        Document(id=name, text=text, source="", url="", lang="az")
        for name, text in zip("zya", HELDOUT, strict=True)
    ]

    found = find_contamination(heldout, [document(text) for text in HELDOUT], load_language("az"))

    assert found.exact == ("z", "y", "a")
