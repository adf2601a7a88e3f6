"""manifests/serving: what it builds is what `anadil serve-manifest` prints, and a strict cluster takes it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from anadil.release.serving.manifests import Claim, Kind, objects
from make_manifests import SERVED
from tests.charts.chart import render
from tests.kit import crds
from tests.kit.kubernetes_schemas import VERSIONS, validate
from tests.kit.restricted import containers, violations
from tests.manifests.kustomized import MANIFESTS, Object, build, one

OVERLAYS = ("vllm", "kserve", "claim")
KINDS: tuple[Kind, ...] = ("vllm", "kserve")
ON_A_CLAIM = replace(
    SERVED, uri="/fsx/azerbaijani-8b/adapter/0123456789abcdef/merged", claim=Claim(name="fsx", path="/fsx")
)
every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def overlay(name: str) -> list[Object]:
    return build(MANIFESTS / "serving" / "overlays" / name)


def pod(made: list[Object]) -> Object:
    """The pod of the server: of an InferenceService with the model's container among the others."""
    for each in made:
        if each["kind"] == "Deployment":
            found: Object = each["spec"]["template"]["spec"]
            return found
    [service] = [each for each in made if each["kind"] == "InferenceService"]
    predictor = dict(service["spec"]["predictor"])
    return {**predictor, "containers": [{"name": "kserve-container", **predictor["model"]}]}


@every_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_an_overlay_is_valid_in_every_version(name: str, version: str) -> None:
    for each in overlay(name):
        if each["kind"] != "InferenceService":
            validate(each, version)


@pytest.mark.parametrize("serving", [SERVED, ON_A_CLAIM], ids=["s3", "claim"])
def test_the_inference_service_has_only_fields_that_kserve_knows(serving: Any) -> None:
    service = one(objects(serving, "kserve"), "InferenceService", "anadil-az")

    assert crds.mistakes(crds.INFERENCESERVICE, service) == []
    place = service["spec"]["predictor"]["model"]["storageUri"]
    # Its storage initializer takes an s3:// URI for the beginning of keys (kserve_storage 0.21, _download_s3).
    assert place.endswith("/merged/") or place.startswith("pvc://")
    service["spec"]["predictor"]["model"]["storageURI"] = "s3://bucket"
    service["spec"]["predictor"]["replicas"] = 1
    assert len(crds.mistakes(crds.INFERENCESERVICE, service)) == 2


@every_overlay
def test_a_server_keeps_to_restricted_and_writes_to_its_scratch_alone(name: str) -> None:
    spec = pod(overlay(name))

    assert violations({key: value for key, value in spec.items() if key != "model"}) == []
    assert spec["automountServiceAccountToken"] is False
    for where, container in containers(spec):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, where
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert {"/tmp", "/home/anadil"} <= mounts.keys(), where
        if where != "initContainers[bring-model]" and "/models" in mounts:
            assert mounts["/models"]["readOnly"] is True
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@every_overlay
def test_gpus_are_asked_for_and_shared_as_the_engine_is_told(name: str) -> None:
    [server] = pod(overlay(name))["containers"]

    asked = [server["resources"][key]["nvidia.com/gpu"] for key in ("requests", "limits")]
    assert asked == ["1", "1"]
    assert "--tensor-parallel-size=1" in server["args"]
    assert {"--max-model-len=8192", "--max_model_len=8192"} & set(server["args"])
    assert "--dtype=bfloat16" in server["args"]


