"""The log of a real run: HyperPod's patterns find their lines, and a doubtful setting is told."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from anadil.core import log as logs
from anadil.core import progress
from anadil.launch.manifests.log_rules import TOO_HIGH, log_rules
from anadil.pretrain.run import run
from anadil.runtime import execute
from tests.kit.pretraining import make_job, make_recipe


def test_a_run_s_log_is_watched_from_its_first_step_to_its_last_line(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    job = make_job(tmp_path, make_recipe(base))
    with contextlib.redirect_stderr(io.StringIO()) as written:
        logs.set_up("pretrain", container=True)
        execute._say_figures(run(job))
    lines = written.getvalue().splitlines()

    steps, losses = (
        [match for line in lines if (match := re.search(rule["logPattern"], line))]
        for rule in log_rules("pretrain")
    )

    assert len([line for line in lines if '"msg": "pre-training: ' in line]) == 12
    assert len(losses) == 12
    told = [line for line in lines if '"msg": "step=' in line]
    assert len(told) == 12
    assert all(f" {name}=" in line for line in told for name in ("tokens_per_s", "data_wait_s", "goodput"))
    assert all(0 < float(loss[1]) < TOO_HIGH for loss in losses)
    assert len(steps) >= 12  # and encoding a larger corpus, which comes before
    # The sequences, both phases and the last line are none of it.
    assert len(lines) - len(steps) >= 4
    for rule in log_rules("pretrain"):
        stops = [bool(re.search(rule["stopPattern"], line)) for line in lines]
        assert stops == [False] * (len(lines) - 1) + [True]


def test_a_sequence_beyond_the_base_models_positions_and_too_large_a_batch_are_said(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(base, sequence_length=300, phases=[{"trains": "all", "steps": 1, "lr": 1e-3}])

    run(make_job(tmp_path, recipe))

    assert "sequence_length: 300 tokens, but base.model was made for at most 256" in caplog.text
    assert f"batch_size: {recipe.pretrain.batch_size} sequences, and the corpus has only " in caplog.text
