"""The cost of what a candidate gives up, by script, and what is asked for then."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from anadil.recipe.sections import Strategy
from anadil.text.byte_symbols import to_bytes, to_symbols
from anadil.text.language import load_language
from anadil.tokenizer.alphabet import Alphabet, LostScript, characters, lost_scripts, lost_text, scripts_of
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.cost import Cost
from anadil.tokenizer.fertility import measure_fertility
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.samples import TextSample, sample_heldout
from anadil.tokenizer.select import MeasuredCandidate
from anadil.tokenizer.surgery import plan_surgery

from .conftest import SENTENCES, documents
from .test_surgery import ENGLISH, trained

LATIN = Alphabet({"LATIN"}, "λ")
USED = st.text("aəĞ .,5“’λ😀ₓ№–é\n", min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(text=USED, cut=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_every_piece_of_a_text_in_the_alphabet_may_be_a_token(text: str, cut: tuple[int, int]) -> None:
    piece = text.encode()[min(cut) : max(cut)]

    assert LATIN.spells(to_symbols(piece))


@pytest.mark.parametrize(
    "text", ["слово", " слово", "я", "漢字", "中", "한국", "שלום", "кafe", "का", "ไทย", "α", "。の", "٪"]
)
def test_a_token_with_a_letter_of_another_script_may_not(text: str) -> None:
    token = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]

    assert to_bytes(token).decode() == text
    assert not LATIN.spells(token)


@pytest.mark.parametrize(
    "text", [b"\xd0", b" \xd1", b"\xe4\xb8", b"\xec\x8a", b"\xff\xfe", b"a\x80\x80\x80\x80"]
)
def test_neither_may_the_beginning_of_such_a_letter_or_what_is_no_utf_8(text: bytes) -> None:
    assert not LATIN.spells(to_symbols(text))


def test_a_script_is_in_use_from_a_letter_in_a_thousand_on() -> None:
    counts = {"söz": 1_000, "слово": 1, "日": 1}

    used = scripts_of(characters((to_symbols(word.encode()), count) for word, count in counts.items()))

    assert used == {"LATIN", "CYRILLIC"}


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
    assert lost_text({}) == ""


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
    heldout = sample_heldout(documents(list(SENTENCES)), load_language("az"), {})
    candidate = TokenizerCandidate(strategy="surgery", asked=5, got=5, tokenizer=tiny)
    cost = Cost(
        tokens_per_word=1.0, flops_per_token=None, flops_per_word=None, relative=1.0,
        embedding_parameters_added=None,
    )  # fmt: skip
    fertility = measure_fertility(tiny, heldout, "s", 64)
    return MeasuredCandidate(candidate=candidate, fertility=fertility, cost=cost)


def test_what_is_kept_is_measured_on_documents_that_made_no_candidate() -> None:
    several = TextSample(name="en", texts=tuple(f"text {number}" for number in range(23)), words={})
    few = replace(several, texts=several.texts[:9])

    assert several.unseen == ("text 4", "text 9", "text 14", "text 19")
    assert sorted([*several.unseen, *several.seen]) == sorted(several.texts)
    assert (few.unseen, few.seen) == ((), few.texts)
