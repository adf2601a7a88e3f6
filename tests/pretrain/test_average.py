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
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.hf_export import export_checkpoints, open_checkpoint
from anadil.pretrain.data.order import only
from anadil.pretrain.lr_schedule import rate_factor
from anadil.pretrain.parallel import parallelize as spread_module
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.run import run
from anadil.pretrain.short_run import short_recipe
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Pretrain
from tests.kit.marks import matrix
from tests.kit.merging import tensors_of
from tests.kit.pretraining import (
    SHORT,
    SignalAt,
    generations,
    losses,
    make_job,
    make_recipe,
    run_in_child,
    run_in_several,
)
from tests.kit.tokens import tokens_of_corpus

MEAN: dict[str, Any] = {"schedule": "wsd", "average_last": 3}
"""Checkpoints 6, 9 and 12 of `make_recipe`."""


def mean_by_hand(work: Path, base: Path, tokenizer: Path, steps: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Add up exported checkpoints and divide."""
    total: dict[str, torch.Tensor] = {}
    for step in steps:
        out = work / f"exported-{step}"
        export_checkpoints([work / f"checkpoints/step-{step:08}"], base, tokenizer, out)
        for name, tensor in tensors_of(out).items():
            total[name] = total[name] + tensor if name in total else tensor.double()
    return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


@pytest.mark.parametrize(("processes", "shard"), [(1, 1), (2, 2), matrix(2, 1)])
def test_the_mean_is_the_model_where_it_takes_the_place_of_a_decay(
    tmp_path: Path, base: Path, whole: Path, processes: int, shard: int
) -> None:
    job = make_job(tmp_path, make_recipe(base, **MEAN, keep_checkpoints=1, parallelism={"shard": shard}))

    codes = run_in_several(job, processes)

    assert codes == [0] * processes
    expected = mean_by_hand(job.work, base, tmp_path / "tokenizer", (6, 9, 12))
    mean = tensors_of(job.out)
    assert mean.keys() == expected.keys()
    assert all(torch.equal(mean[name], expected[name]) for name in mean)
    assert json.loads((job.out / "training.json").read_text())["average_of"] == [6, 9, 12]
    # The same files as without a mean.
    assert {path.name for path in job.out.iterdir()} == {path.name for path in whole.iterdir()}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (job.out / name).read_bytes() == (whole / name).read_bytes()
    load_model(job.out)


def test_the_rate_stays_flat_where_a_mean_takes_the_place_of_the_decay(base: Path) -> None:
    settings = make_recipe(base, **MEAN, decay_fraction=0.5).pretrain

    assert {rate_factor(step, settings.phases[-1], settings, 0) for step in range(8)} == {1.0}
    assert settings.plateau_ends[-1] == settings.steps


def test_a_mean_in_place_of_a_decay_needs_a_plateau(base: Path) -> None:
    with pytest.raises(ValidationError, match=r"average_last is 3, .* wsd alone, not of cosine"):
        make_recipe(base, average_last=3)


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

    with pytest.raises(PreflightError, match=r"mean of checkpoints 6, 9, 12, .* past 6"):
        run(make_job(tmp_path, recipe))


def test_a_recipe_that_writes_too_few_checkpoints_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(ValidationError, match=r"average_last is 4, .* write 3 checkpoints"):
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
    assert short_recipe(make_recipe(base, **MEAN), 2, base.with_name("tokenizer")).averaged_steps == ()


def make_trainer(tmp_path: Path, base: Path, **pretrain: object) -> Trainer:
    recipe = make_recipe(base, **pretrain)
    length = recipe.pretrain.sequence_length
    tokens = tokens_of_corpus(tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "work", length=length)
    net = parallelize(load_model(base), recipe.pretrain, Mesh(), torch.device("cpu"))
    trainer = Trainer(net, only(tokens.packed), recipe, Group())
    trainer.begin_phase(len(recipe.pretrain.phases) - 1)
    return trainer


@pytest.mark.parametrize("precision", ["fp32", matrix("bf16")])
def test_checkpointed_activations_leave_losses_and_weights_as_they_are(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(spread_module, "has_fast_bf16", lambda _device: True)
    policies = ("none", "selective", "full")
    settings = {"phases": SHORT, "precision": precision}

    for policy in policies:
        run(make_job(tmp_path, make_recipe(base, **settings, activation_checkpointing=policy), policy))

    curves = [losses(tmp_path / policy / "out") for policy in policies]
    weights = [(tmp_path / policy / "out/model.safetensors").read_bytes() for policy in policies]
    assert curves == [curves[0]] * 3
    assert weights == [weights[0]] * 3


def test_a_bf16_run_resumed_with_checkpointed_activations_gives_the_same_curve(
    tmp_path: Path, base: Path
) -> None:
    settings = {"phases": SHORT, "state": "bf16", "checkpoint_every": 2}
    run(make_job(tmp_path, make_recipe(base, **settings), "whole"))
    run_in_child(make_job(tmp_path, make_recipe(base, **settings), tracker=SignalAt(3, signal.SIGKILL)))

    run(make_job(tmp_path, make_recipe(base, **settings, activation_checkpointing="full")))

    assert losses(tmp_path / "a/out") == losses(tmp_path / "whole/out")


def test_bf16_state_trains_and_every_tensor_of_it_is_bf16(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, state="bf16", checkpoint_every=10))

    run(job)

    curve = losses(job.out)
    assert curve[12] < curve[1] - 0.5
    assert json.loads((job.out / "training.json").read_text())["precision"] == "bf16"
    found = open_checkpoint(next(path for path in generations(job) if path.name.endswith("10")))
    entries: list[Any] = list(found.metadata.state_dict_metadata.values())
    kept = {entry.properties.dtype for entry in entries}
    assert kept == {torch.bfloat16}


@pytest.mark.parametrize("state", [matrix("fp32"), "bf16"])
def test_a_process_without_a_sequence_adds_zero_to_the_gradients(
    tmp_path: Path, base: Path, state: str
) -> None:
    recipe = make_recipe(base, phases=SHORT, batch_size=1, state=state)
    run(make_job(tmp_path, recipe, "one"))

    codes = run_in_several(make_job(tmp_path, recipe, "two"))

    assert codes == [0, 0]
    assert losses(tmp_path / "two/out") == losses(tmp_path / "one/out")


def test_gradients_are_freed_before_the_next_forward_pass(tmp_path: Path, base: Path) -> None:
    trainer = make_trainer(tmp_path, base)
    trainer.gradients(0)
    trainer.apply()
    seen = []
    trainer.net.model.base_model.register_forward_pre_hook(
        lambda *_: seen.append([parameter.grad for parameter in trainer.parameters.values()])
    )

    trainer.gradients(1)
    trainer.apply()

    assert set(seen[0]) == {None}


def test_bf16_state_and_fp32_products_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match=r"precision fp32 contradicts state bf16.*set precision"):
        Pretrain(state="bf16", precision="fp32")


def test_degrees_that_do_not_fit_the_processes_are_refused(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, parallelism={"shard": 8, "tensor": 2}))

    with pytest.raises(PreflightError, match=r"tensor 2 x context 1 x pipeline 1 need a multiple"):
        run(job)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which Liger runs")
def test_liger_without_a_gpu_is_refused_before_data_is_read(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, kernels="liger"))
    job.inputs["corpus"] = tmp_path / "nowhere"

    with pytest.raises(PreflightError, match=r"pretrain.kernels is liger, but.*need a GPU"):
        run(job)
