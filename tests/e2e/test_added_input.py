"""An added input that holds nothing new: what follows the corpus stays, the report tells of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
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
    tokenizers = {
        execute.execute(STAGES["tokenizer"], recipe, {"corpus": each.uri}, (), None).uri
        for each in (one, both)
    }
    assert len(tokenizers) == 1


def test_another_text_is_another_content(recipe: Recipe, raw: Path, tmp_path: Path) -> None:
    lines = raw.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "less.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")

    digests = {
        execute.execute(
            STAGES["clean"], again(recipe, f"clean.inputs=['{path}']"), {}, (), None
        ).manifest.digest
        for path in (raw, tmp_path / "less.jsonl")
    }

    assert len(digests) == 2


@pytest.mark.slow
def test_duplicates_leave_tokenizer_model_and_scores_and_the_report_counts_them(
    more: list[Path], tmp_path: Path
) -> None:
    base = make_model(tmp_path / "base", vocab_size=300)

    first, second = (run(tmp_path, base, files) for files in (more[:1], more))

    for word in ("tokenizer", "model", "scores"):
        assert f"reused {tmp_path / 'work' / word}/" in second.stderr, second.stderr
    assert second.stderr.count("reused") == 3
    reports = [Path(json.loads(done.stdout)["report"]) for done in (first, second)]
    corpora = [artifact.read_manifest(json.loads(done.stdout)["corpus"]) for done in (first, second)]
    assert reports[0] != reports[1]
    assert "report: running because input corpus changed" in second.stderr
    assert [corpus.figures["documents_in"] for corpus in corpora if corpus] == [14, 28]


def run(folder: Path, base: Path, files: list[Path]) -> "subprocess.CompletedProcess[str]":
    """The whole flow without chats, in processes of its own."""
    settings = SMALL | {"base.model": str(base), "clean.inputs": json.dumps(list(map(str, files)))}
    settings["finetune.inputs"] = "[]"
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [*(sys.executable, "-m", "anadil", "run", "--work", str(folder / "work"), "-o", "json"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done
