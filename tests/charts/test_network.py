"""Network policies: whom they cover, by labels that pods really have, and what they let through."""

from typing import Any

import pytest

from anadil.launch.job import TrainingJob
from anadil.launch.kubernetes.manifests import METRICS_PORT
from anadil.recipe.load import parse_recipe
from tests.charts.chart import CASES, Object, named, pods, render

JOB_LABELS = TrainingJob(
    stage="pretrain", recipe=parse_recipe("language: az", "recipe"), inputs={}, target="s3://bucket/model"
).labels
KFP_LABELS = {"pipelines.kubeflow.org/v2_component": "true"}
"""Source: Kubeflow Pipelines 2, backend/src/v2/compiler/argocompiler."""
Labels = dict[str, str]


def chosen(selector: Object, labels: Labels) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def everyone(objects: list[Object]) -> list[tuple[str, Labels]]:
    """Namespace and labels of every pod that there can be."""
    ours = [
        (item["metadata"]["namespace"], dict(metadata["labels"]))
        for item in objects
        for _, metadata, _ in pods([item])
    ]
    ours += [
        # Source: KServe, pkg/constants: InferenceServicePodLabelKey.
        (item["metadata"]["namespace"], {"serving.kserve.io/inferenceservice": item["metadata"]["name"]})
        for item in objects
        if item["kind"] == "InferenceService"
    ]
    spaces = {item["metadata"].get("namespace", "training") for item in objects}
    return [*ours, *((space, JOB_LABELS) for space in spaces)]


