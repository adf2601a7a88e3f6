import copy
import logging
from dataclasses import replace
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.estimate.instances import machine
from anadil.launch.job import HOME, SPEC_ANNOTATION, TrainingJob
from anadil.launch.kubernetes.manifests import (
    Container,
    container_of,
    most_for_pods,
    requirements,
    template_of,
    with_hash,
)
from anadil.recipe.cluster import Resources
from anadil.recipe.load import load_recipe
from tests.kit.jobs import container, environment, job
from tests.launch.golden import cpu, hyperpod, japanese

HEALTH = "sagemaker.amazonaws.com/node-health-status"


def template(training: TrainingJob) -> dict[str, Any]:
    return template_of(training, container_of(training, "pytorch"))


JOBS = {
    "cpu": cpu(),
    "hyperpod": hyperpod(),
    "efa": japanese(),
    "finetune": job("azerbaijani-1b", stage="finetune"),
}


@pytest.mark.parametrize("version", ["1.29", "1.34"])
@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    made = template(JOBS[name])

    pod = {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {"name": "a", **made["metadata"]}}
    validate(pod, version, strict=True)

    pod["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(Exception, match="imagePullPolicies"):
        validate(pod, version, strict=True)


def test_claims_may_be_read_only_and_have_dots_in_their_names() -> None:
    made = template(job("smoke", "cluster.volumes=[{claim: corpus.az, path: /data, read_only: true}]"))

    assert container(made)["volumeMounts"][-1] == {"name": "claim-0", "mountPath": "/data", "readOnly": True}
    assert made["spec"]["volumes"][-1]["persistentVolumeClaim"] == {
        "claimName": "corpus.az",
        "readOnly": True,
    }


def test_a_claim_takes_the_place_of_the_pod_s_own_directory() -> None:
    made = template(job("smoke", f"cluster.volumes=[{{claim: nvme, path: {HOME}}}]"))

    paths = [each["mountPath"] for each in container(made)["volumeMounts"]]
    assert sorted(paths) == sorted(["/tmp", "/dev/shm", HOME])
    assert "home" not in [each["name"] for each in made["spec"]["volumes"]]


def test_efa_is_set_up_where_it_is_asked_for_and_nowhere_else() -> None:
    many, one, cpus = (environment(template(each)) for each in (japanese(), JOBS["finetune"], cpu()))

    assert (many["FI_PROVIDER"], many["FI_EFA_USE_HUGE_PAGE"]) == ("efa", "0")
    assert "FI_PROVIDER" not in one
    # Known to make EFA slower or to hang it.
    assert not {"NCCL_PROTO", "NCCL_BUFFSIZE", "FI_EFA_FORK_SAFE"} & set(many)
    assert not [name for name in cpus if name.startswith(("NCCL", "FI_", "TORCH_"))]


def test_labels_and_taints_of_nodes_are_those_of_the_recipe_but_for_unhealthy_ones() -> None:
    overrides = ("cluster.node_selector={pool: gpu}", "cluster.tolerations=[{key: nvidia.com/gpu}]")

    spec = template(job("smoke", *overrides))["spec"]

    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    with pytest.raises(RecipeError, match="node-health-status keeps pods off nodes that are checked"):
        template(job("smoke", f"cluster.tolerations=[{{key: {HEALTH}}}]"))


def test_a_stop_leaves_time_to_save() -> None:
    from anadil.runtime.torchrun import SHUTDOWN_S

    assert template(cpu())["spec"]["terminationGracePeriodSeconds"] > SHUTDOWN_S


def test_the_recipe_s_own_image_and_command_are_used() -> None:
    digest = "sha256:" + "a" * 64

    made = template(job("smoke", f"cluster.digests={{pretrain: '{digest}'}}"))

    assert container(made)["image"] == f"anadil/pretrain@{digest}"
    assert "command" not in container(made)
    recipe = container(made)["args"][1]
    assert load_recipe(recipe).cluster.digests == {"pretrain": digest}


def test_kubernetes_replaces_nothing_in_arguments() -> None:
    training = job("smoke")

    made = template_of(training, Container(name="a", image="b", arguments=("$(HOME)", "5 $$")))

    # Kubernetes makes $ of $$, and would put the home directory for $(HOME).
    assert container(made)["args"] == ["$$(HOME)", "5 $$$$"]


def test_the_hash_is_of_everything_but_annotations() -> None:
    manifest = {"kind": "A", "metadata": {"name": "x", "annotations": {"a": "1"}}, "spec": {"b": 1, "c": 2}}
    other_order = {"spec": {"c": 2, "b": 1}, "metadata": {"name": "x"}, "kind": "A"}
    changed = copy.deepcopy(manifest)
    changed["spec"] = {"b": 1, "c": 3}

    made = with_hash(manifest)

    annotations = made["metadata"]["annotations"]
    assert annotations["a"] == "1"
    # printf '{"kind":"A","metadata":{"name":"x"},"spec":{"b":1,"c":2}}' | sha256sum
    digest = "e76a49a3bf2adafee7eccb0a0c03f79be235a7dd73e5a0955c8b474ae0b9ecf3"
    assert annotations[SPEC_ANNOTATION] == digest
    assert with_hash(other_order)["metadata"]["annotations"][SPEC_ANNOTATION] == digest
    assert with_hash(changed)["metadata"]["annotations"][SPEC_ANNOTATION] != digest
    assert with_hash(made) == made


P4D = machine("p4d.24xlarge")
P5 = machine("p5.48xlarge")
EFA, GPU = "vpc.amazonaws.com/efa", "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("name", "cpus", "gib"),
    [
        # The most that AWS's own command line asks, by its rules of reservation.
        ("p4d.24xlarge", 89, 1056),
        ("p5.48xlarge", 179, 1890),
        ("g5.xlarge", 3, 11),
    ],
)
def test_a_node_keeps_some_of_itself(name: str, cpus: int, gib: int) -> None:
    assert most_for_pods(machine(name)) == (cpus, gib)


