"""Settings that change what training keeps in memory, and what they may change besides."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from anadil.core.errors import PreflightError
from anadil.model.load import load_model
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.hf_export import open_checkpoint
from anadil.pretrain.data.mixture import only
from anadil.pretrain.parallel import parallelize as spread_module
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.run import run
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Pretrain
from tests.kit.marks import matrix
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
    trainer.step(0)
    seen = []
    trainer.net.model.base_model.register_forward_pre_hook(
        lambda *_: seen.append([parameter.grad for parameter in trainer.parameters.values()])
    )

    trainer.step(1)

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
