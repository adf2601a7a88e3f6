"""An added input that holds nothing new: what follows the corpus stays, the report tells of it."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from tests.kit.flow import made_folders
from tests.kit.harness import again
from tests.kit.pretraining import make_model

SMALL = {
    "pretrain.phases": "[{trains: all, steps: 3, lr: 0.001}]",
    "pretrain.sequence_length": "32",
    "pretrain.batch_size": "2",
    "pretrain.micro_batch_size": "2",
    "tokenizer.vocab_sizes": "[350]",
    "clean.heldout_fraction": "0.2",
    "evaluate.max_new_tokens": "4",
    "evaluate.prompts": "['Bakı']",
    "tracking.uri": "'off'",
}


@pytest.fixture
def more(raw: Path, tmp_path: Path) -> list[Path]:
    """`raw`, and the same documents again in a folder that comes before it, with addresses."""
    first = tmp_path / "inputs" / "b" / "prose.jsonl"
    again = tmp_path / "inputs" / "a" / "mirror.jsonl"
    for file in (first, again):
        file.parent.mkdir(parents=True)
    first.write_bytes(raw.read_bytes())
    lines = [
        json.loads(line) | {"url": "https://mirror.example/"}
        for line in raw.read_text(encoding="utf-8").splitlines()
    ]
    again.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return [first, again]


def test_texts_are_the_content_of_a_corpus_and_their_sources_are_not(
    recipe: Recipe, more: list[Path]
) -> None:
    one, both = (
        execute.execute(STAGES["clean"], again(recipe, f"clean.inputs={list(map(str, files))}"), {}, (), None)
        for files in (more[:1], more)
    )

    changed = {name for name, entry in one.manifest.files.items() if both.manifest.files[name] != entry}
    assert both.manifest.figures["dropped"] == len(more[0].read_text(encoding="utf-8").splitlines())
    assert {name.partition("/")[0] for name in changed} == {
        "train", "heldout", "samples", "stats", "stats.json",
    }  # fmt: skip
    assert "rejected/duplicate.jsonl.zst" in both.manifest.files.keys() - one.manifest.files.keys()
    assert both.manifest.digest == one.manifest.digest
    assert both.manifest.whole_digest != one.manifest.whole_digest
    unchanged = again(recipe, "tokenizer.strategies=[base]")
    tokenizers = {
        execute.execute(STAGES["tokenizer"], unchanged, {"corpus": each.uri}, (), None).uri
        for each in (one, both)
    }
    assert len(tokenizers) == 1


@pytest.mark.slow
def test_duplicates_leave_tokenizer_model_and_scores_and_the_report_counts_them(
    recipe: Recipe, more: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SMALL | {"base.model": str(make_model(tmp_path / "base", vocab_size=300))}
    small = again(recipe, *(f"{key}={value}" for key, value in settings.items()))

    first, second = (flow(small, files, caplog) for files in (more[:1], more))

    for word in ("tokenizer", "tokens", "model", "scores"):
        assert first.made[word] == second.made[word]
        assert f"reused {second.made[word]}" in second.said
    assert second.said.count("reused") == 4
    assert first.made["report"] != second.made["report"]
    assert "running because input corpus changed" in second.said
    corpora = [artifact.read_manifest(str(each.made["corpus"])) for each in (first, second)]
    assert [corpus.figures["documents_in"] for corpus in corpora if corpus] == [14, 28]


class Flow(NamedTuple):
    """A run to its end."""

    made: dict[str, Path]
    """Artifact word -> its folder."""
    said: str


def flow(small: Recipe, files: list[Path], caplog: pytest.LogCaptureFixture) -> Flow:
    caplog.clear()
    caplog.set_level("INFO")
    made = made_folders(again(small, f"clean.inputs={list(map(str, files))}", "finetune.inputs=[]"))
    return Flow(made, caplog.text)
