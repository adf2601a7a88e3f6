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


def test_a_restricted_pod_is_admitted() -> None:
    assert violations(POD) == []


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("hostNetwork", True, "hostNetwork"),
        ("hostPID", True, "hostPID"),
        ("hostIPC", True, "hostIPC"),
        ("volumes", [{"name": "nvme", "hostPath": {"path": "/"}}], "hostPath"),
        ("volumes", [{"name": "nfs", "nfs": {}}], "nfs"),
        ("volumes", [{"name": "none"}], "has no kind"),
        ("securityContext.runAsNonRoot", None, "runAsNonRoot is not true"),
        ("securityContext.runAsUser", 0, "runAsUser 0"),
        ("securityContext.seccompProfile", None, "no seccompProfile"),
        ("securityContext.appArmorProfile", {"type": "Unconfined"}, "appArmorProfile Unconfined"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax"}], "sysctl kernel.msgmax"),
        ("main.securityContext.runAsUser", 0, "runAsUser 0"),
        ("main.securityContext.runAsNonRoot", False, "runAsNonRoot is false"),
        ("main.securityContext.seccompProfile", {"type": "Unconfined"}, "seccompProfile Unconfined"),
        ("main.securityContext.seLinuxOptions", {"type": "spc_t"}, "SELinux type"),
        ("main.securityContext.seLinuxOptions", {"user": "root"}, "SELinux user"),
        ("main.securityContext.windowsOptions", {"hostProcess": True}, "hostProcess"),
        ("main.securityContext.privileged", True, "privileged"),
        ("main.securityContext.allowPrivilegeEscalation", None, "allowPrivilegeEscalation"),
        ("main.securityContext.procMount", "Unmasked", "procMount Unmasked"),
        ("main.securityContext.capabilities", {}, "capabilities.drop lacks ALL"),
        ("main.securityContext.capabilities.add", ["SYS_PTRACE"], "SYS_PTRACE"),
        ("main.ports", [{"hostPort": 80}], "hostPort 80"),
        ("main.livenessProbe", {"httpGet": {"host": "10.0.0.1"}}, "10.0.0.1"),
        ("main.lifecycle", {"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}, "preStop asks the host"),
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

    found = violations(pod)

    assert text in "\n".join(found)


def test_what_the_profile_allows_is_not_a_breach() -> None:
    pod = copy.deepcopy(POD)
    pod["securityContext"] |= {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = ["NET_BIND_SERVICE"]

    assert violations(pod) == []


def test_a_container_may_say_for_itself_what_the_pod_does_not() -> None:
    pod = copy.deepcopy(POD)
    pod["containers"][0]["securityContext"] |= pod.pop("securityContext")

    assert violations(pod) == []


def test_an_older_cluster_takes_apparmor_from_an_annotation() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/main"

    assert violations(POD, {key: "runtime/default"}) == []
    assert violations(POD, {key: "unconfined"}) == [f"annotation {key}: unconfined"]
