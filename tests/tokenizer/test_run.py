import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import kfp
from anadil.runtime.execute import execute
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import write_documents
from anadil.text.encoder import Ids, _FastEncoder
from anadil.tokenizer.candidate import JsonObject
from anadil.tokenizer.run import run
from anadil.tokenizer.select import SPEED
from tests.kit import clean_stage
from tests.kit.harness import again

from .conftest import SENTENCES, documents, written

ROOT = Path(__file__).parents[2]
ALL = ("base", "extend", "replace")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the one of speeds, which differ from run to run."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != SPEED)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def number(figure: float | str) -> float:
    assert not isinstance(figure, str)
    return figure


def test_the_candidates_are_compared_and_the_new_vocabulary_goes_on(make_job: Callable[..., Job]) -> None:
    job = make_job(strategies=ALL, vocab_sizes=[600], choice="replace")

    figures = run(job)

    shown = written(job, "fertility")
    choice = written(job, "choice")
    assert figures["strategy"] == "replace"
    assert figures["vocab_size"] == 600
    assert figures["fertility"] == shown["candidates"]["replace-600"]["fertility"]
    assert number(figures["fertility"]) < number(figures["base_fertility"])
    assert choice["chosen"] == shown["chosen"] == "replace-600"
    assert choice["reason"].startswith(
        "tokenizer.choice is replace; no candidate has 90% of its own tokens seen often"
    )
    assert list(shown["candidates"]) == ["base", "extend-600", "replace-600"]
    assert all(entry["round_trip"] for entry in shown["candidates"].values())
    assert shown["candidates"]["base"]["samples"]["kitablardan"] == ["k", "i", "ta", "b", "lar", "d", "an"]
    assert job.records["train_documents"] == 208
    assert shown["encoder"] == {
        "fast": True,
        "compared_words": job.records["different_pretokens"],
        "difference": "",
    }
    for name in shown["candidates"]:
        assert set(contents(job.out / "candidates" / name)) == {
            "chat_template.jinja", "embedding_map.json", "tokenizer.json", "tokenizer_config.json",
        }  # fmt: skip
    chosen = contents(job.out / "candidates" / "replace-600")
    assert {name: (job.out / name).read_bytes() for name in chosen} == chosen


