import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from anadil.cli.calibrate.runs import results_in, run_spec
from anadil.cli.calibrate.worker import is_out_of_memory, random_model, random_tokens, run_measurement
from anadil.core.errors import PreflightError, Stopped
from anadil.pretrain.data.packing import batch_of
from anadil.pretrain.trainer import Step, Trainer
from tests.kit.calibration import LAYOUT, SHAPE, WORK, recipe

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="expects a machine without a GPU")
SPEC = run_spec(LAYOUT, recipe("embeddings", "all"), SHAPE, WORK, "CPU, of a test", steps=1)


def test_a_run_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_measurement(SPEC)

    out = capsys.readouterr().out
    assert (code, out.count("\n")) == (0, 1)
    assert [(each.status, each.work.trains) for each in results_in(out)] == [
        ("ok", "embeddings"),
        ("ok", "all"),
    ]


def test_bf16_state_is_measured_too(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_measurement(replace(SPEC, work=replace(WORK, state="bf16", compute="bf16"), trains=("all",)))

    assert code == 0
    assert [each.work.state for each in results_in(capsys.readouterr().out)] == ["bf16"]


def test_too_little_memory_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    # More than an address can name, so that no system promises it.
    code = run_measurement(replace(SPEC, shape=replace(SHAPE, hidden=10**6, vocabulary=2 * 10**9)))

    found = results_in(capsys.readouterr().out)
    assert code == PreflightError.exit_code
    assert [each.status for each in found] == ["out of memory", "out of memory"]


def test_sigterm_ends_a_run_without_a_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def interrupted(trainer: Trainer, number: int) -> Step:
        # In the loop: a library that is still being loaded may take the error for one of its own.
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(trainer, number)

    monkeypatch.setattr(Trainer, "step", interrupted)

    with pytest.raises(Stopped):
        run_measurement(replace(SPEC, steps=1_000_000))

    assert capsys.readouterr().out == ""


def test_a_run_that_is_impossible_here_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PreflightError, match="Liger's kernels need a GPU"):
        run_measurement(replace(SPEC, work=replace(WORK, kernels="liger")))

    assert capsys.readouterr().out == ""


def test_a_layout_takes_as_many_processes_as_devices() -> None:
    with pytest.raises(
        PreflightError, match=r"takes 2 devices but was started with 1 process; start as many"
    ):
        run_measurement(replace(SPEC, layout=replace(LAYOUT, data=2)))


def test_only_a_lack_of_memory_counts_as_one() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(RuntimeError("NCCL error: Cuda failure 2 'out of memory'"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape '[2]' is invalid for input of size 3"))


def test_the_model_has_the_sizes_of_the_shape_and_is_the_same_each_time() -> None:
    one, other = (random_model(SHAPE, WORK, CPU, seed=1) for _ in range(2))

    assert sum(parameter.numel() for parameter in one.parameters()) == SHAPE.parameters
    assert all(
        torch.equal(mine, yours) for mine, yours in zip(one.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize(("packed", "documents"), [(True, 4), (False, 1)])
def test_random_tokens_fill_their_sequences(packed: bool, documents: int) -> None:
    tokens = random_tokens(SHAPE, replace(WORK, packed=packed), 6, seed=1)

    batch = batch_of(tokens, np.arange(6))
    assert (tokens.num_sequences, tokens.waste) == (6, 0)
    assert (batch.position_ids == 0).sum(dim=1).tolist() == [documents] * 6
    assert int(batch.input_ids.max()) < SHAPE.vocabulary
