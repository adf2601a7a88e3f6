"""The cost of what a candidate gives up, by script, and what is asked for then."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from anadil.recipe.sections import Strategy
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.lost_scripts import LostScript, lost_scripts, lost_text
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.samples import TextSample
from anadil.tokenizer.select import MeasuredCandidate
from anadil.tokenizer.surgery import plan_surgery

from .conftest import SENTENCES
from .test_surgery import ENGLISH, trained


def test_each_script_that_leaves_has_its_cost() -> None:
    base = trained(ignore_merges=False)
    words = count_texts(base, list(SENTENCES))
    surgery = plan_surgery(base, words.items(), count_texts(base, ENGLISH).items())

    lost = lost_scripts(base, surgery.reduced)

    assert set(lost) >= {"Cyrillic", "Cjk"}
    assert "Latin" not in lost
    assert lost["Cyrillic"].tokens > 50
    # The letters of one token in UTF-8, two bytes each, at the most.
    assert 2 <= lost["Cyrillic"].cost < 30
    assert list(lost) == sorted(lost, key=lambda name: -lost[name].tokens)
    assert lost_scripts(base, base) == {}


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [("surgery", "surgery out of tokenizer.strategies"), ("extend", "tokenizer.prune out"), ("replace", "")],
)
def test_a_candidate_that_seems_to_keep_the_base_asks_for_texts_to_keep(
    strategy: Strategy, asked: str, measured: MeasuredCandidate
) -> None:
    candidate = replace(measured.candidate, strategy=strategy)
    lost = {"Greek": LostScript(tokens=1_204, cost=6.3)}

    told = replace(measured, candidate=candidate, lost=lost).lost_warning

    assert bool(told) == bool(asked)
    assert asked in told
    if asked:
        assert "Greek 1,204 (a text that was one of them takes 6.3)" in told
        assert "tokenizer.keep" in told
    assert replace(measured, candidate=candidate).lost_warning == ""


@pytest.fixture
def measured(tiny: Tokenizer) -> MeasuredCandidate:
    from anadil.text.language import load_language
    from anadil.tokenizer.cost import Cost
    from anadil.tokenizer.fertility import measure_fertility
    from anadil.tokenizer.samples import sample_heldout

    from .conftest import documents

    heldout = sample_heldout(documents(list(SENTENCES)), load_language("az"), {})
    candidate = TokenizerCandidate(strategy="surgery", asked=5, got=5, tokenizer=tiny)
    cost = Cost(
        tokens_per_word=1.0,
        flops_per_token=None,
        flops_per_word=None,
        relative=1.0,
        embedding_parameters_added=None,
    )
    return MeasuredCandidate(
        candidate=candidate, fertility=measure_fertility(tiny, heldout, "s", 64), cost=cost
    )


def test_what_is_kept_is_measured_on_documents_that_made_no_candidate() -> None:
    several = TextSample(name="en", texts=tuple(f"text {number}" for number in range(23)), words={})
    few = replace(several, texts=several.texts[:9])

    assert several.unseen == ("text 4", "text 9", "text 14", "text 19")
    assert sorted([*several.unseen, *several.seen]) == sorted(several.texts)
    assert (few.unseen, few.seen) == ((), few.texts)


def test_nothing_lost_is_nothing_to_say() -> None:
    assert lost_text({}) == ""
