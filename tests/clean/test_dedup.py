import itertools
import json
import random
import re
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.clean.dedup.find_duplicates import KEPT, find_duplicates
from anadil.clean.dedup.sorted_documents import DocumentWriter, KeptDocument, Signatures
from anadil.clean.kernels.minhash import MinHash, jaccard
from anadil.clean.shards.holdout import Candidates, write_candidates
from anadil.clean.write.shard_output import weight_of
from anadil.evaluate.heldout import find_contamination
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI, JAPANESE

az, ja = load_language("az"), load_language("ja")
MINHASH = MinHash(az, bands=14, rows=8, shingle=5)
VOCABULARY = sorted(set((AZERBAIJANI + " " + ANOTHER).split()))


def shard(folder: Path, texts: Sequence[str], minhash: MinHash = MINHASH) -> Path:
    """A shard whose documents have the numbers of the texts as ids, unless the same text came before."""
    folder.mkdir(parents=True)
    writer = DocumentWriter(folder, minhash.bands)
    for number, text in enumerate(texts):
        writer.add(
            KeptDocument(
                id=f"{number:032x}", line=json.dumps({"id": f"{number:032x}", "text": text}).encode() + b"\n",
                exact_key=minhash.exact_key(text), band_keys=minhash.band_keys(text),
                weight=len(text), num_bytes=len(text.encode()), num_words=len(text.split()), record=number,
            )
        )  # fmt: skip
    writer.finish()
    return folder


def removed(texts: Sequence[str], minhash: MinHash = MINHASH) -> set[int]:
    """Which of the texts go."""
    with tempfile.TemporaryDirectory() as folder:
        return set(duplicates(Signatures([shard(Path(folder) / "0", texts, minhash)]), minhash, Path(folder)))


def duplicates(signatures: Signatures, minhash: MinHash, folder: Path) -> dict[int, int]:
    """Documents that go, and those instead of which they go."""
    verdicts = find_duplicates(signatures, minhash, folder)
    gone = np.flatnonzero(verdicts.verdict != KEPT)
    return dict(zip(gone.tolist(), verdicts.duplicate_of[gone].tolist(), strict=True))


def random_words(seed: int, count: int = 200) -> list[str]:
    return random.Random(seed).choices(VOCABULARY, k=count)


def test_of_two_nearly_equal_texts_the_longer_one_is_kept() -> None:
    texts = [f"{AZERBAIJANI} {ANOTHER}", f"{AZERBAIJANI} {ANOTHER} Son.", JAPANESE]

    assert removed(texts) == {0}


def test_of_equally_long_ones_that_with_the_smallest_id_is_kept() -> None:
    assert removed([AZERBAIJANI, AZERBAIJANI]) == {1}
    assert removed([f"{AZERBAIJANI} {ANOTHER} Bir", f"{AZERBAIJANI} {ANOTHER} İki"]) == {1}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", "").replace(".", ""),
        lambda text: re.sub(r"([.,:;!?])", r" \1", text),
        lambda text: re.sub(r"(\w+)", r"“\1”", text),
        lambda text: text.translate(str.maketrans("öüığəçşÖÜİĞƏÇŞ", "ouigecsOUIGECS")),
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: text.replace("’", "'").replace(" ", "\n\n"),
    ],
    ids=["no signs", "spaces before signs", "quotation marks", "no diacritics", "NFD", "lines"],
)
def test_signs_accents_and_spaces_hide_no_copy(change: Callable[[str], str]) -> None:
    for text in (AZERBAIJANI, ANOTHER):
        assert change(text) != text
        assert MINHASH.exact_key(change(text)) == MINHASH.exact_key(text)
        assert (MINHASH.band_keys(change(text)) == MINHASH.band_keys(text)).all()


