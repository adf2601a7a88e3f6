import logging
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.launch.kubernetes.manifests import checked_name, render_pytorchjob, render_trainjob
from tests.kit.crds import PYTORCHJOB, TRAINJOB, mistakes
from tests.kit.jobs import container, job, worker
from tests.kit.restricted import violations
from tests.launch.golden import FOLDER, GOLDEN, cpu, hyperpod, japanese

RENDERED = {
    "cpu": render_pytorchjob(cpu()),
    "two nodes": render_pytorchjob(cpu("cluster.nodes=2")),
    "hyperpod": render_pytorchjob(hyperpod()),
    "efa": render_pytorchjob(japanese()),
    "finetune": render_pytorchjob(job("azerbaijani-1b", stage="finetune")),
}


@pytest.mark.parametrize("definition", PYTORCHJOB)
@pytest.mark.parametrize("name", RENDERED)
def test_old_and_new_operators_know_every_field(name: str, definition: str) -> None:
    assert mistakes(definition, RENDERED[name]) == []


def test_the_wait_for_peers_is_one_that_torchrun_reads() -> None:
    rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    conf = {each["key"]: each["value"] for each in RENDERED["cpu"]["spec"]["elasticPolicy"]["rdzvConf"]}
    parameters = pytest.importorskip("torch.distributed.elastic.rendezvous").RendezvousParameters(
        backend="c10d", endpoint="a:1", run_id="b", min_nodes=1, max_nodes=1, **conf
    )

    assert rendezvous._get_timeout(parameters, "join").total_seconds() == 1_800
    assert parameters.get_as_int("read_timeout") == 600


def test_every_pod_may_restart_as_often_as_the_recipe_says() -> None:
    spec = render_pytorchjob(cpu("cluster.nodes=2", "cluster.restarts=3"))["spec"]

    # The operator adds up the restarts of both pods, and fails the job when the limit is reached.
    assert spec["runPolicy"]["backoffLimit"] == 3 * 2 + 1
    assert spec["elasticPolicy"]["maxRestarts"] == 3
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    manifest = render_pytorchjob(
        cpu("cluster.hyperpod=true", "cluster.restarts=0", "cluster.deadline_hours=0.0001")
    )
    none = manifest["spec"]
    assert (none["runPolicy"]["backoffLimit"], none["elasticPolicy"]["maxRestarts"]) == (0, 0)
    assert none["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
    assert none["runPolicy"]["activeDeadlineSeconds"] == 1  # in whole seconds
    assert not [name for name in manifest["metadata"]["annotations"] if name.startswith("sagemaker")]


def test_kueue_reads_the_topology_of_the_pods_and_not_of_the_job() -> None:
    manifest = render_pytorchjob(hyperpod())

    name, value = "kueue.x-k8s.io/podset-preferred-topology", "topology.k8s.aws/network-node-layer-3"
    assert worker(manifest)["metadata"]["annotations"] == {name: value}
    assert name not in manifest["metadata"]["annotations"]
    assert "annotations" not in worker(render_pytorchjob(cpu()))["metadata"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["cluster.topology=rack"], r"cluster\.topology: rack, but no cluster\.queue; only Kueue"),
        (["cluster.priority=high"], r"cluster\.priority: high, but no cluster\.queue"),
        (["cluster.hyperpod=true", "cluster.namespace=my-hyperpod"], r"cluster\.namespace: .* only in `kubeflow`"),
    ],
)  # fmt: skip
def test_what_queues_and_hyperpod_would_pass_over_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        render_pytorchjob(cpu(*settings))
    with pytest.raises(RecipeError, match=r"label anadil\.dev/run: 'my run!' is no label .*--run"):
        render_pytorchjob(job("smoke", run="my run!"))


@pytest.mark.parametrize("namespace", ["kubeflow", "hyperpod-ns-a"])
def test_hyperpod_s_own_namespaces_are_taken(namespace: str) -> None:
    assert render_pytorchjob(cpu("cluster.hyperpod=true", f"cluster.namespace={namespace}"))


@pytest.mark.parametrize("name", ["a" * 53, "1-job", "a.b"])
def test_a_name_that_pods_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="use 52 characters at most, small letters, digits"):
        checked_name(name)


def test_checkpoints_that_a_new_pod_would_not_find_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        render_pytorchjob(hyperpod())
        render_pytorchjob(cpu())
    assert caplog.text == ""

    with caplog.at_level(logging.WARNING):
        render_pytorchjob(job("smoke"))

    assert "a pod on another node starts over; name a directory of a shared volume" in caplog.text


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

    expected = worker(render_pytorchjob(JOBS[name]))
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


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_manifest_is_the_kept_one(path: Path) -> None:
    assert GOLDEN[path]() == path.read_text(encoding="utf-8"), "run `make golden` and read the difference"


def test_no_kept_manifest_is_left_over() -> None:
    ours = {path for path in FOLDER.glob("*.yaml") if not path.stem.startswith("sagemaker")}

    assert ours == set(GOLDEN)
