"""`anadil cluster create`: create what does not exist, compare what does, wait for all of it."""

import logging
from collections.abc import Callable, Iterator

from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.preconditions import check_preconditions
from anadil.launch.hyperpod.requests import Request
from anadil.launch.hyperpod.resources import (
    ClusterResources,
    Resource,
    differences_from,
    failure_of,
    wait_until,
)

log = logging.getLogger(__name__)

FILE_SYSTEM_S = 3_600.0  # A file system takes some ten minutes.
LINK_S = 6 * 3_600.0  # A link with its metadata: millions of files take hours.
CLUSTER_S = 4 * 3_600.0
"""Machines, lifecycle script and deep health checks; AWS itself gives a group up after three hours."""


def create_cluster(resources: ClusterResources, *, wait: bool = True) -> dict[str, str]:
    """Create the resources of a description; resource -> id or state.

    Args:
        resources: What exists.
        wait: Whether to wait until the cluster is in service; the file system is waited for in any case,
            because its links need it.

    Raises:
        PreflightError: Something is missing, or AWS could not create a resource.
    """
    description = resources.description
    check_preconditions(resources)
    created: dict[str, str] = {}
    for request in requests.repositories(description):
        existing = resources.repository(request.arguments["repositoryName"])
        repository = _ensure(resources, request, existing, "repository")
        created[request.what] = str(repository["repositoryUri"])
    if storage := requests.file_system(description):
        name = str(_ensure(resources, storage, resources.file_system(), "FileSystem")["FileSystemId"])
        _await_storage(f"file system {name}", resources.file_system, FILE_SYSTEM_S)
        created |= dict(_link(resources, name))
        created |= _mount(resources)
    _ensure(resources, requests.cluster(description), resources.cluster(), "")
    created[f"HyperPod cluster {description.name}"] = _await_cluster(resources) if wait else "Creating"
    _explain_preload(resources)
    return created


def _ensure(resources: ClusterResources, request: Request, found: Resource | None, key: str) -> Resource:
    """The resource, created or found; what is found is left unchanged."""
    if found is None:
        answer = resources.call(request)
        log.info("%s: created", request.what)
        return dict(answer[key]) if key else answer
    if causes := differences_from(request, found):
        log.warning(
            "%s: exists, differs from the description and is left: %s", request.what, "; ".join(causes)
        )
    else:
        log.info("%s: exists", request.what)
    return found


def _link(resources: ClusterResources, file_system: str) -> Iterator[tuple[str, str]]:
    """Create all links, then wait for each; link -> state."""
    wanted = {
        request.arguments["FileSystemPath"]: request
        for request in requests.links(resources.description, file_system)
    }
    existing = resources.links(file_system) if wanted else {}
    for path, request in wanted.items():
        _ensure(resources, request, existing.get(path), "Association")
    for path, request in wanted.items():

        def find(path: str = path) -> Resource | None:
            return resources.links(file_system).get(path)

        yield request.what, _await_storage(request.what, find, LINK_S)


def _await_storage(what: str, find: Callable[[], Resource | None], timeout_s: float) -> str:
    """Wait for a file system or a link."""

    def state_of() -> tuple[str, str]:
        resource = find() or {"Lifecycle": "CREATING"}  # not listed yet
        return str(resource.get("Lifecycle", "AVAILABLE")), failure_of(resource)

    good, bad = (
        ("AVAILABLE", "UPDATING"),
        ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE", "DELETING"),
    )
    return wait_until(what, state_of, good=good, bad=bad, timeout_s=timeout_s)


def _await_cluster(resources: ClusterResources) -> str:
    def state_of() -> tuple[str, str]:
        cluster = resources.cluster() or {"ClusterStatus": "Creating"}
        counts = ", ".join(
            f"{group['InstanceGroupName']} {group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)}"
            for group in cluster.get("InstanceGroups", ())
        )
        return str(cluster["ClusterStatus"]), str(cluster.get("FailureMessage") or counts)

    what, bad = f"HyperPod cluster {resources.description.name}", ("Failed", "Deleting", "RollingBack")
    return wait_until(what, state_of, good=("InService",), bad=bad, timeout_s=CLUSTER_S)


def _mount(resources: ClusterResources) -> dict[str, str]:
    """Values that the PersistentVolume of the file system needs."""
    system = resources.file_system() or {}
    values = {
        "file system": system.get("FileSystemId"),
        "file system dnsname": system.get("DNSName"),
        "file system mountname": system.get("LustreConfiguration", {}).get("MountName"),
    }
    return {key: str(value) for key, value in values.items() if value}


def _explain_preload(resources: ClusterResources) -> None:
    fsx = resources.description.fsx
    for link in fsx.links if fsx else ():
        if link.preload:
            log.info(
                "%s: its files are fetched when they are first read; to fetch them now, in a pod that mounts the "
                "file system at /fsx: find /fsx%s -type f -print0 | xargs -0 -n 50 -P 8 lfs hsm_restore",
                link.path,
                link.path,
            )
