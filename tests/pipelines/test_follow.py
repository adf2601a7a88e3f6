from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import GateError, PreflightError
from anadil.recipe.load import load_recipe
from anadil.runtime.run_record import record_step
from anadil_pipelines import submit
from anadil_pipelines.server import Kubeflow, follow
from tests.kit.fake_kubeflow import FakeKubeflow


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "fsx")


@pytest.fixture
def followed(kubeflow: FakeKubeflow, recipe_file: str, root: str) -> tuple[Kubeflow, Any, str]:
    settings = [f"storage.root={root}", "cluster.volumes=[{claim: fsx, path: %s}]" % Path(root)]  # noqa: UP031  braces
    recipe = load_recipe(recipe_file, settings)
    server = Kubeflow(kubeflow.url)
    run = submit.submit(server, submit.prepare(recipe, submit.SubmitOptions(name="first")))
    return server, recipe, run


def test_the_end_of_a_run_is_waited_for(
    kubeflow: FakeKubeflow, followed: tuple[Kubeflow, Any, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    kubeflow.states = ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    tasks = [{"display_name": "clean", "state": "RUNNING"}, {"display_name": "root", "state": "RUNNING"}]
    kubeflow.runs[0]["run_details"] = {"task_details": tasks}
    kubeflow.failures = [("GET /runs/.*", 503)]

    code = follow(*followed, poll_s=0)

    assert code == 0
    assert caplog.messages.count("clean: running") == 1
    assert "failed for now (503" in caplog.text
    assert kubeflow.states == []


def test_a_failed_run_has_the_exit_code_of_its_step(
    kubeflow: FakeKubeflow, followed: tuple[Kubeflow, Any, str], caplog: pytest.LogCaptureFixture
) -> None:
    kubeflow.states = ["FAILED"]
    with pytest.raises(PreflightError, match=r"evicted, or its pod never started\); see http://.*#/runs"):
        follow(*followed, poll_s=0)
    kubeflow.states = ["FAILED"]
    _, recipe, run = followed
    with record_step(recipe, run, "clean") as step:
        step.uri = "s3://bucket/corpus/1"
    with pytest.raises(GateError), record_step(recipe, run, "evaluate"):
        raise GateError("the gate is closed")

    code = follow(*followed, poll_s=0)

    assert code == 6
    assert "evaluate: the gate is closed" in caplog.messages


def test_a_cancelled_run_can_be_resumed(kubeflow: FakeKubeflow, followed: tuple[Kubeflow, Any, str]) -> None:
    kubeflow.states = ["CANCELING", "CANCELED"]

    assert follow(*followed, poll_s=0) == 143


@pytest.mark.parametrize(
    ("first", "outcome", "code", "words"),
    [
        ("new", "champion", 0, "its model: champion"),
        ("new", "refused", 6, "its model: refused"),
        ("nothing", "", 0, "no new text since the champion"),
    ],
)
def test_a_retraining_ends_as_the_command_does(
    kubeflow: FakeKubeflow, followed: tuple[Kubeflow, Any, str], caplog: pytest.LogCaptureFixture, first: str,
    outcome: str, code: int, words: str,
) -> None:  # fmt: skip
    caplog.set_level("INFO")
    kubeflow.states = ["RUNNING", "SUCCEEDED"]
    kubeflow.runs[0]["run_details"] = {"task_details": [{"display_name": "retrain", "state": "RUNNING"}]}
    server, recipe, run = followed
    recipe = submit.with_retrain(recipe)
    for stage, figures in (("retrain", {"state": first}), ("release", {"outcome": outcome})):
        if any(figures.values()):
            with record_step(recipe, run, stage) as step:
                step.uri, step.figures = "s3://bucket/1", {**figures}

    assert follow(server, recipe, run, retrains=True, poll_s=0) == code

    assert words in caplog.text
    assert "retrain: running" in caplog.messages