def policies(objects: list[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "NetworkPolicy"]


def lets_in(objects: list[Object], target: tuple[str, Labels], source: tuple[str, Labels], port: int) -> bool:
    """Whether some policy lets a source reach a port of a target; True where none covers the target."""
    covering = [
        policy for policy in policies(objects)
        if policy["metadata"]["namespace"] == target[0]
        and "Ingress" in policy["spec"]["policyTypes"]
        and chosen(policy["spec"]["podSelector"], target[1])
    ]  # fmt: skip
    return not covering or any(
        any(is_peer(peer, source, policy) for peer in rule.get("from", [])) and opens(rule, port)
        for policy in covering
        for rule in policy["spec"].get("ingress", [])
    )


def is_peer(peer: Object, source: tuple[str, Labels], policy: Object) -> bool:
    space = peer.get("namespaceSelector")
    in_space = source[0] == policy["metadata"]["namespace"] if space is None else chosen(
        space, {"kubernetes.io/metadata.name": source[0]}
    )  # fmt: skip
    return "ipBlock" not in peer and in_space and chosen(peer.get("podSelector", {}), source[1])


def opens(rule: Object, port: int) -> bool:
    ports: list[dict[str, Any]] = rule.get("ports", [])
    return not ports or any(entry["port"] == port for entry in ports)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_selector_covers_a_pod_that_there_is(values: Object) -> None:
    objects = render(values)
    there = everyone(objects)

    for policy in policies(objects):
        space, selector = policy["metadata"]["namespace"], policy["spec"]["podSelector"]
        assert any(space == place and chosen(selector, labels) for place, labels in there), policy[
            "metadata"
        ]["name"]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_pod_of_ours_is_covered_both_ways(values: Object) -> None:
    objects = render(values)
    if not policies(objects):
        return

    jobs = values.get("jobs", {}).get("namespace", "training")
    for space, labels in everyone(objects):
        if labels is JOB_LABELS and space != jobs:
            continue
        if space == jobs != "training" and labels is not JOB_LABELS:
            continue  # the check of storage, which speaks to nobody
        kinds = {
            kind for policy in policies(objects)
            if policy["metadata"]["namespace"] == space and chosen(policy["spec"]["podSelector"], labels)
            for kind in policy["spec"]["policyTypes"]
        }  # fmt: skip
        assert kinds == {"Ingress", "Egress"}, labels


@pytest.mark.parametrize(
    ("source", "reaches"),
    [
        (("training", KFP_LABELS), True),
        (("training", JOB_LABELS), True),
        (("training", {"app": "somebody"}), False),
        (("elsewhere", JOB_LABELS), False),
        (("monitoring", {"app.kubernetes.io/name": "prometheus"}), False),
    ],
)
def test_mlflow_is_reached_by_stages_and_by_nobody_else(source: tuple[str, Labels], reaches: bool) -> None:
    objects = render(CASES["kubeflow with schedule"])
    labels = named(objects, "Deployment", "-mlflow")["spec"]["template"]["metadata"]["labels"]

    assert lets_in(objects, ("training", labels), source, 5000) is reaches


def test_machines_of_a_job_reach_each_other_on_every_port_and_strangers_none() -> None:
    objects = render(CASES["hyperpod with fsx"])
    job = ("hyperpod-ns-nlp", JOB_LABELS)

    assert lets_in(objects, job, job, 23456)
    assert lets_in(objects, job, job, 40123)
    assert not lets_in(objects, job, ("hyperpod-ns-nlp", {"app": "somebody"}), 23456)
    assert not lets_in(objects, job, ("monitoring", {"app.kubernetes.io/name": "prometheus"}), METRICS_PORT)


def test_prometheus_reaches_what_it_scrapes() -> None:
    objects = render(CASES["monitoring"])
    prometheus = ("monitoring", {"app.kubernetes.io/name": "prometheus"})
    labels = named(objects, "Deployment", "-mlflow")["spec"]["template"]["metadata"]["labels"]

    assert lets_in(objects, ("training", JOB_LABELS), prometheus, METRICS_PORT)
    assert lets_in(objects, ("training", labels), prometheus, 5000)


def test_databases_and_other_s3_servers_get_their_port() -> None:
    policy = named(render(CASES["postgres and s3"]), "NetworkPolicy", "-mlflow")
    ports = {entry["port"] for rule in policy["spec"]["egress"] for entry in rule["ports"]}

    assert {5432, 9000} <= ports


@pytest.mark.parametrize(
    ("uri", "ports"),
    [
        ("http://mlflow.ml.svc:5000", [443, 6443, 5000]),
        ("http://mlflow.example.com", [443, 6443, 80]),
        ("https://mlflow.example.com:6443/", [443, 6443]),
        ("http://[fd00::1]:5000", [443, 6443, 5000]),
        ("arn:aws:sagemaker:eu-west-1:111122223333:mlflow-tracking-server/az", [443, 6443]),
    ],
)
def test_an_mlflow_server_elsewhere_gets_its_port(uri: str, ports: list[int]) -> None:
    objects = render({"mlflow": {"enabled": False}, "trackingUri": uri})

    for name in ("-jobs", "anadil"):
        egress = named(objects, "NetworkPolicy", name)["spec"]["egress"]
        (outside,) = [rule for rule in egress if {"protocol": "TCP", "port": 443} in rule.get("ports", [])]
        assert [entry["port"] for entry in outside["ports"]] == ports
        assert "to" not in outside


@pytest.mark.parametrize(("name", "port"), [("vllm from s3", 8000), ("kserve", 8080)])
def test_a_served_model_answers_its_namespace_and_those_that_are_marked(name: str, port: int) -> None:
    objects = render(CASES[name])
    [server] = [
        each for each in everyone(objects)
        if each[1].get("app.kubernetes.io/component") == "serve" or "serving.kserve.io/inferenceservice" in each[1]
    ]  # fmt: skip

    assert lets_in(objects, server, ("training", {"app": "web"}), port)
    assert not lets_in(objects, server, ("training", {"app": "web"}), 22)
    assert not lets_in(objects, server, ("elsewhere", {"app": "web"}), port)
    [policy] = [each for each in policies(objects) if each["metadata"]["name"] == "az-serve"]
    assert {"namespaceSelector": {"matchLabels": {"anadil.dev/client": "true"}}} in policy["spec"]["ingress"][
        0
    ]["from"]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_names_can_be_resolved_wherever_anything_may_go_out(values: Object) -> None:
    common = [policy for policy in policies(render(values)) if "Ingress" in policy["spec"]["policyTypes"]]

    for policy in common:
        ports = [entry for rule in policy["spec"]["egress"] for entry in rule.get("ports", [])]
        assert {"protocol": "UDP", "port": 53} in ports
        assert {"protocol": "TCP", "port": 53} in ports
        assert {"protocol": "TCP", "port": 443} in ports


def test_the_chart_s_own_mlflow_server_opens_no_port_outside() -> None:
    policy = named(render({"trackingUri": "http://elsewhere:9999"}), "NetworkPolicy", "-jobs")

    assert "9999" not in str(policy)
