"""What a candidate is measured by: domains, words, morphology, what is to be kept."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from anadil.core.errors import DataError
from anadil.core.format import MIB
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.recipe.sections import Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.runtime.job import Job
from anadil.text.corpus import Document, write_documents
from anadil.text.language import load_language
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.candidate import TokenizerCandidate, extend_vocabulary, replace_vocabulary
from anadil.tokenizer.fertility import (
    Fertility,
    TextFertility,
    measure_fertility,
    measure_morphology,
    sample_heldout,
    suffix_borders,
)
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.run import run
from anadil.tokenizer.select import SPEED, Choice, MeasuredCandidate, ModelCompute, choose_candidate, cost_of
from anadil.tokenizer.usage import SweepUsage, TokenUsage
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
        ("a.jsonl", b'{"a"', r"^tokenizer.keep: \S*a.jsonl:1: not a JSON line"),
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


MIN_USES = 100
ROWS = 128_000
"""Rows of the base's table in these tests."""
KEEP = TextFertility(
    num_words=100, num_tokens=130, fertility=1.3, bytes_per_token=4.0, words_in_context=90, continued_words=0.2,
    single_token_words=0.7,
)  # fmt: skip
LLAMA = ModelCompute(shape=shape_from(KNOWN["meta-llama/Llama-3.2-1B"], "Llama 3.2 1B"), context=2_048)
UNKNOWN = ModelCompute(shape=None, context=2_048)


@dataclass(frozen=True)
class Figures:
    """Figures of a candidate in these tests."""

    fertility: float
    share: float = 1.0
    """Share of its own tokens that are seen often enough."""
    english: float = 1.3


class Sized(TokenizerCandidate):
    """A candidate of so many rows as its name says, without a tokenizer of that size."""

    @property
    def vocab_size(self) -> int:
        return {"base": ROWS, "surgery": ROWS, "extend": ROWS + self.asked, "replace": self.asked}[
            self.strategy
        ]


def candidates(
    tiny: Tokenizer, figures: Mapping[str, float | Figures], compute: ModelCompute = UNKNOWN
) -> list[MeasuredCandidate]:
    """`extend_16000=1.68` is the candidate extend-16000 with 1.68 tokens per word; the first is the base."""
    found: list[MeasuredCandidate] = []
    for name, value in figures.items():
        strategy, _, size = name.partition("_")
        each = value if isinstance(value, Figures) else Figures(value)
        num = int(size or 0)
        usage = TokenUsage(
            own_tokens=num, own_tokens_seen=round(num * each.share), supported_size=700, min_uses=100
        )
        candidate = Sized(
            strategy=cast("Strategy", strategy), asked=num, got=num, tokenizer=tiny, usage=usage
        )  # fmt: skip
        fertility = Fertility(
            num_tokens=1, fertility=each.fertility, mean_fertility=each.fertility, bytes_per_token=1, unused_tokens=0,
            changed_documents=(), samples={}, domains={}, keep={"en": replace(KEEP, fertility=each.english)},
            morphology=None, tokens_per_cpu_s=1,
        )  # fmt: skip
        first = found[0].fertility.mean_fertility if found else each.fertility
        cost = cost_of(each.fertility, candidate.vocab_size, (first, ROWS), compute)
        found.append(MeasuredCandidate(candidate=candidate, fertility=fertility, cost=cost))
    return found


def chosen(measured: list[MeasuredCandidate], **settings: object) -> Choice:
    return choose_candidate(measured, measured[0], Settings.model_validate(settings))


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        # More tokens always win on tokens per word: here two candidates are within 2 %, and the smaller one wins.
        ({"base": 5.5, "extend_8000": 1.70, "extend_16000": 1.68}, "extend-8000"),
        ({"base": 5.5, "extend_8000": 1.72, "extend_16000": 1.68}, "extend-16000"),
        ({"base": 5.5, "extend_16000": 1.680, "replace_32000": 1.761}, "extend-16000"),
        # A new vocabulary that is as good has fewer rows than the extended one, but all of them are new.
        ({"base": 5.5, "extend_16000": 1.70, "replace_32000": 1.68}, "extend-16000"),
        ({"base": 5.5, "extend_16000": 1.72, "replace_32000": 1.68}, "replace-32000"),
        ({"base": 1.41, "extend_16000": 1.40}, "base"),
        ({"base": 1.42, "surgery_16000": 1.40, "extend_16000": 1.41}, "base"),
        # A new vocabulary may cost English more.
        ({"base": 3.0, "replace_8": Figures(1.6, english=2.6)}, "replace-8"),
    ],
)
def test_the_cheapest_wins_and_within_two_percent_the_fewest_tokens_to_learn(
    tiny: Tokenizer, figures: dict[str, float | Figures], best: str
) -> None:
    assert chosen(candidates(tiny, figures)).best.candidate.name == best


