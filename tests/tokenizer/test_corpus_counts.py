import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text import corpus as corpus_module
from anadil.text.corpus import Document, document_files, read_file, write_documents
from anadil.tokenizer import corpus_counts as stage
from anadil.tokenizer.corpus_counts import PartTask, corpus_counts, count_part
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.word_counts import WordCounts
from tests.kit.harness import again
from tests.tokenizer.conftest import SENTENCES, documents

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
