"""The log of a real run: the launcher finds its steps, and a doubtful setting is told."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.core import log as logs
from anadil.core import progress
from anadil.launch.kubernetes.pod_log import step_in_line
from anadil.pretrain.run import run
from anadil.runtime.metric_table import METRICS, MetricSpec, complete, values_for
from anadil.runtime.planned_artifact import log_figures
from tests.kit.pretraining import make_job, make_recipe

SOMETIMES = {"mfu", "peak_memory_bytes", "straggler_ratio", "cost_usd", "validation_bits_per_byte"}
"""On a GPU, in several processes, where there is a price or a held-out part."""


def test_a_run_s_log_tells_the_launcher_of_each_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    job = make_job(tmp_path, make_recipe(base))
    with contextlib.redirect_stderr(io.StringIO()) as written:
        logs.set_up("pretrain", container=True)
        log_figures(run(job))
    lines = written.getvalue().splitlines()

    assert len([line for line in lines if '"msg": "pre-training: ' in line]) == 12
    told = [line for line in lines if '"msg": "step=' in line]
    assert len(told) == 12
    assert all(f" {name}=" in line for line in told for name in ("tokens_per_s", "data_wait_s", "goodput"))
    # Each step is told twice: as progress, and with its figures.
    assert [step for line in lines if (step := step_in_line(line))] == [
        n for n in range(1, 13) for _ in range(2)
    ]
    written = json.loads((job.out / "training.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert [*written] == [
        each.name
        for each in METRICS
        if "jsonl" in each.sinks
        and "pretrain" in (each.stages or "pretrain")
        and each.name not in SOMETIMES
        and "/" not in each.name
    ]


def test_a_metric_without_a_row_is_refused_and_one_that_follows_from_others_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived = replace(
        MetricSpec(name="half", doc="Half of the loss", value=lambda line: line["loss"] / 2), sinks=("log",)
    )
    monkeypatch.setattr("anadil.runtime.metric_table.METRICS", (*METRICS, derived))
    monkeypatch.setattr(
        "anadil.runtime.metric_table.BY_NAME", {each.name: each for each in (*METRICS, derived)}
    )

    line = complete({"loss": 3.0, "step": 1})

    assert line == {"step": 1, "loss": 3.0, "half": 1.5}
    assert values_for("log", line) == line
    assert values_for("jsonl", line) == {"step": 1, "loss": 3.0}
    assert complete({"step": 0}) == {"step": 0}  # of the base
    with pytest.raises(AssertionError, match="without a row in the table: \\['colour'\\]"):
        complete({"colour": 1.0})


def test_a_sequence_beyond_the_base_models_positions_and_too_large_a_batch_are_said(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(base, sequence_length=300, phases=[{"trains": "all", "steps": 1, "lr": 1e-3}])

    run(make_job(tmp_path, recipe))

    assert "sequence_length: 300 tokens, but base.model was made for at most 256" in caplog.text
    assert f"batch_size: {recipe.pretrain.batch_size} sequences, and the corpus has only " in caplog.text