def test_rows_of_the_vocabulary_cost_what_their_softmax_takes_in_the_model(tiny: Tokenizer) -> None:
    figures = {"base": 3.26, "extend_28000": 1.592, "replace_32000": 1.70}

    by_tokens, by_compute = (chosen(candidates(tiny, figures, each)) for each in (UNKNOWN, LLAMA))

    assert by_tokens.best.candidate.name == "extend-28000"
    assert by_compute.best.candidate.name == "replace-32000"
    cost = by_compute.best.cost
    # 6 x (973 million of the layers + 32,000 x 2,048) + 12 x 16 x 2,048 x 2,048 of attention.
    assert cost.flops_per_token == 6 * (973_078_528 + 32_000 * 2_048) + 12 * 16 * 2_048 * 2_048
    assert cost.embedding_parameters_added == -96_000 * 2_048
    base = 6 * (973_078_528 + 128_000 * 2_048) + 12 * 16 * 2_048 * 2_048
    assert cost.relative == pytest.approx(1.70 / 3.26 * cost.flops_per_token / base, abs=1e-4)


def test_of_equals_the_reason_says_how_many_tokens_are_to_be_learnt(tiny: Tokenizer) -> None:
    choice = chosen(candidates(tiny, {"base": 5.5, "extend_8000": 1.70, "extend_16000": 1.68}))

    assert "extend-16000 costs least" in choice.reason
    assert "within 2% of it extend-8000 has the fewest tokens to learn" in choice.reason
    assert choice.why_not["extend-16000"].endswith(
        "within 2% of extend-8000, and no fewer tokens to learn (16,000 instead of 8,000)"
    )


def test_tokens_that_the_corpus_hardly_uses_rule_a_candidate_out(tiny: Tokenizer) -> None:
    few = Figures(1.40, share=0.896)
    choice = chosen(
        candidates(tiny, {"base": 5.5, "extend_8000": 1.70, "extend_16000": few, "replace_32000": few})
    )

    assert choice.best.candidate.name == "extend-8000"
    assert choice.why_not == {
        "base": "1.000 of the base's compute per word (5.500 tokens per word, 128,000 rows): 223.5% more than extend-8000",
        "extend-16000": "89% of its own tokens are seen 100 times, and 90% should be",
        "replace-32000": "89% of its own tokens are seen 100 times, and 90% should be",
    }
    assert choice.reason == (
        "tokenizer.choice is auto; of 4 candidates, of which 2 could be compared, extend-8000 costs least, 0.309 of the "
        "base's compute per word (1.700 tokens per word, 136,000 rows); replace-32000 would cost 0.255: 89% of its own "
        "tokens are seen 100 times, and 90% should be"
    )


def test_without_a_candidate_of_learnt_tokens_one_that_keeps_the_bases_goes_on(tiny: Tokenizer) -> None:
    """And not the base itself, for no other reason than that."""
    figures: dict[str, float | Figures] = {
        "base": 3.26, "extend_16000": Figures(1.680, 0.2), "extend_28000": Figures(1.592, 0.1),
        "replace_32000": Figures(1.5, 0.03),
    }  # fmt: skip

    choice = chosen(candidates(tiny, figures, LLAMA))

    assert choice.best.candidate.name == "extend-28000"
    # The chosen one has too few learnt tokens as well, so that cannot be all that speaks against the cheaper one.
    why = "3% of its own tokens are seen 100 times, and 90% should be; others keep the base's vocabulary"
    assert choice.why_not["replace-32000"] == why
    assert choice.reason.endswith(
        f"; replace-32000 would cost 0.394: {why}; no candidate has 90% of its own tokens seen often enough: this corpus "
        "supports extend 700, replace 700"
    )


def test_without_any_other_a_new_vocabulary_of_rare_tokens_goes_on(tiny: Tokenizer) -> None:
    choice = chosen(candidates(tiny, {"base": 3.26, "replace_32000": Figures(1.7, 0.03)}))

    assert choice.best.candidate.name == "replace-32000"
    assert "this corpus supports replace 700" in choice.reason


