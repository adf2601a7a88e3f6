import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from tokenizers.pre_tokenizers import ByteLevel

from anadil.artifacts.base_model import LLAMA_3_SPECIALS, OTHER_CHAT_TOKENS, read_tokenizer
from anadil.artifacts.base_vocabulary import base_settings
from anadil.core.errors import IntegrityError
from anadil.recipe.sections import Strategy
from anadil.text.cut_patterns import to_bytes, to_symbols
from anadil.text.language import load_language
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    chat_template,
    embedding_rows,
    extend_vocabulary,
    prompt_tokenizer,
    replace_vocabulary,
    write_tokenizer,
)
from anadil.tokenizer.fertility import TextSample, measure_fertility, sample_heldout
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.select import Cost, MeasuredCandidate
from anadil.tokenizer.surgery import (
    Alphabet,
    LostScript,
    characters,
    lost_scripts,
    lost_text,
    plan_surgery,
    scripts_of,
)
from anadil.tokenizer.word_counts import WordCounts
from tests.kit.reference_bpe import merged_word

from .conftest import SENTENCES, documents
from .test_surgery import ENGLISH, trained

NUM_NEW = 300
TEXT = "Kitablardan <|eot_id|> için Azərbaycan  dilində , it 's 12345 😀\n\n"


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> Tokenizer:
    return read_tokenizer(tiny_folder)


@pytest.fixture(scope="module")
def counted(base: Tokenizer) -> WordCounts:
    return count_texts(base, [f"{one} {two}" for one in SENTENCES for two in SENTENCES])


@pytest.fixture(scope="module")
def merges(base: Tokenizer, counted: WordCounts) -> list[tuple[str, str]]:
    return continue_merges(base, counted, NUM_NEW, min_frequency=2)


@pytest.fixture(scope="module")
def extension(base: Tokenizer, merges: list[tuple[str, str]]) -> Tokenizer:
    return extend_vocabulary(base, merges)


@pytest.fixture(scope="module")
def replacement(base: Tokenizer, counted: WordCounts) -> Tokenizer:
    return replace_vocabulary(
        base, *train_vocabulary(counted, 600 - len(LLAMA_3_SPECIALS), 2).cut(600 - len(LLAMA_3_SPECIALS))
    )


@settings(max_examples=150, deadline=None)
@given(text=st.text())
def test_any_text_comes_back_from_an_extended_and_a_replaced_vocabulary(
    extension: Tokenizer, replacement: Tokenizer, text: str
) -> None:
    for tokenizer in (extension, replacement):
        ids = tokenizer.encode(text, add_special_tokens=False).ids

        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_old_ids_stay_and_new_ids_follow_the_special_tokens(
    base: Tokenizer, extension: Tokenizer, merges: list[tuple[str, str]]
) -> None:
    old = base.get_vocab(with_added_tokens=True)
    new = extension.get_vocab(with_added_tokens=True)

    assert len(merges) == NUM_NEW
    assert {token: new[token] for token in old} == old
    assert [new[left + right] for left, right in merges] == list(range(len(old), len(old) + NUM_NEW))
    assert [extension.id_to_token(index) for index in range(4096, 4102)] == list(LLAMA_3_SPECIALS)


def test_every_new_token_is_reached_by_merging_its_bytes(
    extension: Tokenizer, merges: list[tuple[str, str]]
) -> None:
    content = json.loads(extension.to_str())
    content["model"]["ignore_merges"] = False
    by_merges_alone = Tokenizer.from_str(json.dumps(content))

    for left, right in merges:
        assert [piece.value for piece in by_merges_alone.model.tokenize(left + right)] == [left + right]


def test_words_are_encoded_as_training_cut_them(
    base: Tokenizer, extension: Tokenizer, counted: WordCounts, merges: list[tuple[str, str]]
) -> None:
    for word in counted.pretokens():
        cut = tuple(piece.value for piece in base.model.tokenize(word))
        if len(cut) > 1:
            for pair in merges:
                cut = merged_word(cut, pair)
            assert [piece.value for piece in extension.model.tokenize(word)] == list(cut)


