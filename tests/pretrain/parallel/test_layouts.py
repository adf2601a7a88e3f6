"""Every way to share a model trains as one process does, and a run goes on in another layout."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import Stopped
from anadil.model.load import load_model
from anadil.pretrain.run import run
from tests.kit.pretraining import (
    SignalAt,
    losses,
    make_corpus,
    make_job,
    make_model,
    make_recipe,
    make_tokenizer_artifact,
    run_in_child,
    run_in_several,
)

TWO: list[dict[str, int]] = [
    {"shard": 2},
    {"shard": 2, "prefetch": 2, "reshard": False},
    {"shard": 2, "context": 2},
    {"context": 2},
    {"tensor": 2},
    {"pipeline": 2},
]
FOUR: list[dict[str, int]] = [
    {"shard": 4},
    {"shard": 2},
    {"shard": 2, "tensor": 2},
    {"shard": 2, "context": 2, "tensor": 2},
    {"shard": 2, "pipeline": 2},
    {"shard": 2, "pipeline": 2, "prefetch": 0, "reshard": False},
    {"pipeline": 2},
    {"tensor": 2, "pipeline": 2},
    {"context": 2, "pipeline": 2},
    {"context": 2, "tensor": 2},
]
STAGES = {"micro_batch_size": 1, "batch_size": 8}
"""A pipeline needs as many passes as stages."""
PHASES = [{"trains": "embeddings", "steps": 2, "lr": 0.01}, {"trains": "all", "steps": 4, "lr": 0.005}]


def name_of(degrees: dict[str, int]) -> str:
    return "-".join(f"{name}{degree}" for name, degree in degrees.items())


@pytest.fixture(name="untied")
def _untied(tmp_path: Path) -> Path:
    make_corpus(tmp_path / "corpus")
    make_tokenizer_artifact(tmp_path / "tokenizer")
    return make_model(tmp_path / "model", tied=False)


def trains_alike(tmp_path: Path, model: Path, processes: int, **settings: Any) -> None:
    alone = make_recipe(model, **{**settings, "parallelism": {}})
    run(make_job(tmp_path, alone, "one"))

    codes = run_in_several(make_job(tmp_path, make_recipe(model, **settings), "many"), processes)

    assert codes == [0] * processes
    assert losses(tmp_path / "many/out") == pytest.approx(losses(tmp_path / "one/out"), rel=1e-5)
    one, many = (load_model(tmp_path / name / "out") for name in ("one", "many"))
    for (name, expected), (_, found) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        # Not each weight: where a gradient is all rounding, Adam makes whole steps of it.
        assert (found - expected).norm() < 1e-3 * expected.norm(), name


@pytest.mark.parametrize("degrees", TWO, ids=name_of)
def test_two_processes_train_as_one_whatever_they_share(
    tmp_path: Path, untied: Path, degrees: dict[str, int]
) -> None:
    trains_alike(tmp_path, untied, 2, **STAGES, phases=PHASES, parallelism=degrees)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", FOUR, ids=name_of)
def test_four_processes_train_as_one_whatever_they_share(
    tmp_path: Path, untied: Path, degrees: dict[str, int]
) -> None:
    trains_alike(tmp_path, untied, 4, **STAGES, phases=PHASES, parallelism=degrees)


def test_a_tied_model_is_sharded_without_losing_its_tie(tmp_path: Path, base: Path) -> None:
    settings: dict[str, Any] = {
        "parallelism": {"shard": 2},
        "activation_checkpointing": "full",
        "batch_size": 5,
    }
    trains_alike(tmp_path, base, 2, **settings)

    assert load_model(tmp_path / "many/out").config.tie_word_embeddings
    assert json.loads((tmp_path / "many/out/training.json").read_text())["parallelism"]["shard"] == 2


def test_a_run_goes_on_in_another_layout(tmp_path: Path, untied: Path) -> None:
    run(make_job(tmp_path, make_recipe(untied, **STAGES), "whole"))

    first = run_in_child(
        make_job(tmp_path, make_recipe(untied, **STAGES), tracker=SignalAt(6, signal.SIGTERM))
    )
    then = run_in_several(make_job(tmp_path, make_recipe(untied, **STAGES, parallelism={"shard": 2})), 2)

    assert (first, then) == (Stopped.exit_code, [0, 0])
    assert losses(tmp_path / "a/out") == pytest.approx(losses(tmp_path / "whole/out"), rel=1e-5)