def test_a_word_that_the_fast_encoder_cuts_otherwise_is_said_and_recorded(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(strategies=["extend"], vocab_sizes=[100])
    whole = _FastEncoder.encode

    def without_a_word(
        self: _FastEncoder, texts: Sequence[str], utf8: Sequence[bytes], threads: int
    ) -> list[Ids]:
        found = whole(self, texts, utf8, threads)
        return [ids[:0] if text == " bomboş" else ids for text, ids in zip(texts, found, strict=True)]

    monkeypatch.setattr(_FastEncoder, "encode", without_a_word)

    run(job)

    shown = written(job, "fertility")
    said = "the fast encoder gives other token ids than tokenizers for ' bombo\\u015f'"
    assert not shown["encoder"]["fast"]
    assert shown["encoder"]["difference"].startswith(said)
    assert shown["warnings"][-1] == shown["encoder"]["difference"]
    assert said in caplog.text


def test_one_candidate_leaves_no_choice_and_no_directory_of_candidates(make_job: Callable[..., Job]) -> None:
    job = make_job(strategies=["extend"], vocab_sizes=[100])

    run(job)

    rows_map = written(job, "embedding_map")
    assert set(contents(job.out)) == {
        "chat_template.jinja", "embedding_map.json", "fertility.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert len(rows := rows_map.pop("rows")) == 4224
    assert rows == [*([index] for index in range(4102)), *rows[4102:4202], *[[]] * 22]
    assert min(map(len, rows[4102:4202])) > 1
    sizes = {"tokens": 4202, "kept": 4102, "moved": 0, "new": 100, "unused": 22}
    assert rows_map == {"strategy": "extend", "base_vocab_size": 4102, "vocab_size": 4224, **sizes}


def test_the_base_alone_is_passed_on_byte_by_byte_with_no_rows_to_change(
    make_job: Callable[..., Job], tiny_folder: Path
) -> None:
    job = make_job(strategies=["base"])

    figures = run(job)

    rows_map = written(job, "embedding_map")
    assert rows_map == {"strategy": "base", "base_vocab_size": 4102, "vocab_size": 4102, "rows": None}
    assert (job.out / "tokenizer.json").read_bytes() == (tiny_folder / "tokenizer.json").read_bytes()
    assert figures["fertility"] == figures["base_fertility"]
    assert written(job, "fertility")["encoder"] is None


def test_the_same_corpus_gives_the_same_bytes(make_job: Callable[..., Job]) -> None:
    jobs = [make_job(strategies=ALL, vocab_sizes=[400, 600]) for _ in range(2)]

    for job in jobs:
        run(job)

    assert contents(jobs[0].out) == contents(jobs[1].out)


def test_fewer_tokens_than_asked_are_said_and_recorded(
    make_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(strategies=["extend", "replace"], vocab_sizes=[50_000], choice="replace")

    figures = run(job)

    shown = written(job, "fertility")["candidates"]
    assert "replace: asked for 50000 tokens, the corpus gives" in caplog.text
    assert "extend: asked for 50000 tokens, the corpus gives" in caplog.text
    assert shown["replace-50000"]["asked"] == 50_000
    assert shown["replace-50000"]["got"] == shown["replace-50000"]["vocab_size"] == figures["vocab_size"]
    assert number(figures["vocab_size"]) < 2_000
    assert shown["extend-50000"]["got"] == shown["extend-50000"]["vocab_size"] - 4102


def test_a_vocabulary_too_small_for_bytes_and_special_tokens_is_a_recipe_error(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(strategies=["replace"], vocab_sizes=[261])

    with pytest.raises(
        RecipeError, match=r"261 is too small .* 256 bytes and 6 special tokens need at least 262"
    ):
        run(job)


def test_no_heldout_text_is_a_data_error(make_job: Callable[..., Job], tmp_path: Path) -> None:
    write_documents(tmp_path / "corpus", "train", documents(list(SENTENCES)))
    write_documents(tmp_path / "corpus", "heldout", [])

    with pytest.raises(DataError, match="the corpus has no held-out text, so nothing can be compared"):
        run(make_job(corpus=tmp_path / "corpus"))


@pytest.fixture
def altering_base(tiny_folder: Path, tmp_path: Path) -> Callable[[JsonObject], str]:
    """A base with some settings of its tokenizer changed."""

    def make(changes: JsonObject) -> str:
        content = json.loads((tiny_folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["pre_tokenizer"]["pretokenizers"][1] |= changes.pop("byte_level", {})
        decoders = [content["decoder"], *changes.pop("decoders", [])]
        content |= {"decoder": {"type": "Sequence", "decoders": decoders}} | changes
        (tmp_path / "base").mkdir()
        (tmp_path / "base" / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return str(tmp_path / "base")

    return make


@pytest.mark.parametrize(
    "changes", [{"byte_level": {"add_prefix_space": True}}, {"normalizer": {"type": "Lowercase"}}]
)
@pytest.mark.parametrize("strategy", ["base", "replace"])
def test_a_base_that_gives_other_text_back_is_refused_before_anything_is_trained_on_it(
    make_job: Callable[..., Job],
    altering_base: Callable[[JsonObject], str],
    changes: JsonObject,
    strategy: str,
) -> None:
    job = make_job(altering_base(dict(changes)), strategies=[strategy], vocab_sizes=[600])

    with pytest.raises(DataError, match=r"base\.model: its tokenizer gives 3 of 3 held-out documents back"):
        run(job)


def test_a_base_that_loses_a_document_in_a_hundred_may_be_kept_but_not_changed(
    make_job: Callable[..., Job],
    altering_base: Callable[[JsonObject], str],
    corpus: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(corpus, tmp_path / "corpus", ignore=shutil.ignore_patterns("heldout*"))
    texts = [*(f"{number}. {SENTENCES[0]}" for number in range(120)), "Łódź"]
    write_documents(tmp_path / "corpus", "heldout", documents(texts))
    lost = {"type": "Replace", "pattern": {"String": "Ł"}, "content": "L"}
    base = altering_base({"decoders": [lost]})

    run(make_job(base, corpus=tmp_path / "corpus", strategies=["base"]))
    with pytest.raises(IntegrityError, match=r"replace-600: 1 held-out documents decode to another text"):
        run(make_job(base, corpus=tmp_path / "corpus", strategies=["replace"], vocab_sizes=[600]))

    assert "tokenizer base: 1 held-out documents decode to another text" in caplog.text


STAGE = STAGES["tokenizer"]
SIZES = (300, 340)


@dataclass(frozen=True)
class Sweep:
    """Two sizes made at once, and each by itself below `parts`."""

    recipe: Recipe
    corpus: MadeArtifact
    whole: MadeArtifact
    parts: Path
    alone: dict[int, MadeArtifact]


def made(recipe: Recipe, corpus: MadeArtifact, root: Path, *sizes: int) -> MadeArtifact:
    sized = again(recipe, f"storage.root={root}", f"tokenizer.vocab_sizes={list(sizes)}")
    return execute(STAGE, sized, {"corpus": corpus.uri}, (), None)


@pytest.fixture(scope="module", params=["[base, extend, replace]", "[extend]"])
def sweep(
    request: pytest.FixtureRequest, raw: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Sweep:
    root = tmp_path_factory.mktemp("sweep")
    settings = {
        "base.model": tiny_folder, "clean.inputs": f"[{raw}]", "clean.heldout_fraction": 0.2, "tracking.uri": "off",
        "storage.root": root, "tokenizer.strategies": request.param,
    }  # fmt: skip
    recipe = again(Recipe(), *(f"{key}={value}" for key, value in settings.items()))
    corpus = execute(STAGES["clean"], recipe, {}, (), None, {"processes": clean_stage.executor})
    whole = made(recipe, corpus, root / "whole", *SIZES)
    alone = {size: made(recipe, corpus, root / "parts", size) for size in SIZES}
    return Sweep(recipe, corpus, whole, root / "parts", alone)


every_strategy = pytest.mark.parametrize("sweep", ["[base, extend, replace]"], indirect=True)


@pytest.fixture
def parts(sweep: Sweep, tmp_path: Path) -> Path:
    """A copy of what each size left by itself."""
    return shutil.copytree(sweep.parts, tmp_path / "parts")


def own(sweep: Sweep, parts: Path, size: int) -> Path:
    """The artifact of one size in that copy."""
    return parts / Path(sweep.alone[size].uri).relative_to(sweep.parts)


def test_a_sweep_over_finished_sizes_gives_the_same_artifact_without_training(
    sweep: Sweep, parts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        joined = made(sweep.recipe, sweep.corpus, parts, *SIZES)

    whole = sweep.whole
    for size in SIZES:
        assert f"size {size}: taken from a run of its own" in caplog.messages
    assert not any(message.startswith("training a vocabulary") for message in caplog.messages)
    assert joined.manifest.key == whole.manifest.key
    assert joined.manifest.digest == whole.manifest.digest
    assert joined.manifest.records == whole.manifest.records
    files, expected = contents(Path(joined.uri)), contents(Path(whole.uri))
    assert files.keys() == expected.keys()
    assert [name for name in files if name != "manifest.json" and files[name] != expected[name]] == []


@every_strategy
def test_only_the_size_that_is_not_there_is_trained(
    sweep: Sweep, parts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(own(sweep, parts, SIZES[0]))

    with caplog.at_level(logging.INFO):
        joined = made(sweep.recipe, sweep.corpus, parts, *SIZES)

    assert f"training a vocabulary of {SIZES[0]} tokens" in caplog.messages
    assert joined.manifest.digest == sweep.whole.manifest.digest


@every_strategy
def test_a_damaged_candidate_is_trained_again(
    sweep: Sweep, parts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own(sweep, parts, SIZES[1]) / "candidates" / f"replace-{SIZES[1]}" / "tokenizer.json").write_text("{}")

    joined = made(sweep.recipe, sweep.corpus, parts, *SIZES)

    assert "differs from its manifest" in caplog.text
    assert "what it holds is made again" in caplog.text
    assert joined.manifest.digest == sweep.whole.manifest.digest


@every_strategy
def test_a_candidate_of_other_settings_is_left_alone(
    sweep: Sweep, parts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = SIZES[1]
    other = made(again(sweep.recipe, "tokenizer.min_frequency=3"), sweep.corpus, tmp_path / "other", size)
    # Somebody put it where the right one belongs, manifest and all.
    shutil.rmtree(own(sweep, parts, size))
    shutil.copytree(other.uri, own(sweep, parts, size))
    caplog.clear()

    with caplog.at_level(logging.INFO):
        joined = made(sweep.recipe, sweep.corpus, parts, *SIZES)

    assert f"size {size}: taken from a run of its own" not in caplog.messages
    assert joined.manifest.digest == sweep.whole.manifest.digest


def test_a_pod_of_the_sweep_trains_its_own_size(recipe: Recipe) -> None:
    values = {"recipe": recipe.model_dump_json(exclude_unset=True), "corpus": "/c", "size": "50000"}
    given = {"inputs": {"parameterValues": values}, "outputs": {}}

    call = kfp.parse_executor_input(STAGE, json.dumps(given))

    assert again(recipe, "tokenizer.vocab_sizes=[50000]") == Recipe.model_validate_json(call.recipe)
