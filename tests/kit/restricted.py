"""Pod Security Standards, profile "restricted", as a function over a pod's spec.

The admission controller does the same in a namespace labelled
`pod-security.kubernetes.io/enforce: restricted`.

Source: Kubernetes, "Pod Security Standards", version 1.34; k8s.io/pod-security-admission, policy/.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Spec = Mapping[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
}
PROFILES = {"RuntimeDefault", "Localhost"}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(pod_spec: Spec, annotations: Mapping[str, str] | None = None) -> list[str]:
    """What the profile "restricted" forbids in a pod, a sentence each; empty where it is admitted.

    Args:
        pod_spec: `spec` of a Pod, or `template.spec` of what makes pods.
        annotations: Of the pod; older clusters name AppArmor profiles there.
    """
    found = [*_host(pod_spec), *_volumes(pod_spec), *_pod_context(pod_spec)]
    for where, container in containers(pod_spec):
        found += _container(where, container, pod_spec.get("securityContext") or {})
    for key, profile in (annotations or {}).items():
        allowed = profile in ("", "runtime/default") or profile.startswith("localhost/")
        if key.startswith(APPARMOR) and not allowed:
            found.append(f"annotation {key}: {profile}")
    return found


def containers(pod_spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Every container of a pod, with a name that says which it is."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod_spec.get(kind) or []:
            yield f"{kind}[{container.get('name', '?')}]", container


def _host(spec: Spec) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"{key}: shares a namespace of the node"


def _volumes(spec: Spec) -> Iterator[str]:
    for volume in spec.get("volumes") or []:
        kinds = set(volume) - {"name"}
        for kind in sorted(kinds - VOLUMES):
            yield f"volumes[{volume.get('name', '?')}]: {kind} is not one of the allowed kinds"
        if not kinds:
            yield f"volumes[{volume.get('name', '?')}]: has no kind"


def _pod_context(spec: Spec) -> Iterator[str]:
    context = spec.get("securityContext") or {}
    yield from _any_context("pod", context)
    for sysctl in context.get("sysctls") or []:
        if sysctl.get("name") not in SYSCTLS:
            yield f"pod: sysctl {sysctl.get('name')} is not one of the safe ones"


def _any_context(where: str, context: Spec) -> Iterator[str]:
    """Fields that a pod and a container both have."""
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser 0 is root"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: runAsNonRoot is false"
    for key in ("seccompProfile", "appArmorProfile"):
        profile = context.get(key)
        if profile is not None and profile.get("type") not in PROFILES:
            yield f"{where}: {key} {profile.get('type')}"
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in SELINUX_TYPES:
        yield f"{where}: SELinux type {selinux['type']}"
    for key in ("user", "role"):
        if selinux.get(key):
            yield f"{where}: SELinux {key} {selinux[key]}"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{where}: windowsOptions.hostProcess"


def _container(where: str, container: Spec, pod: Spec) -> Iterator[str]:
    context = container.get("securityContext") or {}
    yield from _any_context(where, context)
    if context.get("privileged"):
        yield f"{where}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: allowPrivilegeEscalation is not false"
    if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{where}: runAsNonRoot is not true, here or in the pod"
    if not context.get("seccompProfile") and not pod.get("seccompProfile"):
        yield f"{where}: no seccompProfile, here or in the pod"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{where}: capabilities.drop lacks ALL"
    for capability in capabilities.get("add") or []:
        if capability != "NET_BIND_SERVICE":
            yield f"{where}: adds the capability {capability}"
    if context.get("procMount", "Default") != "Default":
        yield f"{where}: procMount {context['procMount']}"
    yield from _reaches_host(where, container)


def _reaches_host(where: str, container: Spec) -> Iterator[str]:
    for port in container.get("ports") or []:
        if port.get("hostPort"):
            yield f"{where}: hostPort {port['hostPort']}"
    lifecycle = container.get("lifecycle") or {}
    handlers = {name: container.get(name) for name in HANDLERS} | lifecycle
    for name, handler in handlers.items():
        for action in ("httpGet", "tcpSocket"):
            host = ((handler or {}).get(action) or {}).get("host") if isinstance(handler, dict) else None
            if host:
                yield f"{where}: {name} asks the host {host}"
