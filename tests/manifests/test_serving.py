import json
from typing import Any

import pytest

from anadil import __version__
from tests.charts.chart import render
from tests.kit import crds
from tests.kit.kubernetes_schemas import VERSIONS, validate
from tests.kit.restricted import containers, violations
from tests.manifests.kustomized import MANIFESTS, Object, build, one

OVERLAYS = ("vllm", "kserve", "claim")
MODEL = "s3://my-bucket/azerbaijani-8b/adapter/0123456789abcdef/merged"
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


def test_the_inference_service_has_only_fields_that_kserve_knows() -> None:
    service = one(overlay("kserve"), "InferenceService", "anadil-az")

    assert crds.mistakes(crds.INFERENCESERVICE, service) == []
    # Its storage initializer takes an s3:// URI for the beginning of keys (kserve_storage 0.21, _download_s3).
    assert service["spec"]["predictor"]["model"]["storageUri"] == f"{MODEL}/"
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


def test_the_model_is_brought_by_this_release() -> None:
    [bring] = pod(overlay("vllm"))["initContainers"]

    assert bring["image"].endswith(f"/anadil/tools:{__version__}")
    assert bring["args"] == [MODEL, "/models"]
    assert "initContainers" not in pod(overlay("claim"))


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


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_chart_makes_the_same_server(name: str) -> None:
    """But for labels and the account, which carry the release's name."""
    ours = overlay(name)
    claim = name == "claim"
    settings = {
        "enabled": True,
        "name": "anadil-az",
        "kind": "kserve" if name == "kserve" else "vllm",
        "model": MODEL.replace("s3://my-bucket", "/fsx") if claim else MODEL,
    }
    storage = {"enabled": True, "mountPath": "/fsx"} if claim else {}
    images = {"registry": "111122223333.dkr.ecr.us-east-1.amazonaws.com"}
    made = render({"fullnameOverride": "anadil", "images": images, "storage": storage, "serving": settings})

    for kind in (
        ("InferenceService", "NetworkPolicy")
        if name == "kserve"
        else ("Deployment", "Service", "NetworkPolicy")
    ):
        found = one(made, kind, "anadil-az-serve" if kind == "NetworkPolicy" else "anadil-az")
        text = json.dumps(one(ours, kind, "anadil-az"))
        text = text.replace("vllm/vllm-openai", "docker.io/vllm/vllm-openai")
        text = text.replace('"serviceAccountName": "anadil-az"', '"serviceAccountName": "anadil-serving"')
        expected = json.loads(text.replace('"claimName": "fsx"', '"claimName": "anadil-storage"'))
        for item in (found, expected):
            _unlabelled(item)
        assert _plain(found["spec"]) == _plain(expected["spec"]), kind


def test_kserve_is_told_a_place_on_a_claim_in_its_own_words() -> None:
    serving = {"enabled": True, "kind": "kserve", "name": "az", "model": "/data/model/0123"}
    made = render({"fullnameOverride": "anadil", "storage": {"enabled": True}, "serving": serving})

    place = one(made, "InferenceService", "az")["spec"]["predictor"]["model"]["storageUri"]
    assert place == "pvc://anadil-storage/model/0123"


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
