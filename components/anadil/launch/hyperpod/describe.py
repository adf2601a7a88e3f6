"""`anadil cluster describe`: the state of every part, and the health of every machine."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.resources import Parts, changed

ABSENT = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One part."""

    part: str
    state: str
    detail: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def describe(parts: Parts) -> list[Row]:
    """The EKS cluster, repositories, file system, links, cluster, groups and nodes."""
    return [*_eks(parts), *_repositories(parts), *_storage(parts), *_cluster(parts)]


def _eks(parts: Parts) -> Iterator[Row]:
    eks = parts.eks()
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    yield Row(
        part=f"EKS cluster {parts.description.eks_name}",
        state=str(eks.get("status", "")),
        detail=f"Kubernetes {eks.get('version')}, authentication {mode}",
    )


def _repositories(parts: Parts) -> Iterator[Row]:
    for request in requests.repositories(parts.description):
        found = parts.repository(request.arguments["repositoryName"])
        detail = "; ".join(changed(request, found)) if found else ""
        yield Row(part=request.what, state="there" if found else ABSENT, detail=detail)


def _storage(parts: Parts) -> Iterator[Row]:
    for request in requests.file_systems(parts.description):
        system = parts.file_system()
        if system is None:
            yield Row(part=request.what, state=ABSENT)
            continue
        name = str(system["FileSystemId"])
        lustre = system.get("LustreConfiguration", {})
        told = [f"{system.get('StorageCapacity')} GiB", system.get("DNSName"), lustre.get("MountName")]
        detail = ", ".join(str(each) for each in told if each)
        causes = changed(request, system)
        yield Row(
            part=f"file system {name}",
            state=str(system.get("Lifecycle", "")),
            detail="; ".join([detail, *causes]),
        )
        asked = list(requests.links(parts.description, name))
        there = {link["FileSystemPath"].rstrip("/"): link for link in parts.links(name)} if asked else {}
        for wanted in asked:
            link = there.get(wanted.arguments["FileSystemPath"])
            causes = changed(wanted, link) if link else []
            failure = str(link.get("FailureDetails", {}).get("Message", "")) if link else ""
            yield Row(
                part=wanted.what,
                state=str(link["Lifecycle"]) if link else ABSENT,
                detail="; ".join(filter(None, [failure, *causes])),
            )


def _cluster(parts: Parts) -> Iterator[Row]:
    request = requests.cluster(parts.description)
    cluster = parts.cluster()
    if cluster is None:
        yield Row(part=request.what, state=ABSENT)
        return
    told = [str(cluster.get("FailureMessage") or ""), *changed(request, cluster)]
    yield Row(part=request.what, state=str(cluster["ClusterStatus"]), detail="; ".join(filter(None, told)))
    for group in cluster.get("InstanceGroups", ()):
        counts = (
            f"{group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)} {group.get('InstanceType', '')}"
        )
        yield Row(
            part=f"group {group['InstanceGroupName']}",
            state=str(group.get("Status", "")),
            detail=counts.strip(),
        )
    for node in parts.nodes():
        status = node["InstanceStatus"]
        yield Row(
            part=f"node {node['InstanceId']}",
            state=str(status["Status"]),
            detail=", ".join(
                filter(None, [node["InstanceGroupName"], node["InstanceType"], status.get("Message")])
            ),
        )
