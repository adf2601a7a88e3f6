"""A new vocabulary keeps combining marks with their letters, whatever the base cuts by."""

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError
from anadil.recipe.sections import Recipe
from anadil.recipe.sections import Tokenizer as Settings
from anadil.runtime.job import Job
from anadil.text import corpus as corpus_module
from anadil.text.corpus import Document, document_files, read_file, write_documents
from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_3_5_REGEX, QWEN_REGEX, SYMBOLS, known_pattern
from anadil.tokenizer import corpus_counts as stage
from anadil.tokenizer.candidate import embedding_rows
from anadil.tokenizer.corpus_counts import PartTask, corpus_counts, count_part
from anadil.tokenizer.makers import MAKERS, cuts_at_marks, mark_share, recut_base
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.word_counts import WordCounts
from tests.kit.harness import again
from tests.kit.pre_tokenizers import tokenizer_of
from tests.tokenizer.conftest import SENTENCES, documents

BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
GPT_2 = ByteLevel(add_prefix_space=False)
CL100K = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
BASES = {
    "gpt2": GPT_2,
    "smollm": Sequence([Digits(individual_digits=True), GPT_2]),
    "llama": Sequence([Split(Regex(LLAMA_3_REGEX), "isolated"), BYTES]),
    "qwen": Sequence([Split(Regex(QWEN_REGEX), "isolated"), BYTES]),
    "another": Sequence([Split(Regex(CL100K), "isolated"), BYTES]),
}
WORDS = {
    "ml": "മലയാളത്തിൽ എഴുതുന്നു",
    "th": "ภาษาไทยที่นี่",
    "my": "မြန်မာဘာသာ",
    "km": "ភាសាខ្មែរ",
    "ar": "العَرَبِيَّةُ لُغَةٌ",
    "he": "בְּרֵאשִׁית בָּרָא",
    "yo": unicodedata.normalize("NFD", "ọ̀rọ̀ Yorùbá"),
}


def pieces(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text))


def pattern_of(tokenizer: Tokenizer) -> str | None:
    return known_pattern(json.loads(tokenizer.to_str())["pre_tokenizer"])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("language", WORDS)
def test_a_word_with_marks_is_one_piece(base: str, language: str) -> None:
    tokenizer, text = tokenizer_of(BASES[base]), WORDS[language]

    recut = recut_base(tokenizer, has_marks=True)

    assert pieces(recut, text) == len(text.split()) < pieces(tokenizer, text)
    assert pattern_of(recut) == QWEN_3_5_REGEX


def test_text_without_marks_is_cut_as_by_qwen() -> None:
    text = "Bakıda 2024-cü ildə \t 'yeni' kitab'ın\r\n  3 nəşri…  ABC's!\n"
    ours = recut_base(tokenizer_of(GPT_2), has_marks=True)

    assert ours.pre_tokenizer.pre_tokenize_str(text) == BASES["qwen"].pre_tokenize_str(text)


def test_a_base_that_keeps_marks_together_or_sees_none_is_left_as_it_is() -> None:
    llama = tokenizer_of(BASES["llama"])
    assert recut_base(llama) is llama
    assert pattern_of(recut_base(tokenizer_of(GPT_2))) == LLAMA_3_REGEX
    base = tokenizer_of(Sequence([Split(Regex(r" ?[^\s]+|\s+"), "isolated"), BYTES]))

    assert not cuts_at_marks(base)
    assert recut_base(base, has_marks=True) is base


def test_marks_are_counted_among_letters_and_marks() -> None:
    assert mark_share(Counter("ab12 !")) == 0
    assert mark_share(Counter("कि")) == 0.5
    assert mark_share(Counter()) == 0


ENGLISH = "The river had not been so high since the bridge was built, said the newspapers."
RUSSIAN = "Мы долго шли вдоль реки и говорили о том, что видели на ярмарке в городе."
KURDISH = ("Ez li gundê me mezin bûm.", "Dayika min her roj nan çêdike.", "Em ê sibê herin bajêr.")
LACKED = (0x13, 0xAA, 0xC3, 0xF1, 0xFE)
"""Two of them are in the two bytes of the Kurdish circumflex e."""


