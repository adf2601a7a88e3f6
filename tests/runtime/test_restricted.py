"""The checker itself: what it lets through, and that each rule of the profile finds its breach."""

import copy
from typing import Any

import pytest

from tests.kit.restricted import violations

POD: dict[str, Any] = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "main",
            "image": "example",
            "ports": [{"containerPort": 80}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}


def test_a_restricted_pod_is_admitted_also_if_its_containers_say_it() -> None:
    pod = copy.deepcopy(POD)
    pod["containers"][0]["securityContext"] |= pod.pop("securityContext")

    assert violations(POD) == violations(pod) == []


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("hostNetwork", True, "hostNetwork"),
        ("hostPID", True, "hostPID"),
        ("hostIPC", True, "hostIPC"),
        ("volumes", [{"name": "two", "emptyDir": {}, "nfs": {}}], "is not one of the allowed kinds"),
        ("volumes", [{"name": "nvme", "hostPath": {"path": "/"}}], "hostPath"),
        ("volumes", [{"name": "none"}], "is not one of the allowed kinds"),
        ("securityContext.runAsNonRoot", None, "runAsNonRoot or seccompProfile is set neither"),
        ("securityContext.runAsUser", 0, "may run as root"),
        ("securityContext.seccompProfile", None, "runAsNonRoot or seccompProfile is set neither"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax"}], "sysctls is not allowed"),
        ("main.securityContext.runAsUser", 0, "may run as root"),
        ("main.securityContext.runAsNonRoot", False, "may run as root"),
        (
            "main.securityContext.seccompProfile",
            {"type": "Unconfined"},
            "seccompProfile {'type': 'Unconfined'}",
        ),
        ("main.securityContext.privileged", True, "privileged is not allowed"),
        ("main.securityContext.allowPrivilegeEscalation", None, "allowPrivilegeEscalation"),
        ("main.securityContext.capabilities", {}, "not exactly drop ALL"),
        ("main.securityContext.capabilities.add", ["SYS_PTRACE"], "not exactly drop ALL"),
        ("main.ports", [{"hostPort": 80}], "hostPort"),
        ("main.livenessProbe", {"httpGet": {"host": "10.0.0.1"}}, "asks another host"),
        ("main.readinessProbe", {"tcpSocket": {"host": "10.0.0.1"}}, "asks another host"),
        ("main.lifecycle", {"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}, "lifecycle"),
        ("initContainers", [{"name": "first"}], "initContainers[first]"),
        ("ephemeralContainers", [{"name": "look"}], "ephemeralContainers[look]"),
    ],
)
def test_each_rule_finds_its_breach(path: str, value: object, text: str) -> None:
    pod = copy.deepcopy(POD)
    node = {**pod, "main": pod["containers"][0]}
    *parents, key = path.split(".")
    for parent in parents:
        node = node[parent]
    (node if parents else pod)[key] = value

    assert text in "\n".join(violations(pod))


def test_an_older_cluster_takes_apparmor_from_an_annotation() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/main"

    assert violations(POD, {key: "unconfined"}) == [f"annotation {key}"]