@pytest.mark.parametrize(
    ("machine", "gpus", "nodes", "own", "requests"),
    [
        (P5, 8, 32, Resources(), {"cpu": "179", "memory": "1890Gi", GPU: "8", EFA: "32"}),
        (P5, 8, 1, Resources(), {"cpu": "179", "memory": "1890Gi", GPU: "8"}),
        (P4D, 8, 1, Resources(cpu="16", memory="200Gi"), {"cpu": "16", "memory": "200Gi", GPU: "8"}),
        (None, 2, 1, Resources(), {"cpu": "8", "memory": "32Gi", GPU: "2"}),
        (None, 0, 2, Resources(), {"cpu": "500m", "memory": "2Gi"}),
    ],
    ids=["all with EFA", "one node without", "the recipe's own", "no machine named", "no GPU"],
)
def test_what_a_pod_asks_for(
    machine: Any, gpus: int, nodes: int, own: Resources, requests: dict[str, str]
) -> None:
    needs = requirements(machine, gpus, nodes, own, key="cluster.resources.pretrain")

    assert needs["requests"] == requests
    limits = {key: value for key, value in requests.items() if key != "cpu"}
    assert needs["limits"] == (limits if gpus else {"memory": "4Gi"})


def test_a_part_of_the_gpus_takes_that_part_of_the_node_and_no_efa(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        needs = requirements(P4D, 1, 2)

    assert needs["requests"] == {"cpu": "11", "memory": "132Gi", GPU: "1"}
    assert "1 of 8 GPUs of a p4d.24xlarge: a pod that shares its node gets no EFA" in caplog.text


def test_a_number_of_interfaces_that_is_not_known_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        needs = requirements(replace(P4D, efa=None), 8, 2)

    assert EFA not in needs["limits"]
    assert "p4d.24xlarge: how many EFA interfaces it has is not known" in caplog.text


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Resources(gpus=16), r"cluster\.resources\.pretrain\.gpus: 16, but a p4d\.24xlarge has 8"),
        (Resources(cpu="96"), r"pretrain\.cpu: 96, but a p4d\.24xlarge leaves about 89 CPUs and 1056Gi"),
        (Resources(memory="2Ti"), r"pretrain\.memory: 2Ti, but .* the job would wait forever"),
    ],
)
def test_more_than_a_node_has_is_refused(asked: Resources, text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        requirements(P4D, 8, 1, asked, key="cluster.resources.pretrain")
