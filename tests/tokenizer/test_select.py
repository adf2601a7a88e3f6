"""Which candidate goes on, and what is said of tokens that the corpus hardly uses."""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tokenizers import Tokenizer

from anadil.artifacts import artifact
from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.recipe.sections import Base, Recipe, Strategy
from anadil.runtime.job import Job
from anadil.text.corpus import write_documents
from anadil.tokenizer.candidate import TokenizerCandidate, extend_vocabulary, replace_vocabulary
from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.fertility import Fertility
from anadil.tokenizer.pretokens import count_pretokens
from anadil.tokenizer.run import run
from anadil.tokenizer.select import MeasuredCandidate, choose_candidate
from anadil.tokenizer.train_bpe import train_vocabulary
from anadil.tokenizer.usage import MIN_USES, TokenUsage, count_usage
from tests.tokenizer.conftest import SENTENCES, documents


def candidates(tiny: Tokenizer, **fertility: float) -> list[MeasuredCandidate]:
    """`extend_16000=1.68` is the candidate extend-16000 with 1.68 tokens per word."""
    found = []
    for name, value in fertility.items():
        strategy, _, size = name.partition("_")
        candidate = TokenizerCandidate(
            strategy=cast("Strategy", strategy), asked=int(size or 0), got=int(size or 0), tokenizer=tiny
        )
        cost = Fertility(
            num_tokens=1,
            fertility=value,
            bytes_per_token=1,
            unused_tokens=0,
            changed_documents=(),
            samples={},
        )
        found.append(MeasuredCandidate(candidate=candidate, fertility=cost))
    return found


@pytest.mark.parametrize(
    ("choice", "fertility", "chosen"),
    [
        ("auto", {"base": 5.5, "extend_16000": 1.680, "replace_32000": 1.761}, "extend-16000"),
        ("auto", {"base": 5.5, "extend_16000": 1.70, "replace_32000": 1.40}, "replace-32000"),
        ("auto", {"base": 5.5, "extend_16000": 1.42, "replace_32000": 1.40}, "extend-16000"),
        ("auto", {"base": 5.5, "extend_16000": 1.429, "replace_32000": 1.40}, "replace-32000"),
        ("auto", {"base": 1.41, "extend_16000": 1.42, "replace_32000": 1.40}, "base"),
        ("auto", {"extend_8000": 1.42, "extend_16000": 1.41, "replace_32000": 1.40}, "extend-16000"),
        ("auto", {"replace_8000": 1.40, "replace_32000": 1.41}, "replace-8000"),
        ("replace", {"base": 1.3, "replace_8000": 1.42, "replace_32000": 1.41}, "replace-32000"),
    ],
)
def test_fewest_tokens_win_and_within_two_percent_the_bases_vocabulary(
    tiny: Tokenizer, choice: str, fertility: dict[str, float], chosen: str
) -> None:
    recipe = Recipe.model_validate({"tokenizer": {"choice": choice}})

    best, why = choose_candidate(candidates(tiny, **fertility), recipe)

    assert best.candidate.name == chosen
    assert why.startswith(f"tokenizer.choice is {choice}; of ")


def test_the_reason_names_both_where_the_bases_vocabulary_is_kept(tiny: Tokenizer) -> None:
    _, why = choose_candidate(candidates(tiny, base=5.5, extend_16000=1.42, replace_32000=1.40), Recipe())

    assert why == (
        "tokenizer.choice is auto; of the 3 candidates replace-32000 has the fewest tokens per word (1.400), and "
        "within 2% of it extend-16000 (1.420) keeps the base's vocabulary"
    )


