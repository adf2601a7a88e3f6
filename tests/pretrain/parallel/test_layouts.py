"""Every way to share a model trains as one process does, and a run goes on in another layout."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from anadil.core.errors import Stopped
from anadil.model.load import load_model
from anadil.pretrain.parallel import parallelize
from anadil.pretrain.parallel.parallelize import compute_dtype
from anadil.pretrain.run import run
from anadil.recipe.load import load_recipe
from anadil.runtime.job import Job
from tests.kit.marks import gpu, matrix, slow
from tests.kit.pretraining import (
    SHORT,
    SignalAt,
    losses,
    make_corpus,
    make_job,
    make_recipe,
    run_in_child,
    run_in_several,
)
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.pretrain.conftest import trained

TWO: list[dict[str, int]] = [
    {"shard": 2},
    {"shard": 2, "prefetch": 2, "reshard": False},
    {"shard": 2, "context": 2},
    {"context": 2},
    {"tensor": 2},
    {"pipeline": 2},
]
FOUR = [
    matrix({"shard": 4}),
    matrix({"shard": 2}),
    matrix({"shard": 2, "tensor": 2}),
    slow({"shard": 2, "context": 2, "tensor": 2}),
    matrix({"shard": 2, "pipeline": 2}),
    slow({"shard": 2, "pipeline": 2, "prefetch": 0, "reshard": False}),
    matrix({"pipeline": 2}),
    matrix({"tensor": 2, "pipeline": 2}),
    matrix({"context": 2, "pipeline": 2}),
    matrix({"context": 2, "tensor": 2}),
]
"""Each way to share is in one that is not of the matrix."""
STAGES: dict[str, Any] = {"micro_batch_size": 1, "batch_size": 4, "phases": SHORT}
"""A pipeline needs as many passes as stages."""


def name_of(degrees: dict[str, int]) -> str:
    return "-".join(f"{name}{degree}" for name, degree in degrees.items())


@pytest.fixture(scope="module")
def alone(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the model with two tables."""
    return trained(tmp_path_factory.mktemp("alone"), inputs / "untied", **STAGES)


def trains_alike(expected_out: Path, job: Job, processes: int) -> None:
    codes = run_in_several(job, processes)

    assert codes == [0] * processes
    assert losses(job.out) == pytest.approx(losses(expected_out), rel=1e-5)
    one, many = (load_model(out) for out in (expected_out, job.out))
    for (name, expected), (_, found) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        # Not each weight: where a gradient is all rounding, Adam makes whole steps of it.
        assert (found - expected).norm() < 1e-3 * expected.norm(), name


@pytest.mark.parametrize("degrees", [TWO[0], *map(matrix, TWO[1:4]), TWO[4], matrix(TWO[5])], ids=name_of)
def test_two_processes_train_as_one_whatever_they_share(
    tmp_path: Path, untied: Path, alone: Path, degrees: dict[str, int]
) -> None:
    trains_alike(alone, make_job(tmp_path, make_recipe(untied, **STAGES, parallelism=degrees)), 2)


@pytest.mark.parametrize("degrees", FOUR, ids=name_of)
def test_four_processes_train_as_one_whatever_they_share(
    tmp_path: Path, untied: Path, alone: Path, degrees: dict[str, int]
) -> None:
    trains_alike(alone, make_job(tmp_path, make_recipe(untied, **STAGES, parallelism=degrees)), 4)


@gpu(2)
@pytest.mark.parametrize("degrees", TWO, ids=name_of)
def test_two_gpus_train_as_one_whatever_they_share(
    tmp_path: Path, untied: Path, degrees: dict[str, int]
) -> None:
    settings = {**STAGES, "precision": "fp32"}  # in BF16 sums of another order differ by parts in a hundred
    run(make_job(tmp_path, make_recipe(untied, **settings), "one"))

    trains_alike(
        tmp_path / "one/out", make_job(tmp_path, make_recipe(untied, **settings, parallelism=degrees)), 2
    )


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param({"shard": 2}, id="shard"),
        slow({"pipeline": 2}),
        matrix({"tensor": 2}),
        matrix({"tensor": 2, "pipeline": 2}),
        matrix({"shard": 2, "pipeline": 2}),
    ],
)
def test_a_tied_model_is_shared_without_losing_its_tie(
    tmp_path: Path, base: Path, degrees: dict[str, int]
) -> None:
    # An odd batch, where no stage needs a micro-batch of its own.
    settings = {**STAGES, "activation_checkpointing": "full", "batch_size": 4 if "pipeline" in degrees else 5}
    run(make_job(tmp_path, make_recipe(base, **settings), "one"))
    job = make_job(tmp_path, make_recipe(base, **settings, parallelism=degrees))

    trains_alike(tmp_path / "one/out", job, math.prod(degrees.values()))

    assert load_model(job.out).config.tie_word_embeddings
    written = json.loads((job.out / "training.json").read_text())["parallelism"]
    assert {name: written[name] for name in degrees} == degrees


def test_a_run_goes_on_in_another_layout(tmp_path: Path, untied: Path, alone: Path) -> None:
    first = run_in_child(
        make_job(tmp_path, make_recipe(untied, **STAGES), tracker=SignalAt(2, signal.SIGTERM))
    )
    then = run_in_several(make_job(tmp_path, make_recipe(untied, **STAGES, parallelism={"shard": 2})), 2)

    assert (first, then) == (Stopped.exit_code, [0, 0])
    assert losses(tmp_path / "a/out") == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("reshard", "name"),
    [(True, "untied"), matrix(True, "model"), matrix(False, "model")],
    ids=["two tables", "freed", "kept"],
)
def test_a_validation_between_two_phases_leaves_no_parameter_out_of_the_next_step(
    tmp_path: Path, base: Path, reshard: bool, name: str
) -> None:
    model = base.with_name(name)
    phases = [{"trains": "embeddings", "steps": 1, "lr": 0.01}, {"trains": "all", "steps": 1, "lr": 0.01}]
    parallelism = {"shard": 2, "reshard": reshard}
    job = make_job(tmp_path, make_recipe(model, phases=phases, parallelism=parallelism))
    job.inputs["corpus"] = make_corpus(tmp_path / "scored", heldout=PRETRAINING_TEXTS[:1])

    codes = run_in_several(job)

    assert codes == [0, 0]
    before, after = (load_file(path / "model.safetensors") for path in (model, job.out))
    assert [each for each, tensor in after.items() if torch.equal(tensor, before[each])] == []


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("precision", "has_products", "expected"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("bf16", True, torch.bfloat16),
        ("bf16", False, torch.float32),
        ("fp32", True, torch.float32),
    ],
)
def test_a_cpu_computes_in_bf16_where_it_has_such_products(
    precision: str, has_products: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_recipe("smoke", [f"pretrain.precision={precision}"]).pretrain
    monkeypatch.setattr(parallelize, "has_fast_bf16", lambda device: device == GPU or has_products)

    assert compute_dtype(settings, CPU) == expected
    assert compute_dtype(settings, GPU) == (torch.float32 if precision == "fp32" else torch.bfloat16)