@pytest.fixture(scope="module", params=[None, "<unk>"], ids=["lost", "unknown"])
def base(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=request.param))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=[symbol for byte, symbol in enumerate(SYMBOLS) if byte not in LACKED],
        special_tokens=["<unk>"] if request.param else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([ENGLISH, RUSSIAN] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("strategy", ["extend", "surgery", "replace"])
def test_bytes_that_the_base_lacks_become_tokens_of_a_candidate(
    base: Tokenizer, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate({"min_uses": 1, "strategies": [strategy]})
    counts = count_texts(base, KURDISH * 3)
    size = 400 if strategy == "replace" else 20

    with caplog.at_level(logging.INFO):
        (candidate,) = MAKERS[strategy](base, counts, (size,), settings, {})  # type: ignore[index]

    made = candidate.tokenizer
    if strategy == "extend":
        assert "lacks 5 of the 256 bytes, which become tokens: 13 aa c3 f1 fe" in caplog.text
        assert made.get_vocab().items() >= base.get_vocab().items()
        assert candidate.vocab_size == len(base.get_vocab()) + len(LACKED) + candidate.got
        assert made.encode(ENGLISH).ids == base.encode(ENGLISH).ids
        added = json.loads(made.to_str())["added_tokens"]
        assert [token["id"] for token in added] == [base.token_to_id(token["content"]) for token in added]
    for text in (*KURDISH, "\x13", "\U00040000", ENGLISH):
        assert made.decode(made.encode(text, add_special_tokens=False).ids) == text
    assert base.decode(base.encode(KURDISH[0]).ids) != KURDISH[0]
    new = [token for token in made.get_vocab() if SYMBOLS[0xC3] in token and len(token) > 1]
    assert new, "merges go on over the bytes that were missing"
    rows = embedding_rows(base, made)
    old, ids = base.get_vocab(), made.get_vocab()
    known = sorted(old[symbol] for byte, symbol in enumerate(SYMBOLS) if byte not in LACKED)
    for byte in LACKED:
        assert sorted(rows[ids[SYMBOLS[byte]]]) == known
    unknown = base.token_to_id("<unk>")
    assert all(unknown not in rows[ids[token]] for token in new)


TEXTS = [f"{one}\n{two}" for one in SENTENCES for two in SENTENCES[:6]]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of several files, sealed."""
    monkeypatch.setattr(corpus_module, "MAX_PART_BYTES", 3_000)
    folder = tmp_path / "corpus"
    write_documents(folder, "train", documents(TEXTS))
    write_documents(folder, "heldout", documents(["ev"]))
    artifact.seal(folder, kind="corpus", origin={"made": "here"})
    assert len(document_files(folder, "train")) > 3
    return folder


@pytest.fixture
def job(parts: Path, tmp_path: Path) -> Job:
    recipe = again(Recipe(), f"storage.root={tmp_path / 'root'}", "tokenizer.workers=1")
    return Job(
        recipe=recipe, inputs={"corpus": parts}, out=tmp_path / "out", work=tmp_path / "work", base_cache=tmp_path
    )  # fmt: skip


def with_keys(job: Job, *keys: str) -> Job:
    return replace(job, recipe=again(job.recipe, *keys), records={})


def items(counts: WordCounts) -> list[tuple[str, int]]:
    return list(counts.items())


def kept(job: Job) -> Path:
    """The one artifact of counts."""
    (found,) = (Path(str(job.recipe.storage.root)) / "counts").iterdir()
    return found


def test_files_are_counted_one_by_one_and_added_up(job: Job, tiny: Tokenizer) -> None:
    expected = count_texts(tiny, TEXTS)

    found = corpus_counts(job, tiny)

    assert items(found) == items(expected)
    assert found.records["train_documents"] == job.records["train_documents"] == len(TEXTS)
    assert job.records["train_pretokens"] == expected.total
    assert not list(job.work.iterdir())


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(job: Job, tiny: Tokenizer, tmp_path: Path) -> None:
    other = with_keys(job, f"storage.root={tmp_path / 'other'}", "tokenizer.workers=2")

    corpus_counts(job, tiny)
    corpus_counts(other, tiny)

    assert (kept(other) / stage.TABLE).read_bytes() == (kept(job) / stage.TABLE).read_bytes()
    assert kept(other).name == kept(job).name


def test_a_later_run_finds_the_table(
    job: Job, tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = corpus_counts(job, tiny)
    monkeypatch.setattr(stage, "count_part", lambda _: pytest.fail("counted again"))
    later = with_keys(job, "tokenizer.strategies=[replace]", "tokenizer.vocab_sizes=[999]")

    tiny.add_tokens(["kitab"])  # it does not depend on the vocabulary

    second = corpus_counts(later, tiny)

    assert items(second) == items(first)
    assert later.records == job.records
    assert "word counts: reused" in caplog.text


def test_another_pre_tokenizer_gives_a_table_of_its_own(job: Job, tiny: Tokenizer) -> None:
    content = json.loads(tiny.to_str())
    content["pre_tokenizer"]["pretokenizers"] = content["pre_tokenizer"]["pretokenizers"][1:]
    content["pre_tokenizer"]["pretokenizers"][0]["use_regex"] = True

    corpus_counts(job, tiny)
    corpus_counts(job, Tokenizer.from_str(json.dumps(content)))

    assert len(list((Path(str(job.recipe.storage.root)) / "counts").iterdir())) == 2


def test_a_table_that_is_damaged_or_of_something_else_is_refused(job: Job, tiny: Tokenizer) -> None:
    corpus_counts(job, tiny)
    table = kept(job) / stage.TABLE
    content = bytearray(table.read_bytes())
    content[-1] ^= 1
    table.write_bytes(content)

    with pytest.raises(IntegrityError, match="differs from its manifest; run `anadil remove"):
        corpus_counts(job, tiny)
    (table.parent / "manifest.json").unlink()
    artifact.seal(table.parent, kind="counts", origin={"counts": "of something else"})
    with pytest.raises(IntegrityError, match="holds a counts that was made from something else"):
        corpus_counts(job, tiny)


def test_two_runs_that_count_at_the_same_time_keep_one_table(
    job: Job, tiny: Tokenizer, tmp_path: Path
) -> None:
    jobs = [replace(job, work=tmp_path / f"work-{number}", records={}) for number in range(4)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: items(corpus_counts(each, tiny)), jobs))

    assert found.count(found[0]) == 4
    assert artifact.read_manifest(str(kept(job))) is not None


def test_what_a_killed_run_has_counted_is_not_counted_again(
    job: Job, tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def dies_at_the_third(task: PartTask) -> None:
        if task.file.name == "part-00002.jsonl.zst":
            raise KilledError
        count_part(task)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "count_part", dies_at_the_third)
        with pytest.raises(KilledError):
            corpus_counts(job, tiny)
    (folder,) = job.work.iterdir()
    cut_off = folder / "part-00001.jsonl.zst.counts"
    cut_off.write_bytes(cut_off.read_bytes()[:-1])
    counted = list[str]()

    def noted(file: Path) -> Iterator[Document]:
        counted.append(file.name)
        return read_file(file)

    monkeypatch.setattr(stage, "read_file", noted)

    found = corpus_counts(job, tiny)

    assert counted == [file.name for file in document_files(job.inputs["corpus"], "train")][1:]
    assert items(found) == items(count_texts(tiny, TEXTS))


def test_rare_words_are_left_out_after_counting_and_recorded(job: Job, tiny: Tokenizer) -> None:
    everything = corpus_counts(job, tiny)
    table = (kept(job) / stage.TABLE).read_bytes()
    pruning = with_keys(job, "tokenizer.min_word_count=7")

    pruned = corpus_counts(pruning, tiny)

    assert items(pruned) == [(word, count) for word, count in everything.items() if count >= 7]
    assert pruning.records["pruned_pretokens"] == len(everything) - len(pruned) > 0
    assert pruning.records["train_pretokens"] == everything.total
    assert (kept(job) / stage.TABLE).read_bytes() == table


def test_without_a_manifest_of_the_corpus_nothing_of_an_earlier_run_is_taken(
    make_job: Callable[..., Job], tiny: Tokenizer
) -> None:
    job = make_job()
    stale = job.work / "counts"
    stale.mkdir(parents=True)
    (stale / "part-00000.jsonl.zst.counts").write_bytes(b"of another corpus")

    assert corpus_counts(job, tiny).records["train_documents"] > 100