@every_overlay
def test_a_server_is_asked_how_it_is_and_may_take_long_to_start(name: str) -> None:
    [server] = pod(overlay(name))["containers"]

    start = server["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 1800
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"]["port"] in ("http", 8080)


@every_overlay
def test_the_policy_selects_the_server_and_opens_its_port_alone(name: str) -> None:
    made = overlay(name)
    policy = one(made, "NetworkPolicy", "anadil-az")["spec"]
    port = 8080 if name == "kserve" else 8000

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    [entry] = policy["ingress"]
    assert entry["ports"] == [{"protocol": "TCP", "port": port}]
    if name != "kserve":  # whose pods have labels of its own
        deployment = one(made, "Deployment", "anadil-az")["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert deployment["selector"]["matchLabels"].items() <= labels.items()
        assert one(made, "Service", "anadil-az")["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(
    ("name", "kind", "serving"),
    [("vllm", "vllm", SERVED), ("kserve", "kserve", SERVED), ("claim", "vllm", ON_A_CLAIM)],
)
def test_an_overlay_is_what_the_command_prints(name: str, kind: Kind, serving: Any) -> None:
    made = [each for each in overlay(name) if each["metadata"]["name"] == "anadil-az"]
    expected = objects(replace(serving, namespace="anadil-serving", tools_image=_tools(overlay(name))), kind)

    assert sorted(each["kind"] for each in made) == sorted(each["kind"] for each in expected)
    for each in expected:
        found = one(made, each["kind"], "anadil-az")
        if each["kind"] == "ServiceAccount":
            found["metadata"].pop("annotations", None)  # the role, which is the user's
        assert _plain(found) == _plain(each)


def _tools(made: list[Object]) -> str:
    images = [each["image"] for _, each in containers(pod(made)) if each["name"] == "bring-model"]
    return images[0] if images else SERVED.tools_image


def _plain(item: Any) -> Any:
    """Without the order of volumes and mounts, which a patch changes."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list):
        return (
            sorted((_plain(each) for each in item), key=lambda each: json.dumps(each, sort_keys=True))
            if item and isinstance(item[0], dict)
            else item
        )
    return item


@every_overlay
def test_the_namespace_is_strict_and_nothing_holds_a_secret(name: str) -> None:
    made = overlay(name)

    labels = one(made, "Namespace", "anadil-serving")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert one(made, "NetworkPolicy", "default-deny")["spec"]["podSelector"] == {}
    assert {each["metadata"].get("namespace", "anadil-serving") for each in made} == {"anadil-serving"}
    assert not [each for each in made if each["kind"] == "Secret"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_account_that_is_there_is_not_made_again(kind: Kind) -> None:
    made = objects(replace(SERVED, service_account="reader"), kind)

    assert "ServiceAccount" not in {each["kind"] for each in made}
    assert pod(made)["serviceAccountName"] == "reader"


VALUES: dict[str, Any] = {"mlflow": {"enabled": False}, "fullnameOverride": "anadil"}
SERVED_VALUES = {"enabled": True, "name": "anadil-az", "model": SERVED.uri, "disk": "18Gi"}


@pytest.mark.parametrize(
    ("kind", "serving", "values"),
    [
        ("vllm", SERVED, {}),
        ("kserve", SERVED, {}),
        (
            "vllm",
            replace(ON_A_CLAIM, claim=Claim(name="anadil-storage", path="/fsx")),
            {"storage": {"enabled": True, "mountPath": "/fsx"}},
        ),
        (
            "kserve",
            replace(ON_A_CLAIM, claim=Claim(name="anadil-storage", path="/fsx")),
            {"storage": {"enabled": True, "mountPath": "/fsx"}},
        ),
    ],
    ids=["vllm", "kserve", "vllm on a claim", "kserve on a claim"],
)
def test_the_chart_makes_the_same_server(kind: Kind, serving: Any, values: dict[str, Any]) -> None:
    """But for labels and the account, which carry the release's name."""
    serving = replace(serving, service_account="anadil-serving", namespace="training")
    settings = SERVED_VALUES | {"kind": kind, "model": serving.uri}
    made = render(VALUES | values | {"serving": settings})

    for each in objects(serving, kind):
        name = "anadil-az-serve" if each["kind"] == "NetworkPolicy" else "anadil-az"
        found = one(made, each["kind"], name)
        expected = json.loads(json.dumps(each).replace("vllm/vllm-openai", "docker.io/vllm/vllm-openai"))
        for item in (found, expected):
            _unlabelled(item)
        assert _plain(found["spec"]) == _plain(expected["spec"]), each["kind"]


def _unlabelled(item: Object) -> None:
    spec = item["spec"]
    if item["kind"] == "Deployment":
        del spec["template"]["metadata"]["labels"]
    if item["kind"] in ("Deployment", "Service"):
        del spec["selector"]
    if "app.kubernetes.io/name" in spec.get("podSelector", {}).get("matchLabels", {}):
        del spec["podSelector"]
    if item["kind"] == "NetworkPolicy":  # the chart opens the Kubernetes API's port for all of its pods
        for rule in spec["egress"]:
            rule["ports"] = [each for each in rule["ports"] if each["port"] != 6443]
