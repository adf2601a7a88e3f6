"""Which candidate goes on, and what is said of tokens that the corpus hardly uses."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import pytest
from tokenizers import Tokenizer

from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.recipe.sections import Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.runtime.job import Job
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.candidate import TokenizerCandidate, extend_vocabulary, replace_vocabulary
from anadil.tokenizer.fertility import Fertility, TextFertility
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.run import run
from anadil.tokenizer.select import Choice, MeasuredCandidate, ModelCompute, choose_candidate, cost_of
from anadil.tokenizer.usage import SweepUsage, TokenUsage
from tests.tokenizer.conftest import SENTENCES, written

MIN_USES = 100
ROWS = 128_000
"""Of the base in these tests."""
KEEP = TextFertility(
    num_words=100, num_tokens=130, fertility=1.3, bytes_per_token=4.0, words_in_context=90, continued_words=0.2,
    single_token_words=0.7,
)  # fmt: skip
LLAMA = ModelCompute(shape=shape_from(KNOWN["meta-llama/Llama-3.2-1B"], "Llama 3.2 1B"), context=2_048)
UNKNOWN = ModelCompute(shape=None, context=2_048)


@dataclass(frozen=True)
class Figures:
    """Of a candidate in these tests."""

    fertility: float
    share: float = 1.0
    """Of its own tokens that are seen often enough."""
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