def test_texts_that_differ_in_numbers_are_near_duplicates_and_not_equal() -> None:
    first, second = (
        f"{AZERBAIJANI} Ümumi sahəsi {area} hektardır. {ANOTHER}" for area in ("12,5", "1 999,25")
    )

    assert MINHASH.exact_key(first) != MINHASH.exact_key(second)
    assert jaccard(MINHASH.shingles(first), MINHASH.shingles(second)) > 0.9
    assert MINHASH.shingles("2023 il").tolist() == MINHASH.shingles("٢٠٢ il").tolist()


def test_a_mark_that_makes_another_letter_is_a_difference() -> None:
    minhash = MinHash(ja, bands=14, rows=8, shingle=5)

    assert minhash.exact_key("かきくけこ") != minhash.exact_key("がぎぐげご")
    assert minhash.exact_key("東京、大阪。") == minhash.exact_key("東京 大阪")
    assert not (minhash.band_keys("はひふへほ" * 9) == minhash.band_keys("ばびぶべぼ" * 9)).any()


def test_a_script_that_unicode_does_not_know_yet_is_made_of_letters() -> None:
    private = ["".join(map(chr, range(start, start + 20))) for start in (0xE000, 0xE100)]

    assert MINHASH.exact_key(private[0]) != MINHASH.exact_key(private[1])


def test_of_copies_the_one_with_accents_and_without_spaces_before_signs_stays() -> None:
    plain = AZERBAIJANI.translate(str.maketrans("öüığəçşÖÜİĞƏÇŞ", "ouigecsOUIGECS"))
    spaced = re.sub(r"([.,:;!?])", r" \1", AZERBAIJANI)

    assert weight_of(AZERBAIJANI.encode()) > max(map(weight_of, (plain.encode(), spaced.encode())))
    assert weight_of(f"{AZERBAIJANI} Son.".encode()) > weight_of(AZERBAIJANI.encode())
    assert weight_of(b"\n a \n") == 0


def test_japanese_is_compared_by_characters() -> None:
    minhash = MinHash(ja, bands=14, rows=8, shingle=5)
    texts = [JAPANESE, JAPANESE.replace("五度", "六度"), "別の文章です。" * 9]

    assert removed(texts, minhash) == {1}


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(12)), cuts=st.sets(st.integers(1, 11), max_size=3))
def test_neither_order_nor_shards_matter(order: list[int], cuts: set[int]) -> None:
    texts = []
    for seed in range(4):
        words = random_words(seed)
        texts += [" ".join(variant) for variant in (words, [*words[:-1], "son"], ["bir", *words])]
    expected = {texts[document] for document in removed(texts)}

    with tempfile.TemporaryDirectory() as folder:
        bounds = [0, *sorted(cuts), 12]
        folders = [
            shard(Path(folder) / str(start), [texts[index] for index in order[start:end]])
            for start, end in itertools.pairwise(bounds)
        ]
        signatures = Signatures(folders)
        gone = duplicates(signatures, MINHASH, Path(folder))
        found = {json.loads(signatures.line(document))["text"] for document in gone}

    assert {len(text) for text in found} == {len(text) for text in expected}
    assert len(found) == len(expected)


def test_in_a_large_cluster_only_what_resembles_the_kept_text_goes() -> None:
    # A chain: each text shares most with the next one, the last nothing with the first.
    words = random_words(7, 3_000)
    chain = [" ".join(words[n * 8 : n * 8 + 200]) for n in range(120)]

    gone = removed(chain)

    assert 0 < len(gone) < 119
    kept = [MINHASH.shingles(text) for number, text in enumerate(chain) if number not in gone]
    for number in gone:
        assert max(jaccard(MINHASH.shingles(chain[number]), other) for other in kept) >= MINHASH.threshold


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
    monkeypatch.setattr("anadil.clean.kernels.characters.MAX_BATCH_CHARS", 500)
    texts = [AZERBAIJANI, "", ANOTHER, "bir iki", AZERBAIJANI * 2]

    exact, bands = MINHASH.keys_of(texts)
    assert bands.tolist() == [MINHASH.band_keys(text).tolist() for text in texts]
    assert [first << 64 | second for first, second in exact.tolist()] == [*map(MINHASH.exact_key, texts)]


