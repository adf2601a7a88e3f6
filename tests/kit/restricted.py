"""Pod Security Standards, profile "restricted", as a function over a pod's spec.

Fields that the profile limits and that none of our pods sets are forbidden here altogether, so that the check is a
list of what may stand. Source: Kubernetes, "Pod Security Standards", version 1.34.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Spec = Mapping[str, Any]

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
USER = {"runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile"}
CONTEXTS = {
    "pod": USER | {"fsGroup", "fsGroupChangePolicy", "supplementalGroups"},
    "container": USER | {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"},
}
"""Keys of `securityContext` that may stand."""
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(pod_spec: Spec, annotations: Mapping[str, str] | None = None) -> list[str]:
    """Return what the profile "restricted" forbids in a pod, a sentence each; empty where it is admitted."""
    found = [f"{key}: not allowed" for key in ("hostNetwork", "hostPID", "hostIPC") if pod_spec.get(key)]
    for volume in pod_spec.get("volumes") or []:
        kinds = set(volume) - {"name"}
        if len(kinds & VOLUMES) != 1 or kinds - VOLUMES:
            found.append(
                f"volumes[{volume.get('name', '?')}]: {sorted(kinds)} is not one of the allowed kinds"
            )
    context = pod_spec.get("securityContext") or {}
    found += _context("pod", "pod", context)
    for where, container in containers(pod_spec):
        found += _container(where, container, context)
    return found + [f"annotation {key}" for key in annotations or {} if key.startswith(APPARMOR)]


def containers(pod_spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield every container of a pod, with a name that says which it is."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod_spec.get(kind) or []:
            yield f"{kind}[{container.get('name', '?')}]", container


def _context(where: str, kind: str, context: Spec) -> Iterator[str]:
    yield from (f"{where}: {key} is not allowed" for key in sorted(context.keys() - CONTEXTS[kind]))
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield f"{where}: may run as root"
    if (context.get("seccompProfile") or {"type": "RuntimeDefault"}).get("type") != "RuntimeDefault":
        yield f"{where}: seccompProfile {context['seccompProfile']}"


def _container(where: str, container: Spec, pod: Spec) -> Iterator[str]:
    context = container.get("securityContext") or {}
    yield from _context(where, "container", context)
    merged = {**pod, **context}
    if merged.get("runAsNonRoot") is not True or not merged.get("seccompProfile"):
        yield f"{where}: runAsNonRoot or seccompProfile is set neither here nor in the pod"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: allowPrivilegeEscalation is not false"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where}: capabilities are not exactly drop ALL"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{where}: hostPort"
    for name in HANDLERS:
        probe = container.get(name) or {}
        if any((probe.get(way) or {}).get("host") for way in ("httpGet", "tcpSocket")):
            yield f"{where}: {name} asks another host"
    if set(container.get("lifecycle") or {}):
        yield f"{where}: lifecycle is not checked"