@pytest.mark.parametrize("strategy", ["extend", "replace"])
def test_the_size_that_the_corpus_supports_is_that_of_the_smaller_vocabularies(
    tiny: Tokenizer, strategy: str
) -> None:
    """Counted anew with each smaller tokenizer, as if it had been asked for."""
    texts = [f"{one} {two}" for one in SENTENCES for two in SENTENCES[:9]]
    counts = count_pretokens(tiny, texts).counts
    trained = train_vocabulary(counts, 256 + 60, 2)
    merges = continue_merges(tiny, counts, 60, 2) if strategy == "extend" else trained.merges

    def made(num: int) -> Tokenizer:
        if strategy == "extend":
            return extend_vocabulary(tiny, merges[:num])
        return replace_vocabulary(tiny, *trained.cut(256 + num))

    whole = count_usage(made(len(merges)), counts, merges)

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
    assert whole.supported_size == expected
    assert whole.own_tokens == len(merges)
    assert whole.own_tokens_seen == round(shares[len(merges)] * len(merges))


def test_rare_tokens_are_warned_of_in_the_log_and_in_both_tables(
    make_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(strategies=["base", "extend"], vocab_sizes=[15, 400])

    with caplog.at_level(logging.WARNING):
        run(job)

    choice, fertility = (
        json.loads((job.out / f"{name}.json").read_text(encoding="utf-8")) for name in ("choice", "fertility")
    )
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
    assert "own_tokens" not in entries["base"]


def test_enough_uses_are_no_warning(tiny: Tokenizer) -> None:
    usage = TokenUsage(own_tokens=100, own_tokens_seen=90, supported_size=100)
    cost = candidates(tiny, extend_100=1.5)[0].fertility
    few = TokenUsage(own_tokens=100, own_tokens_seen=89, supported_size=97)

    told = [
        MeasuredCandidate(
            candidate=TokenizerCandidate(strategy="extend", asked=100, got=100, tokenizer=tiny, usage=each),
            fertility=cost,
        ).warning
        for each in (usage, few)
    ]

    assert told[0] == ""
    assert "supports extend 97" in told[1]


@pytest.mark.slow
@pytest.mark.skipif("ANADIL_DATA" not in os.environ, reason="ANADIL_DATA names no directory of real text")
def test_on_real_text_over_an_english_base_the_largest_new_vocabulary_does_not_win_by_itself(
    tmp_path: Path, base_cache: Path
) -> None:
    """GPT-2's tokenizer; trained on other kinds of Azerbaijani text than it is measured on."""
    data = Path(os.environ["ANADIL_DATA"])
    train_text, heldout = (
        [json.loads(line)["text"] for name in names for line in _lines(data, name)]
        for names in (("reactjs_az.reactjs.org.jsonl", "KDE_*workspace*"), ("*FLORES*", "*Tatoeba*"))
    )
    folder = tmp_path / "corpus"
    write_documents(folder, "train", documents(train_text))
    write_documents(folder, "heldout", documents(heldout))
    artifact.seal(folder, kind="corpus", origin={})
    base = str(data / "tokenizers" / "gpt2")
    recipe = Recipe.model_validate(
        {"base": {"model": base}, "tokenizer": {"vocab_sizes": [4_000, 32_000], "choice": "auto"}}
    )
    (tmp_path / "out").mkdir()
    job = Job(
        recipe=recipe, inputs={"corpus": folder}, out=tmp_path / "out", work=tmp_path, base_cache=base_cache
    )

    run(job)

    choice = json.loads((job.out / "choice.json").read_text(encoding="utf-8"))
    costs = {entry["name"]: entry["fertility"] for entry in choice["candidates"]}
    kept = {name: cost for name, cost in costs.items() if not name.startswith("replace")}
    assert choice["chosen"] == min(kept, key=lambda name: kept[name])
    assert costs[choice["chosen"]] <= 1.02 * min(costs.values())
    assert len(choice["warnings"]) == 4
    english = "The committee will meet again on Thursday to discuss the budget."
    before, after = (read_tokenizer(each) for each in (base_tokenizer(Base(model=base), base_cache), job.out))
    assert after.encode(english).ids == before.encode(english).ids


def _lines(data: Path, name: str) -> list[str]:
    (file,) = data.glob(f"az/{name}")
    return [line for line in file.read_text(encoding="utf-8").split("\n") if line]
