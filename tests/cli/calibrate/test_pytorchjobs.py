import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from anadil.cli.calibrate.runs import RunSpec, run_spec, spec_from
from anadil.cli.runs.plan import job_manifests
from anadil.core.errors import RecipeError
from anadil.plan.calibration import device_of
from anadil.plan.instances import machine
from anadil.plan.layout import Layout, Work
from tests.kit.calibration import recipe
from tests.kit.crds import PYTORCHJOB, mistakes
from tests.kit.plans import ONE
from tests.kit.restricted import violations

WORK = Work(sequence_length=2_048)
P4D = machine("p4d.24xlarge")
LAYOUTS = [Layout(data=16, micro_batch_size=2), Layout(data=16, micro_batch_size=4, recompute="full")]
IMAGE = "registry.example/anadil/pretrain@sha256:" + "0" * 64


def jobs(nodes: int = 2) -> list[dict[str, Any]]:
    layouts = [replace(each, data=8 * nodes) for each in LAYOUTS]
    return job_manifests(specs(*layouts), P4D, nodes, IMAGE)


def specs(*layouts: Layout) -> list[RunSpec]:
    return [run_spec(each, recipe(), ONE, WORK, device_of(P4D)) for each in layouts]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("definition", PYTORCHJOB)
def test_the_operator_knows_every_field(definition: str, nodes: int) -> None:
    found = [mistake for job in jobs(nodes) for mistake in mistakes(definition, job)]

    assert found == []


@pytest.mark.parametrize("definition", PYTORCHJOB)
def test_a_field_that_the_operator_does_not_know_would_be_found(definition: str) -> None:
    job = jobs()[0]
    job["spec"]["nprocPerNode"] = 8
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["imagePullPolicies"] = "Always"

    found = " ".join(mistakes(definition, job))

    assert "8 is not of type 'string'" in found
    assert "imagePullPolicies" in found


def test_workers_meet_without_a_master() -> None:
    job = jobs()[0]

    spec = job["spec"]
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"], spec["nprocPerNode"]) == (2, "Never", "8")
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["rdzvBackend"]) == (2, 2, "c10d")
    # Without an id of its own, torchrun calls every job `none`.
    assert policy["rdzvId"] == job["metadata"]["name"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "None"  # else the log goes with the pod
    json.dumps(job)


def test_each_layout_has_a_name_that_is_short_and_stays() -> None:
    names = [job["metadata"]["name"] for job in jobs()]

    assert len(set(names)) == 2
    assert names == [job["metadata"]["name"] for job in jobs()]
    assert max(len(name) for name in names) <= 63 - len("-worker-999")


def test_a_pod_takes_all_devices_and_talks_over_efa_between_machines() -> None:
    two, one = (
        jobs(nodes)[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        for nodes in (2, 1)
    )

    assert two["name"] == "pytorch"
    for kind in ("requests", "limits"):
        assert two["resources"][kind]["nvidia.com/gpu"] == "8"
        assert two["resources"][kind]["vpc.amazonaws.com/efa"] == "4"
        assert "vpc.amazonaws.com/efa" not in one["resources"][kind]
    assert {"name": "FI_PROVIDER", "value": "efa"} in two["env"]
    assert {"name": "FI_PROVIDER", "value": "efa"} not in one["env"]


def test_a_pod_is_as_restricted_as_the_strictest_policy_asks() -> None:
    pod = jobs()[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    container = pod["containers"][0]

    assert violations(pod) == []
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    home = next(each["value"] for each in container["env"] if each["name"] == "HOME")
    assert set(mounts) == {home, "/tmp", "/dev/shm"}
    assert volumes[mounts["/dev/shm"]]["medium"] == "Memory"


def test_the_command_measures_that_layout_and_tells_nothing_else_of_the_recipe() -> None:
    for job, layout in zip(jobs(), LAYOUTS, strict=True):
        container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]

        spec = spec_from(container["args"][0])

        assert container["command"][-2:] == ["-m", "anadil.cli.calibrate"]
        assert (spec.layout, spec.shape, spec.work, spec.device) == (layout, ONE, WORK, "A100 40 GB")
        assert spec.trains == ("embeddings", "all")
        assert "secret" not in json.dumps(job)


def test_a_layout_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"DDP 8 takes 8 devices, 2 x p4d.24xlarge have 16"):
        job_manifests(specs(Layout(data=8)), P4D, 2, IMAGE)


def test_machines_without_a_known_number_of_efa_interfaces_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = replace(P4D, efa=None)

    with caplog.at_level(logging.WARNING):
        job_manifests(specs(Layout(data=16)), unknown, 2, IMAGE)

    assert "how many EFA interfaces it has is not known" in caplog.text
