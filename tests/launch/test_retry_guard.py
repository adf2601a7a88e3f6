"""What Kubeflow Pipelines does after a failure: it starts the same launcher again, whatever its exit code was."""

import dataclasses
import json
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import AnadilError, BudgetReached, RetryableError
from anadil.launch.kfp_steps import main, refuse_deterministic_retry
from anadil.launch.kubernetes.backend import KubernetesBackend
from anadil.launch.launcher import LaunchRequest, target_of, training_job
from anadil.recipe.load import load_recipe
from anadil.runtime.run_record import record_step, step_uri
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_server import refused
from tests.kit.following import PACE, QUICK, telling
from tests.kit.one_text import ONE_TEXT

RUN = "run-7"


def sealed(folder: Path, kind: str) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    artifact.seal(folder, kind=kind, origin={"stage": kind})
    return str(folder)


@pytest.fixture
def asked(tmp_path: Path) -> LaunchRequest:
    """Pre-training as a step of a run, all its artifacts on a volume."""
    recipe = load_recipe(
        "smoke",
        [
            ONE_TEXT,
            f"storage.root={tmp_path}",
            f"cluster.volumes=[{{claim: data, path: {tmp_path}}}]",
            "cluster.backend=pytorchjob",
            "cluster.nodes=2",
            "cluster.deadline_hours=0.00005",
        ],
    )
    inputs = {word: sealed(tmp_path / word / "1", word) for word in ("corpus", "tokenizer")}
    return LaunchRequest(stage="pretrain", recipe=recipe, inputs=inputs, run=RUN)


def step(asked: LaunchRequest, folder: Path) -> int:
    """The whole launcher of a pipeline's step; its exit code."""
    values = {"recipe": asked.recipe.model_dump_json(), "run": RUN, **asked.inputs}
    outputs = {"parameters": {}, "outputFile": str(folder / "output.json")}
    text = json.dumps({"inputs": {"parameterValues": values}, "outputs": outputs})
    return main(["pretrain", "--executor-input", text])


def ended(
    asked: LaunchRequest, code: int, message: str = "record 7 is no JSON", status: str = "failed"
) -> Path:
    """The word that an earlier try has left."""
    file = Path(step_uri(str(asked.recipe.storage.root), RUN, "pretrain"))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"stage": "pretrain", "status": status, "exit_code": code, "message": message})
    )
    return file


def test_a_deadline_is_paid_once_and_not_with_each_try_of_the_step(
    asked: LaunchRequest, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = training_job(asked, target_of(asked).target)

    def story(cluster: Cluster) -> None:
        cluster.start()

    with pytest.raises(BudgetReached), record_step(asked.recipe, RUN, "pretrain"), telling(story, cluster):
        KubernetesBackend("pytorchjob", pace=PACE, retry_policy=QUICK).run(job)
    cluster.wait(lambda: not cluster.jobs)
    file = Path(step_uri(str(tmp_path), RUN, "pretrain"))
    first = file.read_text()
    cluster.denied.add(("create", "pytorchjobs"))  # so that a step that does start one ends at once

    codes = [step(asked, tmp_path) for _ in range(3)]

    assert codes == [7, 7, 7]
    assert cluster.made == 1
    assert file.read_text() == first
    said = capsys.readouterr().err
    assert said.count("cluster.deadline_hours allows 5e-05 h") == 3
    assert f"no machine was started. Start a new run, or remove {file} to try it again" in said


@pytest.mark.parametrize("code", [2, 7, 70])
def test_a_failure_that_would_come_again_is_told_again(
    asked: LaunchRequest, cluster: Cluster, code: int
) -> None:
    ended(asked, code)

    with pytest.raises(AnadilError, match=r"^record 7 is no JSON; so ended an earlier try") as failed:
        refuse_deterministic_retry(asked, "pretrain")

    assert failed.value.exit_code == code


@pytest.mark.parametrize(
    ("code", "status"), [(138, "failed"), (1, "failed"), (143, "stopped"), (0, "finished")]
)
def test_what_may_go_better_is_tried_again(asked: LaunchRequest, code: int, status: str) -> None:
    ended(asked, code, status=status)

    refuse_deterministic_retry(asked, "pretrain")


def test_what_was_a_device_s_fault_or_is_told_of_another_step_or_run_is_tried_again(
    asked: LaunchRequest,
) -> None:
    refuse_deterministic_retry(asked, "pretrain")  # no word: the earlier launcher was killed
    ended(asked, 3)
    refuse_deterministic_retry(asked, "pretrain-extend")
    refuse_deterministic_retry(dataclasses.replace(asked, run="run-8"), "pretrain")
    ended(asked, 70, "worker 1 failed first: bug: AcceleratorError: CUDA error: uncorrectable ECC error")
    refuse_deterministic_retry(asked, "pretrain")


def test_a_word_that_cannot_be_read_does_not_stop_the_step(
    asked: LaunchRequest, caplog: pytest.LogCaptureFixture
) -> None:
    ended(asked, 3).write_text("{")

    refuse_deterministic_retry(asked, "pretrain")

    assert "how an earlier try ended is not known" in caplog.text


def test_a_job_that_has_outlived_its_launcher_is_followed_on(asked: LaunchRequest, cluster: Cluster) -> None:
    ended(asked, 70, "bug: KeyError: 'x'")
    job = training_job(asked, target_of(asked).target)
    KubernetesBackend("pytorchjob", pace=PACE, retry_policy=QUICK).run(job, detach=True)
    cluster.run(0, 1)

    refuse_deterministic_retry(asked, "pretrain")


def test_an_artifact_that_is_there_is_taken(asked: LaunchRequest, cluster: Cluster) -> None:
    ended(asked, 3, "no artifact there")
    wanted = target_of(asked)
    folder = Path(wanted.target)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    artifact.seal(folder, kind="model", origin=wanted.origin)

    refuse_deterministic_retry(asked, "pretrain")

    assert cluster.requests == []


@pytest.mark.parametrize("leaving", [False, True])
def test_a_job_that_has_failed_or_is_being_deleted_does_not_go_on(
    asked: LaunchRequest, cluster: Cluster, *, leaving: bool
) -> None:
    ended(asked, 3)
    backend = KubernetesBackend("pytorchjob", pace=PACE, retry_policy=QUICK)
    job = training_job(asked, target_of(asked).target)
    backend.run(job, detach=True)
    cluster.run(0, 1)
    if leaving:
        cluster.deletion_s = 30.0
        backend.stop(job.name)
    else:
        cluster.fail()

    with pytest.raises(AnadilError, match="record 7 is no JSON"):
        refuse_deterministic_retry(asked, "pretrain")

    assert backend.status(job.name).state == ("stopped" if leaving else "failed")


def test_a_cluster_that_does_not_answer_leaves_the_earlier_word(
    asked: LaunchRequest, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ended(asked, 3)
    first = file.read_text()
    cluster.denied.add(("create", "pytorchjobs"))
    cluster.fail_next("GET", "pytorchjobs/", 9, refused(500, "busy", Retry_After="0"))

    code = step(asked, tmp_path)

    assert code == RetryableError.exit_code
    assert file.read_text() == first
    assert "run the same command again" in capsys.readouterr().err
