"""The checker itself: what it lets through, and that each rule of the profile finds its breach."""

import copy
from collections.abc import Callable
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
Change = Callable[[Any, Any], object]


def test_a_restricted_pod_is_admitted() -> None:
    assert violations(POD) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda pod, main: pod.update(hostNetwork=True), "hostNetwork"),
        (lambda pod, main: pod.update(hostPID=True), "hostPID"),
        (lambda pod, main: pod.update(hostIPC=True), "hostIPC"),
        (lambda pod, main: pod["volumes"].append({"name": "nvme", "hostPath": {"path": "/"}}), "hostPath"),
        (lambda pod, main: pod["volumes"].append({"name": "nfs", "nfs": {}}), "nfs"),
        (lambda pod, main: pod["volumes"].append({"name": "none"}), "has no kind"),
        (lambda pod, main: pod["securityContext"].pop("runAsNonRoot"), "runAsNonRoot is not true"),
        (lambda pod, main: pod["securityContext"].update(runAsUser=0), "runAsUser 0"),
        (lambda pod, main: main["securityContext"].update(runAsUser=0), "runAsUser 0"),
        (lambda pod, main: main["securityContext"].update(runAsNonRoot=False), "runAsNonRoot is false"),
        (lambda pod, main: pod["securityContext"].pop("seccompProfile"), "no seccompProfile"),
        (
            lambda pod, main: main["securityContext"].update(seccompProfile={"type": "Unconfined"}),
            "seccompProfile Unconfined",
        ),
        (
            lambda pod, main: pod["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
            "appArmorProfile Unconfined",
        ),
        (lambda pod, main: main["securityContext"].update(seLinuxOptions={"type": "spc_t"}), "SELinux type"),
        (lambda pod, main: main["securityContext"].update(seLinuxOptions={"user": "root"}), "SELinux user"),
        (
            lambda pod, main: main["securityContext"].update(windowsOptions={"hostProcess": True}),
            "hostProcess",
        ),
        (
            lambda pod, main: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax"}]),
            "sysctl kernel.msgmax",
        ),
        (lambda pod, main: main["securityContext"].update(privileged=True), "privileged"),
        (
            lambda pod, main: main["securityContext"].pop("allowPrivilegeEscalation"),
            "allowPrivilegeEscalation",
        ),
        (lambda pod, main: main["securityContext"].update(procMount="Unmasked"), "procMount Unmasked"),
        (lambda pod, main: main["securityContext"].pop("capabilities"), "capabilities.drop lacks ALL"),
        (lambda pod, main: main["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]), "SYS_PTRACE"),
        (lambda pod, main: main["ports"][0].update(hostPort=80), "hostPort 80"),
        (lambda pod, main: main.update(livenessProbe={"httpGet": {"host": "10.0.0.1"}}), "10.0.0.1"),
        (
            lambda pod, main: main.update(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}),
            "preStop asks the host",
        ),
        (lambda pod, main: pod.update(initContainers=[{"name": "first"}]), "initContainers[first]"),
        (lambda pod, main: pod.update(ephemeralContainers=[{"name": "look"}]), "ephemeralContainers[look]"),
    ],
)
def test_each_rule_finds_its_breach(change: Change, text: str) -> None:
    pod = copy.deepcopy(POD)
    change(pod, pod["containers"][0])

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
