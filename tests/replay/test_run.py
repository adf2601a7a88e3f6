import errno
import json
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.replay import run as replay
from anadil.replay.run import Writer
from anadil.runtime.cache_key import recipe_origin, stage_origin
from anadil.runtime.entry_point import main
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import read_corpora
from anadil.text.language import load_language
from anadil.text.written import read_written
from tests.kit.writing_base import writing_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that writes short documents."""
    return writing_base(tmp_path_factory.mktemp("base") / "talks")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("SHARD_DOCUMENTS", 48), ("MAX_TOKENS", 64), ("QUESTION_TOKENS", 32), ("ANSWER_TOKENS", 32)):
        monkeypatch.setattr(replay, name, size)


def recipe_of(base: Path, root: Path, *settings: str) -> Recipe:
    text = (
        "language: az\nsources: {web: {inputs: [w.jsonl]}, self: {written_by: base, tokens: 1K, clean: {rules: none}}}\n"
        "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, self: .1}}]}\ntracking: {uri: off}"
    )
    changes = [f"base.model={base}", f"storage.root={root}", *settings]
    return parse_recipe(text, "r.yaml", changes)


def written(recipe: Recipe) -> MadeArtifact:
    return execute(STAGES["replay"], recipe.of_source("self"), {}, (), None)


def rows_of(made: MadeArtifact) -> tuple[list[bytes], dict[str, Any]]:
    files, about = read_written(Path(made.uri))
    return [Path(each).read_bytes() for each in files], about


def test_a_base_writes_as_many_tokens_as_are_asked_for(base: Path, tmp_path: Path) -> None:
    made = written(recipe_of(base, tmp_path))

    files, about = rows_of(made)
    assert len(files) > 1
    # No more than the last document of each row beyond it.
    assert 1_000 <= about["tokens"] < 1_500
    assert about["written"] == about["documents"] + sum(about["dropped"].values())
    assert (about["base"], about["seed"]) == (str(base), 0)
    assert about["sampling"]["text"] == {"temperature": 1.0, "top_p": 1.0}
    assert 0 < about["chats"] < about["documents"] == made.manifest.records["documents"]


def test_a_killed_run_writes_no_shard_twice_and_ends_with_the_same_text(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(recipe_of(base, tmp_path / "whole"))
    begun: list[range] = []
    write = Writer.write

    def write_one(self: Writer, numbers: range) -> Any:
        begun.append(numbers)
        if len(begun) == 2:
            raise Stopped("killed")
        return write(self, numbers)

    monkeypatch.setattr(Writer, "write", write_one)
    with pytest.raises(Stopped):
        written(recipe_of(base, tmp_path / "killed"))
    again = written(recipe_of(base, tmp_path / "killed"))

    assert begun[0] == range(16)
    assert begun[2] == begun[1]
    assert rows_of(again) == rows_of(whole)


def test_what_a_base_has_written_serves_other_phases_tokenizers_and_corpora(
    base: Path, tmp_path: Path
) -> None:
    settings = (
        "tokenizer.vocab_sizes=[9999]", "pretrain.phases.0.steps=5", "clean.pii=true", "pretrain.sequence_length=64",
        "sources.self.max_tokens=5K", "sources.self.language=none", "sources.web.inputs=[x.txt]", "language=kk",
    )  # fmt: skip
    stage, recipe = STAGES["replay"], recipe_of(base, tmp_path)
    key = stage_origin(stage, recipe.of_source("self"), {}, ())

    assert stage_origin(stage, recipe_of(base, tmp_path, *settings).of_source("self"), {}, ()) == key
    for setting in ("seed=1", "sources.self.tokens=2K"):
        assert stage_origin(stage, recipe_of(base, tmp_path, setting).of_source("self"), {}, ()) != key
    assert "recipe sources.self.tokens" in recipe_origin(recipe.of_source("self"), stage.sections)


def test_a_base_that_writes_nothing_is_refused_with_what_it_wrote(tmp_path: Path) -> None:
    loops = writing_base(tmp_path / "loops", {"Ġvalue": 30.0})

    with pytest.raises(DataError) as caught:
        written(recipe_of(loops, tmp_path))

    assert str(caught.value) == (
        f"sources.self: the base {loops} writes nothing of use: 16 documents written, all dropped: "
        "text loop 16 (100 %); it wrote "
        + ", ".join([repr(("value" + " value" * 64)[:200])] * 3)
        + "; check base.model, or give real text as `inputs` in place of written_by"
    )


def test_a_base_without_a_tokenizer_is_refused(base: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((base / "config.json").read_text())

    with pytest.raises(DataError, match=r"base\.model: .*bare holds no tokenizer\.json"):
        written(recipe_of(bare, tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("clean_in_this_process")
def test_a_corpus_is_made_of_what_the_base_wrote(base: Path, tmp_path: Path) -> None:
    recipe = recipe_of(base, tmp_path)
    made = written(recipe)

    corpus = execute(STAGES["clean"], recipe.of_source("self"), {"written": made.uri}, (), None)

    texts = {document.text for document in read_corpora([Path(corpus.uri)], "train")}
    rows = [json.loads(line) for line in _lines(made)]
    normalize = load_language("en").normalize
    assert texts <= {normalize(row["text"]) for row in rows}
    assert any(text.startswith("<|start_header_id|>") for text in texts)
    stats = json.loads((Path(corpus.uri) / "stats.json").read_text())
    assert stats["written"]["base"] == str(base)
    assert corpus.manifest.origin["input written"] == made.manifest.digest


@pytest.mark.slow
@pytest.mark.usefixtures("clean_in_this_process")
def test_text_in_another_language_than_the_source_says_is_refused_with_samples(
    base: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(base, tmp_path, "sources.self.language=ja", "sources.self.clean.rules={}")
    made = written(recipe)

    with pytest.raises(DataError) as caught:
        execute(STAGES["clean"], recipe.of_source("self"), {"written": made.uri}, (), None)

    text = str(caught.value)
    assert "corpus is empty after cleaning" in text
    assert f"; {base} wrote '" in text
    assert "name the language that it writes, or `none`, in the source's `language`" in text


def _lines(made: MadeArtifact) -> list[str]:
    import zstandard

    files, _ = rows_of(made)
    return b"".join(zstandard.decompress(each) for each in files).decode().splitlines()


def test_a_full_disk_leaves_no_shard_that_is_taken_for_one(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        json.dumps(recipe_of(base, tmp_path / "root").model_dump(mode="json", exclude_defaults=True))
    )
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write_bytes(self, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        code = main("replay", ["--recipe", str(path)])

    assert code == PreflightError.exit_code
    assert "disk full: " in capsys.readouterr().err
    assert not [*(tmp_path / "root").rglob("shard-*")]
    assert rows_of(written(recipe_of(base, tmp_path / "root")))[1]["documents"]
