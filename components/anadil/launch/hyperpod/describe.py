"""`anadil cluster describe`: the state of every resource, and the health of every node."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.resources import ClusterResources, differences_from, failure_of

ABSENT = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """One resource."""

    part: str
    state: str
    detail: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def describe_cluster(resources: ClusterResources) -> list[ResourceState]:
    """The EKS cluster, repositories, file system, links, cluster, groups and nodes."""
    return [*_eks(resources), *_repositories(resources), *_storage(resources), *_cluster(resources)]


def _eks(resources: ClusterResources) -> Iterator[ResourceState]:
    eks = resources.eks()
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    yield ResourceState(
        part=f"EKS cluster {resources.description.eks_name}",
        state=str(eks.get("status", "")),
        detail=f"Kubernetes {eks.get('version')}, authentication {mode}",
    )


def _repositories(resources: ClusterResources) -> Iterator[ResourceState]:
    for request in requests.repositories(resources.description):
        existing = resources.repository(request.arguments["repositoryName"])
        detail = "; ".join(differences_from(request, existing)) if existing else ""
        yield ResourceState(part=request.what, state="there" if existing else ABSENT, detail=detail)


def _storage(resources: ClusterResources) -> Iterator[ResourceState]:
    storage = requests.file_system(resources.description)
    if storage is None:
        return
    system = resources.file_system()
    if system is None:
        yield ResourceState(part=storage.what, state=ABSENT)
        return
    name = str(system["FileSystemId"])
    lustre = system.get("LustreConfiguration", {})
    facts = [f"{system.get('StorageCapacity')} GiB", system.get("DNSName"), lustre.get("MountName")]
    detail = ", ".join(str(fact) for fact in facts if fact)
    yield ResourceState(
        part=f"file system {name}",
        state=str(system.get("Lifecycle", "")),
        detail="; ".join([detail, *differences_from(storage, system)]),
    )
    wanted = list(requests.links(resources.description, name))
    existing = resources.links(name) if wanted else {}
    for request in wanted:
        link = existing.get(request.arguments["FileSystemPath"])
        causes = [failure_of(link), *differences_from(request, link)] if link else []
        state = str(link["Lifecycle"]) if link else ABSENT
        yield ResourceState(part=request.what, state=state, detail="; ".join(filter(None, causes)))


def _cluster(resources: ClusterResources) -> Iterator[ResourceState]:
    request = requests.cluster(resources.description)
    cluster = resources.cluster()
    if cluster is None:
        yield ResourceState(part=request.what, state=ABSENT)
        return
    causes = [str(cluster.get("FailureMessage") or ""), *differences_from(request, cluster)]
    yield ResourceState(
        part=request.what, state=str(cluster["ClusterStatus"]), detail="; ".join(filter(None, causes))
    )
    for group in cluster.get("InstanceGroups", ()):
        counts = (
            f"{group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)} {group.get('InstanceType', '')}"
        )
        yield ResourceState(
            part=f"group {group['InstanceGroupName']}",
            state=str(group.get("Status", "")),
            detail=counts.strip(),
        )
    for node in resources.nodes():
        status = node["InstanceStatus"]
        yield ResourceState(
            part=f"node {node['InstanceId']}",
            state=str(status["Status"]),
            detail=", ".join(
                filter(None, [node["InstanceGroupName"], node["InstanceType"], status.get("Message")])
            ),
        )
