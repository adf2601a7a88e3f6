import logging
from typing import Any

import pytest

from anadil.launch.manifests import training_jobs
from anadil.launch.manifests.training_jobs import render_trainjob
from tests.kit.crds import TRAINJOB, mistakes
from tests.kit.jobs import container, job, worker
from tests.kit.restricted import violations
from tests.launch.golden import cpu, hyperpod, japanese

JOBS = {
    "cpu": cpu("cluster.nodes=2"),
    "hyperpod": hyperpod(),
    "efa": japanese(),
    "finetune": job("azerbaijani-1b", stage="finetune"),
}


def patched(manifest: dict[str, Any]) -> Any:
    """The pod template that the job lays over the runtime's."""
    [patch] = manifest["spec"]["runtimePatches"]
    [replicated] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    return replicated["template"]["spec"]["template"]


@pytest.mark.parametrize("name", JOBS)
def test_the_trainer_knows_every_field(name: str) -> None:
    assert mistakes(TRAINJOB, render_trainjob(JOBS[name])) == []


@pytest.mark.parametrize("name", JOBS)
def test_the_pod_is_the_one_of_a_pytorchjob(name: str) -> None:
    manifest = render_trainjob(JOBS[name])

    expected = worker(training_jobs.render_pytorchjob(JOBS[name]))
    pod, trainer = patched(manifest), manifest["spec"]["trainer"]
    for field in ("securityContext", "volumes", "affinity", "tolerations", "terminationGracePeriodSeconds"):
        assert pod["spec"].get(field) == expected["spec"].get(field), field
    assert pod["metadata"] == expected["metadata"]
    for field in ("image", "args", "env"):
        assert trainer[field] == container(expected)[field], field
    assert trainer["resourcesPerNode"] == container(expected)["resources"]
    assert container(pod)["volumeMounts"] == container(expected)["volumeMounts"]
    # As the trainer puts them together.
    together = {**pod["spec"], "containers": [{**container(pod), "image": trainer["image"]}]}
    assert violations(together) == []


def test_the_trainer_is_told_how_many_and_sets_torchrun_s_variables_itself() -> None:
    trainer = render_trainjob(hyperpod())["spec"]["trainer"]

    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    # Both are refused by its webhook.
    assert not [each for each in trainer["env"] if each["name"].startswith("PET_")]
    assert "env" not in container(patched(render_trainjob(hyperpod())))


def test_hyperpod_resumes_no_trainjob_which_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        manifest = render_trainjob(hyperpod())

    assert "HyperPod does not resume a TrainJob; use the backend pytorchjob" in caplog.text
    assert not [name for name in manifest["metadata"]["annotations"] if name.startswith("sagemaker")]
