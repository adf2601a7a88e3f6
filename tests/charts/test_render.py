import json
from pathlib import Path

import helm_python
import pytest

from anadil import __version__
from tests.charts.chart import CASES, CHART, Object, identity, named, pods, render, texts
from tests.charts.golden import GOLDEN
from tests.kit.kubernetes_schemas import VERSIONS, validate
from tests.kit.restricted import violations

# Custom resources that the chart may make, each by a value of its own.
OURS = {
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("kueue.x-k8s.io/v1beta1", "LocalQueue"),
    ("serving.kserve.io/v1beta1", "InferenceService"),
}
cases = pytest.mark.parametrize("values", CASES.values(), ids=CASES)


@cases
def test_helm_finds_nothing_to_mend(values: Object) -> None:
    report = helm_python.lint(str(CHART), values, strict=True, namespace="training", kube_version="v1.31.0")

    assert report["errors"] == []
    assert [found for found in report["messages"] if found["severity"] > 1] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_as_kubernetes_defines_it(version: str) -> None:
    objects = {json.dumps(item): item for values in CASES.values() for item in render(values)}

    for item in objects.values():
        if (item["apiVersion"], item["kind"]) not in OURS:
            validate(item, version)


@cases
def test_every_pod_is_admitted_by_the_profile_restricted(values: Object) -> None:
    for name, metadata, spec in pods(render(values)):
        assert violations(spec, metadata.get("annotations")) == [], name


@cases
def test_every_container_is_of_our_user_writes_only_its_volumes_and_has_bounds(values: Object) -> None:
    for name, _, spec in pods(render(values)):
        context = spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (10001, 10001, 10001), (
            name
        )
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            writable = {
                mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
            }
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert {"/tmp", "/home/anadil"} <= writable, name
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name
            assert container["imagePullPolicy"] == "IfNotPresent", name


@cases
def test_what_a_pod_refers_to_is_made_by_the_chart(values: Object) -> None:
    objects = render(values)
    made = {identity(item) for item in objects}
    given = {"trainer"}  # by the user, as the values say

    for item in objects:
        for name, _, spec in pods([item]):
            space = item["metadata"]["namespace"]
            account = spec["serviceAccountName"]
            assert account in given or f"ServiceAccount {space}/{account}" in made, name
            for volume in spec["volumes"]:
                if claim := volume.get("persistentVolumeClaim"):
                    assert f"PersistentVolumeClaim {space}/{claim['claimName']}" in made, name
                if config := volume.get("configMap"):
                    assert f"ConfigMap {space}/{config['name']}" in made, name


def test_images_follow_the_version_of_the_program_unless_told_otherwise() -> None:
    def images(values: Object) -> set[str]:
        return {
            container["image"]
            for _, _, spec in pods(render(values))
            for container in [*spec["containers"], *spec.get("initContainers", [])]
        }

    assert images({}) == {f"anadil/mlflow:{__version__}", f"anadil/tools:{__version__}"}
    assert images(CASES["postgres and s3"]) == {
        f"111122223333.dkr.ecr.eu-west-1.amazonaws.com/anadil/mlflow@sha256:{'a' * 64}",
        "ghcr.io/leyla/anadil/tools:edge",
    }


def test_what_brings_a_model_has_the_variables_of_its_server() -> None:
    """An S3 of one's own is named by AWS_ENDPOINT_URL_S3, and it is the init container that asks it."""
    spec = named(render(CASES["vllm from s3"]), "Deployment", "az")["spec"]["template"]["spec"]

    for container in [*spec["initContainers"], *spec["containers"]]:
        assert {"name": "A", "value": "b"} in container["env"], container["name"]


def test_an_upgrade_changes_no_object_of_its_own_accord() -> None:
    for values in CASES.values():
        assert render(values) == render(values, upgrade=True)


def test_another_image_changes_only_what_runs_it_and_renames_the_job_that_cannot_change() -> None:
    before = {"storage": {"enabled": True}}
    after = {**before, "images": {"tools": {"tag": "0.2.0"}}}

    old, new = ({identity(item): item for item in render(values)} for values in (before, after))

    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    assert changed == {
        "Pod training/anadil-test-mlflow", "Pod training/anadil-test-rights",
    }  # fmt: skip
    assert len(old.keys() ^ new.keys()) == 2
    assert all(name.startswith("Job training/anadil-storage-") for name in old.keys() ^ new.keys())


def test_claims_volumes_and_the_login_that_is_in_them_alone_outlive_the_release() -> None:
    policies = {
        (item["kind"], item["metadata"].get("annotations", {}).get("helm.sh/resource-policy"))
        for values in CASES.values()
        for item in render(values)
    }

    stored = {"PersistentVolume", "PersistentVolumeClaim", "Secret"}
    assert {kind for kind, policy in policies if policy == "keep"} == stored
    assert {policy for kind, policy in policies if kind in stored} == {"keep"}