@pytest.mark.parametrize("strategy", ["extend", "surgery"])
def test_what_keeps_the_bases_vocabulary_may_cost_english_a_twentieth(tiny: Tokenizer, strategy: str) -> None:
    just, more = Figures(1.7, english=1.3 * 1.05), Figures(1.6, english=1.3 * 1.051)
    choice = chosen(candidates(tiny, {"base": 3.0, f"{strategy}_8": just, f"{strategy}_16": more}))

    assert choice.best.candidate.name == f"{strategy}-8"
    assert choice.why_not[f"{strategy}-16"] == "en costs 1.051 of the base's tokens, and 1.05 is the most"


def test_the_recipes_own_choice_leaves_only_the_size_to_the_rule(tiny: Tokenizer) -> None:
    choice = chosen(candidates(tiny, {"base": 1.3, "replace_8": 1.5, "replace_16": 1.4}), choice="replace")

    assert choice.best.candidate.name == "replace-16"
    assert choice.why_not["base"] == "tokenizer.choice is replace"
    assert choice.reason.startswith("tokenizer.choice is replace; of its 2 sizes replace-16 costs least")


@pytest.mark.parametrize("strategy", ["extend", "replace"])
def test_the_size_that_the_corpus_supports_is_that_of_the_smaller_vocabularies(
    tiny: Tokenizer, strategy: str
) -> None:
    """Counted again with each smaller tokenizer, as if it had been asked for."""
    texts = [f"{one} {two}" for one in SENTENCES for two in SENTENCES[:9]]
    counts = count_texts(tiny, texts)
    trained = train_vocabulary(counts, 256 + 40, 2)
    merges = continue_merges(tiny, counts, 40, 2) if strategy == "extend" else trained.merges

    def made(num: int) -> Tokenizer:
        if strategy == "extend":
            return extend_vocabulary(tiny, merges[:num])
        return replace_vocabulary(tiny, *trained.cut(256 + num))

    sweep = SweepUsage(made(len(merges)), counts, merges, min_uses=MIN_USES)
    whole = sweep.of(made(len(merges)), len(merges))

    shares = {}
    for num in range(1, len(merges) + 1):
        tokenizer = made(num)
        uses = Counter[str]()
        for word, count in counts.items():
            for token in tokenizer.model.tokenize(word):
                uses[token.value] += count
        shares[num] = sum(uses[left + right] >= MIN_USES for left, right in merges[:num]) / num
    expected = max(num for num, share in shares.items() if share >= 0.9)
    assert 0 < expected < len(merges)
    for num in (0, 1, 25, 40):
        alone = SweepUsage(made(num), counts, merges[:num], min_uses=MIN_USES)
        assert sweep.of(made(num), num) == alone.of(made(num), num)
    assert whole.supported_size == expected
    assert whole.own_tokens == len(merges)
    assert whole.own_tokens_seen == round(shares[len(merges)] * len(merges))


def test_rare_tokens_are_warned_of_in_the_log_and_in_both_tables(
    make_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(strategies=["base", "extend"], vocab_sizes=[15, 400])

    with caplog.at_level(logging.WARNING):
        run(job)

    choice, fertility = (written(job, name) for name in ("choice", "fertility"))
    entries = {entry["name"]: entry for entry in choice["candidates"]}
    large = entries["extend-400"]
    share = round(100 * large["own_tokens_seen"] / large["own_tokens"])
    text = (
        f"extend-400: {large['own_tokens_seen']} of its own {large['own_tokens']} tokens ({share}%) were seen 100 "
        "times in the training text, and the others will be learnt badly; this corpus supports extend "
        f"{large['supported_size']}: lower tokenizer.vocab_sizes, or give more text"
    )
    assert choice["warnings"] == fertility["warnings"] == [text]
    assert choice["warnings"][0] in caplog.messages
    assert 15 <= large["supported_size"] < 400
    assert entries["base"]["own_tokens"] == 0


def test_uses_are_counted_over_the_whole_vocabulary_without_special_tokens(tiny: Tokenizer) -> None:
    usage = SweepUsage(tiny, {"ab": 9, "q": 100}, min_uses=100).of(tiny, 0)

    tokens = [token.value for token in tiny.model.tokenize("ab")]
    assert usage.uses["tokens"] == 4_096
    assert usage.uses["never"] == 4_096 - 1 - len(tokens)
    assert usage.uses["under_10"] == usage.uses["under_100"] == 4_095
    assert usage.uses["under_1000"] == 4_096
