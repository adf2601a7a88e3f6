"""Who may do what: the launcher's rights to the letter, and nobody else any."""

import pytest

from tests.charts.chart import CASES, Object, named, pods, render

cases = pytest.mark.parametrize("values", CASES.values(), ids=CASES)
JOBS = {"get", "list", "create", "patch", "delete"}


def rules(role: Object) -> dict[str, set[str]]:
    return {
        f"{group}/{resource}": set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_launcher_may_start_and_follow_jobs_and_nothing_more() -> None:
    role = named(render({}), "Role", "-launcher")

    assert rules(role) == {
        "kubeflow.org/pytorchjobs": JOBS,
        "/pods": {"get", "list"},
        "/pods/log": {"get"},
        "/events": {"list"},
    }


def test_rights_to_train_jobs_come_by_value() -> None:
    role = named(render(CASES["hyperpod with fsx"]), "Role", "-launcher")

    assert rules(role)["trainer.kubeflow.org/trainjobs"] == JOBS


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


def test_rights_lie_where_jobs_run_and_go_to_accounts_elsewhere() -> None:
    binding = named(render(CASES["hyperpod with fsx"]), "RoleBinding", "-launcher")

    assert binding["metadata"]["namespace"] == "hyperpod-ns-nlp"
    assert {(one["namespace"], one["name"]) for one in binding["subjects"]} == {
        ("training", "anadil-launcher"),
        ("kubeflow", "pipeline-runner"),
    }


def test_clean_may_make_pods_of_its_own_where_its_engines_are_named() -> None:
    groups = [
        {group for rule in named(render(values), "Role", "-launcher")["rules"] for group in rule["apiGroups"]}
        for values in ({}, {"clean": {"engines": ["job", "ray"]}})
    ]

    assert groups[1] - groups[0] == {"batch", "ray.io"}


@cases
def test_only_pods_that_call_the_kubernetes_api_get_a_token(values: Object) -> None:
    with_token = {
        name.rsplit("-", 1)[1]
        for name, _, spec in pods(render(values))
        if spec["automountServiceAccountToken"]
    }

    assert with_token <= {"rights", "launch"}


def test_of_the_accounts_only_the_launchers_gives_its_token_to_pods_of_users() -> None:
    accounts = [item for item in render({}) if item["kind"] == "ServiceAccount"]

    assert {item["metadata"]["name"] for item in accounts if item["automountServiceAccountToken"]} == {
        "anadil-launcher"
    }
    assert {item["metadata"]["name"] for item in accounts} == {
        f"anadil-{name}" for name in ("stage", "launcher", "mlflow", "registration")
    }
