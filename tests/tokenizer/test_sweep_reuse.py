import json
import logging
import shutil
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import kfp
from anadil.runtime.execute import MadeArtifact, execute
from tests.kit.harness import again
from tests.tokenizer.test_run import contents

STAGE = STAGES["tokenizer"]
SIZES = (400, 600)


@pytest.fixture
def corpus(recipe: Recipe) -> MadeArtifact:
    return execute(STAGES["clean"], recipe, {}, (), None)


def made(recipe: Recipe, corpus: MadeArtifact, root: Path, *sizes: int) -> MadeArtifact:
    sized = again(recipe, f"storage.root={root}", f"tokenizer.vocab_sizes={list(sizes)}")
    return execute(STAGE, sized, {"corpus": corpus.uri}, (), None)


@pytest.mark.parametrize("strategies", ["[base, extend, replace]", "[extend]"])
def test_a_sweep_over_finished_sizes_gives_the_same_artifact_without_training(
    recipe: Recipe, corpus: MadeArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture, strategies: str
) -> None:
    recipe = again(recipe, f"tokenizer.strategies={strategies}")
    whole = made(recipe, corpus, tmp_path / "whole", *SIZES)
    for size in SIZES:
        made(recipe, corpus, tmp_path / "parts", size)
    caplog.clear()

    with caplog.at_level(logging.INFO):
        joined = made(recipe, corpus, tmp_path / "parts", *SIZES)

    assert "size 400: taken from a run of its own" in caplog.messages
    assert "size 600: taken from a run of its own" in caplog.messages
    assert not any(message.startswith("training a vocabulary") for message in caplog.messages)
    assert joined.manifest.key == whole.manifest.key
    assert joined.manifest.digest == whole.manifest.digest
    assert joined.manifest.records == whole.manifest.records
    files, expected = contents(Path(joined.uri)), contents(Path(whole.uri))
    assert files.keys() == expected.keys()
    assert [name for name in files if name != "manifest.json" and files[name] != expected[name]] == []


def test_only_the_size_that_is_not_there_is_trained(
    recipe: Recipe, corpus: MadeArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = made(recipe, corpus, tmp_path / "whole", *SIZES)
    made(recipe, corpus, tmp_path / "parts", 600)
    caplog.clear()

    with caplog.at_level(logging.INFO):
        joined = made(recipe, corpus, tmp_path / "parts", *SIZES)

    assert "training a vocabulary of 400 tokens" in caplog.messages
    assert joined.manifest.digest == whole.manifest.digest


def test_a_damaged_candidate_is_trained_again(
    recipe: Recipe, corpus: MadeArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = made(recipe, corpus, tmp_path / "whole", *SIZES)
    part = made(recipe, corpus, tmp_path / "parts", 600)
    (Path(part.uri) / "candidates" / "replace-600" / "tokenizer.json").write_text("{}")

    joined = made(recipe, corpus, tmp_path / "parts", *SIZES)

    assert "differs from its manifest" in caplog.text
    assert "its size is trained again" in caplog.text
    assert joined.manifest.digest == whole.manifest.digest


def test_a_candidate_of_other_settings_is_left_alone(
    recipe: Recipe, corpus: MadeArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = made(again(recipe, "tokenizer.min_frequency=3"), corpus, tmp_path / "parts", 600)
    manifest = artifact.read_manifest(
        made(recipe, corpus, tmp_path / "alone", 600).uri,
    )
    assert manifest is not None
    # Somebody put it where the right one belongs, manifest and all.
    shutil.copytree(other.uri, tmp_path / "parts" / "tokenizer" / manifest.key)
    caplog.clear()

    with caplog.at_level(logging.INFO):
        joined = made(recipe, corpus, tmp_path / "parts", *SIZES)

    assert "size 600: taken from a run of its own" not in caplog.messages
    assert joined.manifest.figures["strategy"] == "extend"


def test_a_pod_of_the_sweep_trains_its_own_size(recipe: Recipe) -> None:
    values = {"recipe": recipe.model_dump_json(exclude_unset=True), "corpus": "/c", "size": "50000"}
    given = {"inputs": {"parameterValues": values}, "outputs": {}}

    call = kfp.parse_executor_input(STAGE, json.dumps(given))

    assert again(recipe, "tokenizer.vocab_sizes=[50000]") == Recipe.model_validate_json(call.recipe)