def test_a_replaced_vocabulary_keeps_special_tokens_and_adds_bos_by_its_new_id(
    replacement: Tokenizer,
) -> None:
    begin = replacement.token_to_id("<|begin_of_text|>")

    ids = replacement.encode("Salam").ids

    assert replacement.get_vocab_size() == 600
    assert [replacement.token_to_id(token) for token in LLAMA_3_SPECIALS] == list(range(594, 600))
    assert ids[0] == begin == 594


def test_control_tokens_written_in_a_document_stay_text(extension: Tokenizer, replacement: Tokenizer) -> None:
    for tokenizer in (extension, replacement):
        control = {tokenizer.token_to_id(token) for token in LLAMA_3_SPECIALS}

        for token in LLAMA_3_SPECIALS:
            assert not control & set(tokenizer.encode(f"a{token} {token}", add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("strategy", "model_type"),
    [("base", ""), ("extend", "llama"), ("replace", "gpt2"), ("replace", "llama"), ("replace", "")],
)
def test_transformers_gives_equal_ids_also_after_saving_again(
    tiny_folder: Path,
    base: Tokenizer,
    extension: Tokenizer,
    replacement: Tokenizer,
    tmp_path: Path,
    strategy: Strategy,
    model_type: str,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = {"base": base, "extend": extension, "replace": replacement}[strategy]
    candidate = TokenizerCandidate(strategy=strategy, asked=1, got=1, tokenizer=tokenizer)
    written, saved = tmp_path / "written", tmp_path / "again"
    template = chat_template(tiny_folder, base)
    write_tokenizer(candidate, tiny_folder, base_settings(tiny_folder, base), template, written)
    if model_type:
        # A model directory says which tokenizer class its model usually has.
        (written / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")

    loaded = AutoTokenizer.from_pretrained(written)
    loaded.save_pretrained(saved)
    again = AutoTokenizer.from_pretrained(saved, split_special_tokens=True)

    expected = tokenizer.encode(TEXT).ids
    assert loaded(TEXT, split_special_tokens=True).input_ids == again(TEXT).input_ids == expected
    assert loaded.decode(expected, skip_special_tokens=True) == TEXT
    assert loaded.pad_token == "<|finetune_right_pad_id|>"
    ids = [tokenizer.token_to_id(token) for token in LLAMA_3_SPECIALS]
    assert loaded.convert_tokens_to_ids(list(LLAMA_3_SPECIALS)) == ids
    chat = loaded.apply_chat_template([{"role": "user", "content": "Salam"}], return_dict=False)
    assert chat.count(tokenizer.token_to_id("<|eot_id|>")) == 1


def test_every_row_spells_the_bytes_of_its_token_also_where_they_are_part_of_a_letter(
    base: Tokenizer, replacement: Tokenizer
) -> None:
    rows = embedding_rows(base, replacement)
    ordinary = replacement.get_vocab(with_added_tokens=False)
    is_part = [token for token in ordinary if "É" in token and token.count("É") != token.count("ÉĻ")]

    spelled = {
        token: "".join(base.id_to_token(index) or "" for index in rows[ordinary[token]]) for token in ordinary
    }

    assert is_part
    assert spelled == {token: token for token in ordinary}


def test_special_tokens_of_a_base_with_gaps_in_its_ids_keep_them(
    base: Tokenizer, merges: list[tuple[str, str]]
) -> None:
    content = json.loads(extend_vocabulary(base, merges[:10]).to_str())
    once = Tokenizer.from_str(json.dumps(content))

    twice = extend_vocabulary(once, [("z", "q"), ("zq", "z")])

    assert twice.token_to_id("<|eot_id|>") == 4101
    assert twice.token_to_id("zqz") == 4102 + 11
    assert twice.encode("zqz", add_special_tokens=False).ids == [4113]


def test_a_special_token_that_plain_text_can_spell_is_refused(
    base: Tokenizer, merges: list[tuple[str, str]]
) -> None:
    content = json.loads(base.to_str())
    content["added_tokens"][-1]["content"] = "nar"
    spelled = Tokenizer.from_str(json.dumps(content))

    with pytest.raises(IntegrityError, match="the text 'nar' in a document would become a control token"):
        extend_vocabulary(spelled, merges)


def test_a_base_with_its_own_chat_template_and_tokens_keeps_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(models.BPE())
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": "<turn>{{ messages }}"}', encoding="utf-8"
    )
    empty = tmp_path / "empty"
    empty.mkdir()

    assert chat_template(tmp_path, tokenizer) == "<turn>{{ messages }}"
    assert "begin_of_text" in chat_template(empty, tokenizer)
    assert "the base has no chat template and no control tokens of a known one" in caplog.text


@pytest.mark.parametrize(("opened", "closed"), OTHER_CHAT_TOKENS)
def test_the_template_that_finetune_takes_for_a_base_without_one_is_named(
    opened: str, closed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([opened, closed])
    caplog.set_level("INFO")

    chat_template(tmp_path, tokenizer)

    [record] = caplog.records
    assert (record.levelname, record.message) == (
        "INFO",
        f"the base has no chat template; finetune takes the template of {opened}",
    )


BEGIN, END = LLAMA_3_SPECIALS[:2]


def with_processor(base: Tokenizer, single: str, *, bytes_too: bool = False) -> Tokenizer:
    """The base with tokens round a text."""
    changed = Tokenizer.from_str(base.to_str())
    named = [(token, changed.token_to_id(token)) for token in (BEGIN, END)]
    made = processors.TemplateProcessing(single=single, special_tokens=named)
    changed.post_processor = (
        processors.Sequence([processors.ByteLevel(trim_offsets=False), made]) if bytes_too else made
    )
    return changed


@pytest.mark.parametrize(
    ("single", "roles", "begin"),
    [
        (f"{BEGIN} $A {END}", {"bos_token": {"content": BEGIN}}, BEGIN),
        (f"$A {END}", {"bos_token": {"content": BEGIN}}, BEGIN),
        (f"{END} $A", {"bos_token": BEGIN, "eos_token": END}, BEGIN),
        (f"{BEGIN} {END} $A", {"bos_token": BEGIN}, BEGIN),
        ("$A", {"bos_token": BEGIN}, BEGIN),
        ("$A", {"eos_token": END}, END),  # as Qwen's, of which the end of text parts documents
    ],
)
@pytest.mark.parametrize("bytes_too", [False, True])
def test_the_shipped_tokenizer_sets_before_a_prompt_what_begins_a_document_and_nothing_else(
    base: Tokenizer, single: str, roles: dict[str, Any], begin: str, bytes_too: bool
) -> None:
    served = prompt_tokenizer(with_processor(base, single, bytes_too=bytes_too), roles)

    assert served.encode("a").tokens == [begin, "a"]
    assert ("ByteLevel" in str(json.loads(served.to_str())["post_processor"])) is bytes_too
    assert served.get_vocab() == base.get_vocab()


def test_a_tokenizer_that_sets_no_more_than_bos_is_shipped_as_it_is(base: Tokenizer, tmp_path: Path) -> None:
    tokenizer = with_processor(base, f"{BEGIN} $A")
    text = json.dumps(json.loads(tokenizer.to_str()), indent=3)
    (tmp_path / "tokenizer.json").write_text(text)
    own = TokenizerCandidate(strategy="base", asked=0, got=0, tokenizer=tokenizer)

    write_tokenizer(own, tmp_path, {"bos_token": BEGIN, "add_eos_token": True}, "", tmp_path / "out")

    assert (tmp_path / "out/tokenizer.json").read_text() == text
    assert "add_eos_token" not in (tmp_path / "out/tokenizer_config.json").read_text()


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