def test_a_file_system_is_one_volume_for_each_namespace_each_with_a_handle_of_its_own() -> None:
    objects = render(CASES["hyperpod with fsx"])
    volumes = [item for item in objects if item["kind"] == "PersistentVolume"]

    assert {volume["spec"]["claimRef"]["namespace"] for volume in volumes} == {"training", "hyperpod-ns-nlp"}
    assert len({volume["spec"]["csi"]["volumeHandle"] for volume in volumes}) == 2
    for volume in volumes:
        spec = volume["spec"]
        assert spec["accessModes"] == ["ReadWriteMany"]
        assert spec["persistentVolumeReclaimPolicy"] == "Retain"
        assert spec["csi"]["volumeAttributes"]["mountname"] == "abcdefgh"


def test_the_notes_say_what_to_do_next() -> None:
    notes = {name: texts(values)["anadil/templates/NOTES.txt"] for name, values in CASES.items()}

    assert "helm test anadil --namespace training" in notes["default"]
    assert "http://anadil-mlflow.training.svc:5000" in notes["default"]
    assert "No pipeline may launch them yet" in notes["default"]
    assert "No pipeline may launch" not in notes["kubeflow with schedule"]
    assert 'runs at "0 3 * * 0"' in notes["kubeflow with schedule"]
    assert "recipes report to https://mlflow.example.com" in notes["bare"]
    assert "hyperpod-ns-nlp" in notes["hyperpod with fsx"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_is_rendered_is_the_golden_file(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GOLDEN[path](), "run make golden and read the difference"


def test_a_namespace_of_digits_is_text() -> None:
    objects = render({**CASES["hyperpod with fsx"], "jobs": {"namespace": "456"}}, "123")
    named = {item["metadata"].get("namespace") for item in objects}
    subjects = {subject["namespace"] for item in objects for subject in item.get("subjects", ())}

    assert named <= {None, "123", "456"}
    assert subjects == {"123", "kubeflow"}


def rules(role: Object) -> dict[str, set[str]]:
    return {
        f"{group}/{resource}": set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@cases
def test_no_role_has_a_wildcard_reads_secrets_or_spans_the_cluster(values: Object) -> None:
    objects = render(values)

    assert {item["kind"] for item in objects} & {"ClusterRole", "ClusterRoleBinding"} == set()
    for role in objects:
        if role["kind"] == "Role":
            for resource, verbs in rules(role).items():
                assert "*" not in resource
                assert "*" not in verbs
                assert "secrets" not in resource
                assert verbs.isdisjoint({"escalate", "bind", "impersonate", "deletecollection"})


@cases
def test_every_binding_names_a_role_and_accounts_that_are_there(values: Object) -> None:
    objects = render(values)
    roles, made = (
        {
            (item["metadata"]["namespace"], item["metadata"]["name"])
            for item in objects
            if item["kind"] == kind
        }
        for kind in ("Role", "ServiceAccount")
    )
    given = {(one["namespace"], one["name"]) for one in values.get("launchers", [])}

    for binding in objects:
        if binding["kind"] == "RoleBinding":
            assert (binding["metadata"]["namespace"], binding["roleRef"]["name"]) in roles
            for subject in binding["subjects"]:
                assert (subject["namespace"], subject["name"]) in made | given


def test_train_jobs_and_clean_s_engines_get_rights_by_value() -> None:
    groups = [
        {group for rule in named(render(values), "Role", "-launcher")["rules"] for group in rule["apiGroups"]}
        for values in ({}, {"clean": {"engines": ["job", "ray"]}}, CASES["hyperpod with fsx"])
    ]

    assert groups[1] - groups[0] == {"batch", "ray.io"}
    assert "trainer.kubeflow.org" in groups[2] - groups[0]


def test_rights_lie_where_jobs_run_and_go_to_accounts_elsewhere() -> None:
    binding = named(render(CASES["hyperpod with fsx"]), "RoleBinding", "-launcher")

    assert binding["metadata"]["namespace"] == "hyperpod-ns-nlp"
    assert {(one["namespace"], one["name"]) for one in binding["subjects"]} == {
        ("training", "anadil-launcher"),
        ("kubeflow", "pipeline-runner"),
    }


@cases
def test_only_pods_that_call_the_kubernetes_api_get_a_token(values: Object) -> None:
    with_token = {
        name.rsplit("-", 1)[1]
        for name, _, spec in pods(render(values))
        if spec["automountServiceAccountToken"]
    }

    assert with_token <= {"rights", "launch"}