def test_clusters_of_many_documents_are_looked_at_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(random_words(seed) + ["son"] * copy) for seed in range(40) for copy in range(3)]
    random.Random(3).shuffle(texts)
    whole = removed(texts)
    monkeypatch.setattr("anadil.clean.dedup.find_duplicates.PART_DOCUMENTS", 7)
    monkeypatch.setattr("anadil.clean.dedup.find_duplicates.CHUNK", 32)

    assert removed(texts) == whole
    assert len(whole) >= 78


az, ja = load_language("az"), load_language("ja")
OWN = texts(120)


def sharing(own: list[str], others: int) -> list[str]:
    """Texts of which every second one begins as its neighbour does, in 30 words that no other has."""
    begun = [" ".join(text.split()[:30]) for text in texts(others + len(own))[-len(own) :]]
    return [f"{begun[number - number % 4]} {text}" if number % 2 else text for number, text in enumerate(own)]


def seen(corpus: Path, code: str = "az") -> tuple[int, int]:
    """Held-out documents that evaluation calls contaminated, and those that share anything."""
    heldout, train = (list(read_documents(corpus, part)) for part in ("heldout", "train"))
    found, _ = find_contamination(heldout, iter(train), load_language(code))
    return len(found.contaminated), len(found.overlapping)


def test_documents_that_share_runs_are_not_held_out(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", sharing(OWN, 200))

    corpus = clean(tmp_path, raw, heldout_fraction=0.2)

    assert seen(corpus) == (0, 0)
    assert len(documents(corpus)) == 120
    found = stats(corpus)
    assert found["records"]["heldout"] == found["heldout"]["documents"] > 10
    assert (found["heldout"]["held_out_sharing"], found["heldout"]["contaminated"]) == (0, 0)
    assert 0 < found["heldout"]["sharing"] < found["heldout"]["looked_at"]


def test_neither_shards_nor_a_second_start_change_what_is_held_out(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", sharing(OWN, 200))
    held = [
        [each.id for each in read_documents(clean(tmp_path, raw, shard_bytes=size), "heldout")]
        for size in (None, 20_000, 20_000)
    ]

    assert held[0] == held[1] == held[2]


def test_japanese_runs_are_made_of_characters(tmp_path: Path) -> None:
    letters = "春夏秋冬東西南北山川草木花鳥風月雨雪雲空海島町村人心手足目耳口声音色形"
    draw = random.Random(4)
    own = ["".join(draw.choices(letters, k=300)) for _ in range(20)]
    write_candidates([*own, own[3][:200] + own[4][250:] * 3], ja, tmp_path)

    heldout, counts = Candidates(tmp_path, ja).choose([], np.arange(21), 21)

    assert (counts["sharing"], heldout.tolist()) == (3, [0, 1, 2, *range(4, 20)])


def test_where_all_documents_repeat_others_the_run_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = " ".join(OWN[0].split()[:60])
    raw = write_jsonl(tmp_path / "a.jsonl", [f"{common} {' '.join(text.split()[:50])}" for text in OWN[1:40]])

    corpus = clean(tmp_path, raw, heldout_fraction=0.3, max_shared=1)

    assert stats(corpus)["heldout"]["contaminated"] == stats(corpus)["records"]["heldout"] == 1
    assert "1 document instead of" in caplog.text
    assert "1 of the held-out documents stand in the training part, too" in caplog.text


def test_documents_that_share_little_are_held_out_where_too_few_share_nothing(tmp_path: Path) -> None:
    phrase = " ".join(OWN[0].split()[:8])
    write_candidates([f"{text} {phrase}" for text in OWN[1:5]] + [OWN[5], f"{OWN[5]} Son."], az, tmp_path)

    heldout, counts = Candidates(tmp_path, az).choose([], np.arange(6) + 7, 4)

    assert heldout.tolist() == [7, 8, 9, 10]
    assert counts == {
        "documents": 4, "looked_at": 6, "sharing": 6, "held_out_sharing": 4, "contaminated": 0
    }  # fmt: skip
