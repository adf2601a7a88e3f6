"""`anadil cluster create`: make what is not there yet, compare what is, wait for all of it."""

import logging
from collections.abc import Iterator

from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.preflight import check
from anadil.launch.hyperpod.requests import Request
from anadil.launch.hyperpod.resources import Part, Parts, changed
from anadil.launch.hyperpod.waiters import until

log = logging.getLogger(__name__)

FILE_SYSTEM_S = 3_600.0
"""A file system takes some ten minutes."""
LINK_S = 6 * 3_600.0
"""A link with its metadata: millions of files take hours."""
CLUSTER_S = 4 * 3_600.0
"""Machines, lifecycle script and deep health checks; AWS itself gives a group up after three hours."""


def create(parts: Parts, *, wait: bool = True) -> dict[str, str]:
    """Make the parts of a description; part -> id or state.

    Args:
        parts: What is there.
        wait: Whether to wait until the cluster is in service; the file system is waited for in any case,
            because its links need it.

    Raises:
        PreflightError: Something is missing, or AWS could not make a part.
    """
    description = parts.description
    check(description, parts)
    made: dict[str, str] = {}
    for request in requests.repositories(description):
        there = parts.repository(request.arguments["repositoryName"])
        part = _ensured(parts, request, there, "repository")
        made[request.what] = str(part["repositoryUri"])
    for request in requests.file_systems(description):
        system = _ensured(parts, request, parts.file_system(), "FileSystem")
        name = str(system["FileSystemId"])
        _await_file_system(parts, name)
        made |= dict(_linked(parts, name))
        made |= _mount(parts)
    _ensured(parts, requests.cluster(description), parts.cluster(), "")
    made[f"HyperPod cluster {description.name}"] = _await_cluster(parts) if wait else "Creating"
    _tell_preload(parts)
    return made


def _ensured(parts: Parts, request: Request, there: Part | None, key: str) -> Part:
    """The part, made or found; what is found is left as it is."""
    if there is None:
        made = parts.call(request)
        log.info("%s: created", request.what)
        return dict(made[key]) if key else made
    causes = changed(request, there)
    if causes:
        log.warning("%s: is there, but other than described, and left: %s", request.what, "; ".join(causes))
    else:
        log.info("%s: is there", request.what)
    return there


def _linked(parts: Parts, file_system: str) -> Iterator[tuple[str, str]]:
    asked = list(requests.links(parts.description, file_system))
    there = {link["FileSystemPath"].rstrip("/"): link for link in parts.links(file_system)} if asked else {}
    ids = {}
    for request in asked:
        path = request.arguments["FileSystemPath"]
        ids[request.what] = _ensured(parts, request, there.get(path), "Association")["AssociationId"]
    for what, link in ids.items():
        yield what, _await_link(parts, file_system, what, str(link))


def _await_file_system(parts: Parts, name: str) -> None:
    def look() -> tuple[str, str]:
        system: Part = parts.file_system() or {"Lifecycle": "CREATING"}  # not listed yet
        return str(system.get("Lifecycle", "AVAILABLE")), str(
            system.get("FailureDetails", {}).get("Message", "")
        )

    until(
        f"file system {name}",
        look,
        good=("AVAILABLE", "UPDATING"),
        bad=("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE", "DELETING"),
        patience_s=FILE_SYSTEM_S,
    )


def _await_link(parts: Parts, file_system: str, what: str, association: str) -> str:
    def look() -> tuple[str, str]:
        found = [link for link in parts.links(file_system) if link["AssociationId"] == association]
        link: Part = found[0] if found else {"Lifecycle": "CREATING"}
        return str(link["Lifecycle"]), str(link.get("FailureDetails", {}).get("Message", ""))

    return until(
        what,
        look,
        good=("AVAILABLE", "UPDATING"),
        bad=("FAILED", "MISCONFIGURED", "DELETING"),
        patience_s=LINK_S,
    )


def _await_cluster(parts: Parts) -> str:
    def look() -> tuple[str, str]:
        cluster: Part = parts.cluster() or {"ClusterStatus": "Creating"}
        groups = cluster.get("InstanceGroups", ())
        counts = ", ".join(
            f"{group['InstanceGroupName']} {group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)}"
            for group in groups
        )
        return str(cluster["ClusterStatus"]), str(cluster.get("FailureMessage") or counts)

    return until(
        f"HyperPod cluster {parts.description.name}",
        look,
        good=("InService",),
        bad=("Failed", "Deleting", "RollingBack"),
        patience_s=CLUSTER_S,
    )


def _mount(parts: Parts) -> dict[str, str]:
    """What the PersistentVolume of the file system needs."""
    system = parts.file_system() or {}
    lustre = system.get("LustreConfiguration", {})
    told = {
        "file system": system.get("FileSystemId"),
        "file system dnsname": system.get("DNSName"),
        "file system mountname": lustre.get("MountName"),
    }
    return {key: str(value) for key, value in told.items() if value}


def _tell_preload(parts: Parts) -> None:
    fsx = parts.description.fsx
    for link in fsx.links if fsx else ():
        if link.preload:
            log.info(
                "%s: its files are fetched when they are first read; to fetch them now, in a pod that mounts the "
                "file system at /fsx: find /fsx%s -type f -print0 | xargs -0 -n 50 -P 8 lfs hsm_restore",
                link.path,
                link.path,
            )
