import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import kfp
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit import clean_stage
from tests.kit.harness import again
from tests.tokenizer.test_run import contents

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
