"""Traces of training steps."""

import json
from pathlib import Path

import pytest
import torch

from anadil.pretrain.metrics.profiler import PROFILE, TRACE, profiled
from anadil.pretrain.run import run
from tests.kit.pretraining import SHORT, make_job, make_recipe

CPU = torch.device("cpu")


def step() -> None:
    weight = torch.ones(30, 8, requires_grad=True)
    (torch.ones(5, 8) @ weight.T).sum().backward()  # type: ignore[no-untyped-call]


def steps_of(folder: Path) -> set[str]:
    events = json.loads((folder / TRACE).read_text())["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("ProfilerStep")}


def test_only_the_steps_that_are_asked_for_are_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 2, 3, CPU) as tracing:
        for _ in range(8):
            step()
            tracing.step()

    assert steps_of(tmp_path) == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}


def test_training_that_ends_early_leaves_what_was_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 1, 50, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert {"ProfilerStep#1", "ProfilerStep#2"} <= steps_of(tmp_path)


@pytest.mark.parametrize(("first", "num", "warnings"), [(10, 2, 1), (3, 1, 1)])
def test_where_no_step_is_traced_nothing_is_written_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, num: int, warnings: int
) -> None:
    with profiled(tmp_path, first, num, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert list(tmp_path.iterdir()) == []
    assert caplog.text.count("pretrain.profile_steps: nothing is traced") == warnings


@pytest.mark.slow
def test_of_a_run_with_few_steps_the_last_ones_are_traced(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, profile_steps=3, phases=SHORT))

    run(job)

    assert steps_of(job.out / PROFILE) == {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"}
