import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.clean.dedup import near_duplicates
from anadil.clean.minhash import MinHash, jaccard
from anadil.text.language import load_language
from tests.kit.texts import ANOTHER, AZERBAIJANI, JAPANESE

az, ja = load_language("az"), load_language("ja")
MINHASH = MinHash(az, bands=14, rows=8, shingle=5)
VOCABULARY = sorted(set((AZERBAIJANI + " " + ANOTHER).split()))


@dataclass(frozen=True)
class Text:
    id: str
    text: str


def removed(texts: list[Text], minhash: MinHash = MINHASH) -> set[str]:
    keys = minhash.band_keys_of([text.text for text in texts])
    return {texts[index].id for index in near_duplicates(texts, keys, minhash)}


def random_words(seed: int, count: int = 200) -> list[str]:
    return random.Random(seed).choices(VOCABULARY, k=count)


def test_of_two_nearly_equal_texts_the_longer_one_is_kept() -> None:
    texts = [
        Text("b", f"{AZERBAIJANI} {ANOTHER}"),
        Text("a", f"{AZERBAIJANI} {ANOTHER} Son."),
        Text("c", JAPANESE),
    ]

    assert removed(texts) == {"b"}


def test_of_equally_long_ones_that_with_the_smallest_id_is_kept() -> None:
    assert removed([Text("b", AZERBAIJANI), Text("a", AZERBAIJANI)]) == {"b"}


def test_different_texts_stay() -> None:
    assert removed([Text(str(seed), " ".join(random_words(seed))) for seed in range(20)]) == set()


def test_upper_case_is_no_difference() -> None:
    upper = AZERBAIJANI.replace("i", "İ").upper()

    assert MINHASH.exact_key(upper) == MINHASH.exact_key(AZERBAIJANI)
    assert removed([Text("a", AZERBAIJANI), Text("b", upper)]) == {"b"}


def test_japanese_is_compared_by_characters() -> None:
    minhash = MinHash(ja, bands=14, rows=8, shingle=5)
    texts = [
        Text("a", JAPANESE),
        Text("b", JAPANESE.replace("五度", "六度")),
        Text("c", "別の文章です。" * 9),
    ]

    assert removed(texts, minhash) == {"b"}


@settings(max_examples=25)
@given(order=st.permutations(range(12)))
def test_the_order_of_the_documents_does_not_matter(order: list[int]) -> None:
    texts = []
    for seed in range(4):
        words = random_words(seed)
        variants = [words, [*words[:-1], "son"], ["bir", *words]]
        texts += [Text(f"{seed}{n}", " ".join(variant)) for n, variant in enumerate(variants)]

    assert removed([texts[index] for index in order]) == removed(texts)


def test_in_a_large_cluster_only_what_resembles_the_kept_text_goes() -> None:
    # A chain: each text shares most with the next one, the last nothing with the first.
    words = random_words(7, 3_000)
    chain = [Text(f"{n:03}", " ".join(words[n * 8 : n * 8 + 200])) for n in range(120)]

    gone = removed(chain)

    assert 0 < len(gone) < 119
    kept = [MINHASH.shingles(text.text) for text in chain if text.id not in gone]
    for text in chain:
        if text.id in gone:
            assert max(jaccard(MINHASH.shingles(text.text), other) for other in kept) >= MINHASH.threshold


def test_thousands_of_nearly_equal_texts_collapse_to_one() -> None:
    texts = [Text(f"{n:04}", f"{AZERBAIJANI} {ANOTHER} {n}") for n in range(600)]

    assert len(removed(texts)) == 599


@pytest.mark.parametrize("text", ["", "bir", "bir iki üç"])
def test_a_text_shorter_than_a_shingle_has_keys(text: str) -> None:
    assert MINHASH.band_keys(text).shape == (14,)


def test_no_documents_have_no_duplicates() -> None:
    assert removed([]) == set()


def test_pairs_are_found_as_often_as_the_formula_says() -> None:
    found = 0
    similarities = []
    for seed in range(60):
        words = random_words(seed)
        changed = list(words)
        for place in random.Random(seed).sample(range(200), 2):
            changed[place] = f"söz{place}"
        a, b = " ".join(words), " ".join(changed)
        similarities.append(jaccard(MINHASH.shingles(a), MINHASH.shingles(b)))
        found += bool((MINHASH.band_keys(a) == MINHASH.band_keys(b)).any())

    expected = sum(1 - (1 - similarity**8) ** 14 for similarity in similarities)
    assert found == pytest.approx(expected, abs=4)


@settings(max_examples=200)
@given(a=st.text("aAbİi\u0307 \n", max_size=6), b=st.text("aAbİi\u0307 \n", max_size=6))
def test_exact_keys_are_equal_where_case_and_white_space_alone_differ(a: str, b: str) -> None:
    is_same = " ".join(az.fold(a).split()) == " ".join(az.fold(b).split())

    assert (MINHASH.exact_key(a) == MINHASH.exact_key(b)) == is_same


def test_a_batch_has_the_keys_of_each_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.minhash.MAX_BATCH_CHARS", 500)
    texts = [AZERBAIJANI, "", ANOTHER, "bir iki", AZERBAIJANI * 2]

    assert MINHASH.band_keys_of(texts).tolist() == [MINHASH.band_keys(text).tolist() for text in texts]
    assert [first << 64 | second for first, second in MINHASH.exact_keys_of(texts).tolist()] == [
        MINHASH.exact_key(text) for text in texts
    ]
