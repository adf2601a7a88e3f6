"""What a candidate is measured by: domains, words, morphology, what is to be kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from anadil.core.errors import DataError
from anadil.core.format import MIB
from anadil.runtime.job import Job
from anadil.text.corpus import Document, write_documents
from anadil.text.language import load_language
from anadil.tokenizer.fertility import measure_fertility, measure_morphology, sample_heldout, suffix_borders
from anadil.tokenizer.run import run
from anadil.tokenizer.select import SPEED
from tests.tokenizer.conftest import SENTENCES, documents, written


def of(name: str, *texts: str) -> list[Document]:
    return [replace(each, source=f"/raw/{name}.jsonl:1") for each in documents(list(texts))]


LAW = of("law", *[f"{SENTENCES[0]} {number}" for number in range(20)])
NEWS = of("news", SENTENCES[1])


def test_each_domain_has_its_figures_and_counts_alike_in_the_mean(tiny: Tokenizer) -> None:
    heldout = sample_heldout([*LAW, *NEWS], load_language("az"), {})

    found = measure_fertility(tiny, heldout, "tiny", 1_000)

    def tokens(texts: list[Document]) -> int:
        return sum(len(tiny.encode(each.text, add_special_tokens=False).ids) for each in texts)

    assert list(found.domains) == ["law", "news"]
    law, news = found.domains["law"], found.domains["news"]
    assert (law.num_words, news.num_words) == (20 * 6, 6)
    assert law.fertility == pytest.approx(tokens(LAW) / 120, abs=1e-4)
    assert news.words_in_context == int(1_000 / (tokens(NEWS) / 6))
    assert news.bytes_per_token == pytest.approx(len(SENTENCES[1].encode()) / tokens(NEWS), abs=1e-4)
    all_bytes = sum(len(each.text.encode()) for each in [*LAW, *NEWS])
    assert found.num_tokens == tokens([*LAW, *NEWS])
    assert found.bytes_per_token == pytest.approx(all_bytes / tokens([*LAW, *NEWS]), abs=1e-4)
    assert found.fertility == pytest.approx(tokens([*LAW, *NEWS]) / 126, abs=1e-4)
    assert found.mean_fertility == pytest.approx((law.fertility + news.fertility) / 2, abs=1e-4)


def test_words_are_counted_without_the_punctuation_around_them(tiny: Tokenizer) -> None:
    """`return` and `the` are tokens of the base, each with the space before it; `qwxz` is not."""
    texts = of("one", "x the return; (the) the qwxz ...", "y the")
    heldout = sample_heldout(texts, load_language("az"), {})

    found = measure_fertility(tiny, heldout, "tiny", 1_000).domains["one"]

    assert [tiny.encode(f" {word}").tokens[1:] for word in ("the", "x", "y")] == [["Ġthe"], ["Ġx"], ["Ġy"]]
    num_cut = sum(len(tiny.encode(f" {word}").ids) > 2 for word in ("return", "qwxz"))
    assert found.continued_words == pytest.approx(num_cut / 8, abs=1e-4)
    assert found.single_token_words == pytest.approx((5 - num_cut) / 5, abs=1e-4)


@pytest.mark.parametrize(
    ("tokens", "precision", "recall"),
    [
        (["Ġkitab", "lar", "dan"], 1.0, 1.0),
        (["Ġkitab", "lardan"], 1.0, 0.5),
        (["Ġkit", "abl", "ardan"], 0.0, 0.0),
        (["Ġkit", "ab", "lar", "dan"], 0.6667, 1.0),
        (["Ġ", "kitab", "lar", "dan"], 1.0, 1.0),
    ],
)
def test_morphology_is_the_agreement_of_borders_inside_the_word(
    tokens: list[str], precision: float, recall: float
) -> None:
    found = measure_morphology(cutting(tokens), {" kitablardan": frozenset({5, 8})})

    assert found is not None
    assert (found.borders_on_suffixes, found.suffixes_on_borders) == (precision, recall)
    total = precision + recall
    assert found.score == pytest.approx(2 * precision * recall / total if total else 0, abs=1e-3)


def test_a_word_that_is_one_token_says_nothing_of_morphology_and_a_cut_letter_is_no_suffix() -> None:
    assert measure_morphology(cutting(["Ġkitablardan"]), {" kitablardan": frozenset({5})}) is None
    found = measure_morphology(cutting(["Ġev", "lÉ", "Ļr"]), {" evlər": frozenset({2})})
    assert found is not None
    assert (found.borders_on_suffixes, found.suffixes_on_borders) == (0.5, 1.0)


def cutting(tokens: list[str]) -> Tokenizer:
    """A byte-level BPE that cuts the word into these tokens."""
    vocab: dict[str, int] = {}
    merges: list[tuple[str, str]] = []
    for token in tokens:
        vocab.setdefault(token[0], len(vocab))
        for end in range(1, len(token)):
            vocab.setdefault(token[end], len(vocab))
            merges.append((token[:end], token[end]))
            vocab.setdefault(token[: end + 1], len(vocab))
    tokenizer = Tokenizer(BPE(vocab, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def test_borders_of_suffixes_are_looked_for_in_the_words_of_the_heldout_text() -> None:
    texts = of("one", "Bir Kitablardan bir kitab qaldı.", "ölkə")
    heldout = sample_heldout(texts, load_language("az"), {})

    assert heldout.borders == {" Kitablardan": frozenset({5, 8})}
    assert sample_heldout(texts, load_language("ja"), {}).borders == {}


def test_an_empty_domain_is_left_out(tiny: Tokenizer) -> None:
    heldout = sample_heldout([*of("empty", "", "  "), *NEWS], load_language("az"), {})

    assert [domain.name for domain in heldout.domains] == ["news"]
    assert measure_fertility(tiny, heldout, "tiny", 100).changed_documents == ()


def test_what_is_kept_stands_beside_each_candidate_and_its_speed_apart(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "turkish.txt").write_text(
        "Kitaplardan öğrendiklerini arkadaşlarına anlatırdı.", encoding="utf-8"
    )
    job = make_job(
        strategies=["base", "extend"], vocab_sizes=[100], keep=["en", str(tmp_path / "turkish.txt")]
    )

    run(job)

    table = written(job, "fertility")["candidates"]
    base_rows = table["base"]["vocab_size"]
    padded = -(-(base_rows + 100) // 128) * 128
    speed = written(job, "speed")
    assert list(table["base"]["keep"]) == list(table["extend-100"]["keep"]) == ["en", "turkish"]
    assert table["base"]["keep"]["en"]["num_words"] > 900
    assert table["base"]["keep"]["turkish"]["num_words"] == 4
    # Turkish words hold pieces that Azerbaijani would make tokens of.
    assert table["extend-100"]["unchanged"] == {"en": 1, "turkish": 1}
    assert table["extend-100"]["cost"]["embedding_parameters_added"] == (padded - base_rows) * 192
    assert set(table["extend-100"]["uses"]) == {
        "tokens", "never", "under_10", "under_100", "under_1000", "under_10000",
    }  # fmt: skip
    assert speed["extend-100"]["tokens_per_cpu_s"] > 0
    assert SPEED in job.varying


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.html", b"<p>", "is neither .* nor the id of a language with built-in text"),
        ("a.jsonl", b"{", r"^tokenizer.keep: \S*a.jsonl:1: not a JSON line"),
        ("a.jsonl", b'{"txt": "x"}', r"^tokenizer.keep: \S*a.jsonl:1: has no text in 'text'"),
        ("a.txt", b"\xff", "a.txt: is damaged or not UTF-8"),
        ("a.txt", b" \n", "a.txt holds no text"),
        ("a.jsonl", b'{"text": "' + bytes(16 * MIB), r"a.jsonl:1: line of .* is longer than .*; write each"),
        ("a.txt", bytes(16 * MIB + 1), r"a.txt: is one document of 16.0 MiB, longer than 16.0 MiB"),
    ],
)
def test_a_kept_text_that_cannot_be_read_is_a_data_error(
    make_job: Callable[..., Job], tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=match):
        run(make_job(strategies=["base"], keep=[str(tmp_path / name)]))


def test_sizes_of_auto_are_those_that_the_corpus_supports(make_job: Callable[..., Job]) -> None:
    job = make_job(strategies=["base", "extend", "replace"], vocab_sizes="auto", min_uses=20)

    run(job)

    choice = written(job, "choice")
    found = {entry["name"]: entry for entry in choice["candidates"]}
    assert choice["warnings"] == []
    for strategy in ("extend", "replace"):
        entries = [entry for entry in found.values() if entry["strategy"] == strategy]
        assert entries
        assert all(entry["own_tokens_seen"] >= 0.9 * entry["own_tokens"] > 0 for entry in entries)
        assert entries == sorted(entries, key=lambda entry: entry["asked"])
    largest = max(
        (entry for entry in found.values() if entry["strategy"] == "extend"), key=lambda e: e["asked"]
    )
    assert largest["supported_size"] == largest["asked"]


def test_a_corpus_that_supports_no_token_leaves_the_base(
    make_job: Callable[..., Job], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_documents(tmp_path / "few", "train", documents([SENTENCES[0]]))
    write_documents(tmp_path / "few", "heldout", documents([SENTENCES[1]]))

    figures = run(make_job(corpus=tmp_path / "few", vocab_sizes="auto"))

    assert figures["strategy"] == "base"
    assert "extend: the corpus uses no new token 100 times, so there is no candidate" in caplog.text
    with pytest.raises(
        DataError, match=r"the corpus uses no new token 100 times, so tokenizer\.vocab_sizes: auto"
    ):
        run(make_job(corpus=tmp_path / "few", vocab_sizes="auto", strategies=["extend", "replace"]))


STEMS = {"kitab", "kitablar", "şəhər", "ev", "evlərdə", "müəllim", "evler", "kitapçı", "kitap"}


def cut(word: str, code: str = "az") -> str:
    language = load_language(code)
    borders = sorted(
        suffix_borders(language.fold(word), language.suffixes, {language.fold(each) for each in STEMS})
    )
    return "|".join(word[start:end] for start, end in zip([0, *borders], [*borders, len(word)], strict=True))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("kitablardan", "kitab|lar|dan"),
        ("Kitabları", "kitab|lar|ı"),
        ("şəhərlərindən", "şəhər|lər|i|ndən"),
        ("müəllimsizlik", "müəllim|siz|lik"),
        # Neither a stem that the text does not hold nor an end that is no suffix.
        ("dəftərdən", "dəftərdən"),
        ("kitabxana", "kitabxana"),
        # Two letters are no stem.
        ("evlər", "evlər"),
    ],
)
def test_suffixes_follow_a_stem_that_the_text_holds(word: str, expected: str) -> None:
    assert cut(word).lower() == expected


def test_every_language_with_vowel_harmony_has_its_own() -> None:
    assert cut("kitapçılardan", "tr") == "kitap|çı|lar|dan"
    assert load_language("en").suffixes == frozenset()
