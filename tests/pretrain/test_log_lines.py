"""The log of a real run: the launcher finds its steps, and a doubtful setting is told."""

import contextlib
import io
from pathlib import Path

import pytest

from anadil.core import log as logs
from anadil.core import progress
from anadil.launch.throughput_alert import step_in_line
from anadil.pretrain.run import run
from anadil.runtime import execute
from tests.kit.pretraining import make_job, make_recipe


def test_a_run_s_log_tells_the_launcher_of_each_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    job = make_job(tmp_path, make_recipe(base))
    with contextlib.redirect_stderr(io.StringIO()) as written:
        logs.set_up("pretrain", container=True)
        execute._say_figures(run(job))
    lines = written.getvalue().splitlines()

    assert len([line for line in lines if '"msg": "pre-training: ' in line]) == 12
    told = [line for line in lines if '"msg": "step=' in line]
    assert len(told) == 12
    assert all(f" {name}=" in line for line in told for name in ("tokens_per_s", "data_wait_s", "goodput"))
    # Each step is told twice: as progress, and with its figures.
    assert [step for line in lines if (step := step_in_line(line))] == [
        n for n in range(1, 13) for _ in range(2)
    ]


def test_a_sequence_beyond_the_base_models_positions_and_too_large_a_batch_are_said(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(base, sequence_length=300, phases=[{"trains": "all", "steps": 1, "lr": 1e-3}])

    run(make_job(tmp_path, recipe))

    assert "sequence_length: 300 tokens, but base.model was made for at most 256" in caplog.text
    assert f"batch_size: {recipe.pretrain.batch_size} sequences, and the corpus has only " in caplog.text
