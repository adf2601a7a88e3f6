"""`anadil cluster describe`: the state of every resource, and the health of every node."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from anadil.hyperpod import requests
from anadil.hyperpod.parts import Resources, differences_from, failure_of

ABSENT = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One resource."""

    part: str
    state: str
    detail: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def describe(resources: Resources) -> list[Row]:
    """The EKS cluster, repositories, file system, links, cluster, groups and nodes."""
    return [*_eks(resources), *_repositories(resources), *_storage(resources), *_cluster(resources)]


def _eks(resources: Resources) -> Iterator[Row]:
    eks = resources.eks()
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    yield Row(
        part=f"EKS cluster {resources.description.eks_name}",
        state=str(eks.get("status", "")),
        detail=f"Kubernetes {eks.get('version')}, authentication {mode}",
    )


def _repositories(resources: Resources) -> Iterator[Row]:
    for request in requests.repositories(resources.description):
        found = resources.repository(request.arguments["repositoryName"])
        detail = "; ".join(differences_from(request, found)) if found else ""
        yield Row(part=request.what, state="there" if found else ABSENT, detail=detail)


def _storage(resources: Resources) -> Iterator[Row]:
    storage = requests.file_system(resources.description)
    if storage is None:
        return
    system = resources.file_system()
    if system is None:
        yield Row(part=storage.what, state=ABSENT)
        return
    name = str(system["FileSystemId"])
    lustre = system.get("LustreConfiguration", {})
    facts = [f"{system.get('StorageCapacity')} GiB", system.get("DNSName"), lustre.get("MountName")]
    detail = ", ".join(str(fact) for fact in facts if fact)
    yield Row(
        part=f"file system {name}",
        state=str(system.get("Lifecycle", "")),
        detail="; ".join([detail, *differences_from(storage, system)]),
    )
    wanted = list(requests.links(resources.description, name))
    found = resources.links(name) if wanted else {}
    for request in wanted:
        link = found.get(request.arguments["FileSystemPath"])
        causes = [failure_of(link), *differences_from(request, link)] if link else []
        state = str(link["Lifecycle"]) if link else ABSENT
        yield Row(part=request.what, state=state, detail="; ".join(filter(None, causes)))


def _cluster(resources: Resources) -> Iterator[Row]:
    request = requests.cluster(resources.description)
    cluster = resources.cluster()
    if cluster is None:
        yield Row(part=request.what, state=ABSENT)
        return
    causes = [str(cluster.get("FailureMessage") or ""), *differences_from(request, cluster)]
    yield Row(part=request.what, state=str(cluster["ClusterStatus"]), detail="; ".join(filter(None, causes)))
    for group in cluster.get("InstanceGroups", ()):
        counts = (
            f"{group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)} {group.get('InstanceType', '')}"
        )
        yield Row(
            part=f"group {group['InstanceGroupName']}",
            state=str(group.get("Status", "")),
            detail=counts.strip(),
        )
    for node in resources.nodes():
        status = node["InstanceStatus"]
        yield Row(
            part=f"node {node['InstanceId']}",
            state=str(status["Status"]),
            detail=", ".join(
                filter(None, [node["InstanceGroupName"], node["InstanceType"], status.get("Message")])
            ),
        )
