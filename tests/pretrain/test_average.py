"""The mean of the last checkpoints: the model itself."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from anadil.core.errors import PreflightError, RecipeError
from anadil.model.load import load_model
from anadil.pretrain.checkpoint.hf_export import export_checkpoints
from anadil.pretrain.optimizer import rate_factor
from anadil.pretrain.run import run
from anadil.trial.finalists import trial_recipe
from tests.kit.marks import matrix
from tests.kit.merging import tensors_of
from tests.kit.pretraining import SignalAt, make_job, make_recipe, run_in_child, run_in_several

MEAN: dict[str, Any] = {"schedule": "wsd", "average_last": 3}
"""Checkpoints 6, 9 and 12 of `make_recipe`."""


def mean_by_hand(work: Path, base: Path, tokenizer: Path, steps: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Add up exported checkpoints and divide."""
    total: dict[str, torch.Tensor] = {}
    for step in steps:
        out = work / f"exported-{step}"
        export_checkpoints([work / f"checkpoints/step-{step:08}"], base, tokenizer, out)
        for name, tensor in tensors_of(out).items():
            total[name] = total[name] + tensor if name in total else tensor
    return {name: tensor / len(steps) for name, tensor in total.items()}


@pytest.mark.parametrize(("processes", "shard"), [(1, 1), (2, 2), matrix(2, 1)])
def test_the_mean_is_the_model_where_it_takes_the_place_of_a_decay(
    tmp_path: Path, base: Path, processes: int, shard: int
) -> None:
    job = make_job(tmp_path, make_recipe(base, **MEAN, keep_checkpoints=1, parallelism={"shard": shard}))

    codes = run_in_several(job, processes)

    assert codes == [0] * processes
    expected = mean_by_hand(job.work, base, tmp_path / "tokenizer", (6, 9, 12))
    mean = tensors_of(job.out)
    assert mean.keys() == expected.keys()
    assert all(torch.equal(mean[name], expected[name]) for name in mean)
    assert json.loads((job.out / "training.json").read_text())["average_of"] == [6, 9, 12]
    assert not (job.out / "averaged").exists()
    load_model(job.out)


def test_a_model_has_the_same_files_with_a_mean_and_without(tmp_path: Path, base: Path, whole: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, **MEAN))

    run(job)

    assert {path.name for path in job.out.iterdir()} == {path.name for path in whole.iterdir()}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (job.out / name).read_bytes() == (whole / name).read_bytes()


def test_the_rate_stays_flat_where_a_mean_takes_the_place_of_the_decay(base: Path) -> None:
    settings = make_recipe(base, **MEAN, decay_fraction=0.5).pretrain

    assert {rate_factor(step, settings.phases[-1], settings, 0) for step in range(8)} == {1.0}
    assert settings.plateau_ends[-1] == settings.steps


def test_a_mean_in_place_of_a_decay_needs_a_plateau(base: Path) -> None:
    with pytest.raises(
        ValidationError, match=r"average_last is 3, .* wsd alone, not of cosine; set schedule to wsd"
    ):
        make_recipe(base, average_last=3)


def test_a_trial_of_tokenizers_averages_nothing(base: Path) -> None:
    assert trial_recipe(make_recipe(base, **MEAN), 2).averaged_steps == ()


def test_a_checkpoint_of_a_stopped_run_is_not_one_of_the_mean_and_takes_the_place_of_none(
    tmp_path: Path, base: Path
) -> None:
    recipe = make_recipe(base, **MEAN, keep_checkpoints=1)
    for step in (7, 10):  # saved after 8 and 11 steps
        assert run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(step, signal.SIGTERM))) == 143

    run(make_job(tmp_path, recipe))

    assert json.loads((tmp_path / "a/out/training.json").read_text())["average_of"] == [6, 9, 12]


def test_a_run_that_has_lost_a_checkpoint_of_the_mean_is_refused_before_it_goes_on(
    tmp_path: Path, base: Path
) -> None:
    recipe = make_recipe(base, **MEAN)
    assert run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(9, signal.SIGTERM))) == 143
    shutil.rmtree(tmp_path / "a/work/checkpoints/step-00000006")

    with pytest.raises(
        PreflightError, match=r"mean of checkpoints 6, 9, 12, .* past 6, which it no longer has"
    ):
        run(make_job(tmp_path, recipe))


def test_a_recipe_that_writes_too_few_checkpoints_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(
        ValidationError, match=r"average_last is 4, .* write 3 checkpoints \(steps 6, 9, 12\)"
    ):
        make_recipe(base, **MEAN | {"average_last": 4})
    with pytest.raises(RecipeError, match=r"max_epochs leaves \d+ steps: pretrain.average_last is 3"):
        run(make_job(tmp_path, make_recipe(base, **MEAN, max_epochs=1)))


def test_the_mean_is_of_the_checkpoints_that_this_run_writes_of_phases_that_train_alike(base: Path) -> None:
    alike = [{"trains": "all", "steps": steps, "lr": 1e-3} for steps in (2, 4)]
    branch: dict[str, Any] = {"start_from": "/runs/step-00000006"}

    assert make_recipe(base, **MEAN).averaged_steps == (6, 9, 12)
    assert make_recipe(base, **MEAN, phases=alike).averaged_steps == (2, 3, 6)
    assert make_recipe(base, **MEAN | {"average_last": 2}, **branch).averaged_steps == (9, 12)
    with pytest.raises(ValidationError, match=r"average_last is 3, .* write 2 checkpoints \(steps 9, 12\)"):
        make_recipe(base, **MEAN, **branch)
    assert trial_recipe(make_recipe(base, **MEAN), 2).averaged_steps == ()
