"""`anadil cluster create` and `delete`.

`create` checks AWS, creates what does not exist, compares what does, and waits for all of it. `delete` removes the
cluster, and on request the file system, after its exports to S3.
"""

import logging
import re
from collections.abc import Callable, Iterator

from anadil.core.errors import DataError, PreflightError
from anadil.core.format import counted
from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.config import NEWEST, OLDEST
from anadil.launch.hyperpod.requests import FILE_SYSTEM, Request
from anadil.launch.hyperpod.resources import (
    ClusterResources,
    Resource,
    differences_from,
    failure_of,
    wait_until,
)
from anadil.preflight.check import CheckResult, failed, passed

log = logging.getLogger(__name__)

FILE_SYSTEM_S = 3_600.0  # A file system takes some ten minutes.
LINK_S = 6 * 3_600.0  # A link with its metadata: millions of files take hours.
# Machines, lifecycle script and deep health checks; AWS itself gives a group up after three hours.
CLUSTER_S = 4 * 3_600.0
# Source: SageMaker AI guide, "Getting started with Amazon EKS support in HyperPod".
MODES = ("API", "API_AND_CONFIG_MAP")
# Types whose machines talk over EFA. Source: Amazon EC2 guide, instance types that support EFA.
WITH_EFA = re.compile(r"^ml\.(p4|p5|p6|trn|g5\.(8|12|16|24|48)|g6\.(8|12|16|24|48)|g6e\.(8|12|16|24|48))")
DELETION_S = 3_600.0
EXPORT_S = 24 * 3_600.0
GONE = "gone"


def create_cluster(resources: ClusterResources, *, wait: bool = True) -> dict[str, str]:
    """Create the resources of a description that do not exist; return resource -> id or state.

    Without `wait`, only the file system is waited for, as its links need it.
    """
    description = resources.description
    _check_preconditions(resources)
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
    for link in description.fsx.links if description.fsx else ():
        if link.preload:
            log.info(
                "%s: its files are fetched when they are first read; to fetch them now, in a pod that mounts the "
                "file system at /fsx: find /fsx%s -type f -print0 | xargs -0 -n 50 -P 8 lfs hsm_restore",
                link.path, link.path,
            )  # fmt: skip
    return created


def _check_preconditions(resources: ClusterResources) -> None:
    eks = resources.eks()
    results = [*_check_eks(resources, eks), *_check_network(resources, eks), *_check_efa(resources)]
    for result in results:
        if result.status != "failed":
            result.log()
    # Every failure is reported at once.
    if failures := [each for each in results if each.status == "failed"]:
        listed = "\n".join(f"  {each.name}: {each.detail}; {each.remedy}" for each in failures)
        name = resources.description.name
        raise PreflightError(f"{name}: {counted(len(failures), 'thing')} to put right first\n{listed}")


def _check_eks(resources: ClusterResources, eks: Resource) -> Iterator[CheckResult]:
    cluster = resources.description.eks_name
    name = f"EKS cluster {cluster}"
    if eks.get("status") != "ACTIVE":
        yield failed(name, str(eks.get("status")), "wait until it is ACTIVE")
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    if mode not in MODES:
        command = (
            f"aws eks update-cluster-config --name {cluster} --access-config authenticationMode={MODES[-1]}"
        )
        yield failed(name, f"authentication mode {mode}, and HyperPod needs {' or '.join(MODES)}", command)
    version = tuple(int(part) for part in str(eks.get("version", "0.0")).split(".")[:2])
    if version < OLDEST:
        yield failed(name, f"Kubernetes {eks.get('version')} is too old", "update it to 1.28 or later")
    elif version > NEWEST:
        detail = f"Kubernetes {eks.get('version')} is newer than what AWS lists for HyperPod (1.28 to 1.34)"
        yield passed(name, detail, "others may work")


def _check_network(resources: ClusterResources, eks: Resource) -> Iterator[CheckResult]:
    """Check that the subnets are in the VPC of the EKS cluster, and the file system in a zone of the machines."""
    description, fsx = resources.description, resources.description.fsx
    vpc = eks.get("resourcesVpcConfig", {}).get("vpcId")
    ids = sorted({*description.subnets, fsx.subnet if fsx else description.subnets[0]})
    subnets = {subnet["SubnetId"]: subnet for subnet in resources.subnets(ids)}
    for name, subnet in subnets.items():
        if vpc and subnet["VpcId"] != vpc:
            detail = f"{name} is in {subnet['VpcId']}, and the EKS cluster in {vpc}"
            yield failed("subnets", detail, "give a subnet of that")
    zones = {subnets[name]["AvailabilityZone"] for name in description.subnets if name in subnets}
    if not fsx or fsx.subnet not in subnets:
        return
    zone = subnets[fsx.subnet]["AvailabilityZone"]
    if zone not in zones:
        detail = f"{fsx.subnet} is in {zone}, the machines are in {', '.join(sorted(zones))}"
        yield failed("fsx.subnet", detail, "the file system must be in the zone of the machines")
    elif len(zones) > 1:
        detail = f"machines of other zones than {zone} read the file system over a slower network"
        yield passed("fsx.subnet", detail, "name subnets of one zone")


def _check_efa(resources: ClusterResources) -> Iterator[CheckResult]:
    """Check for a security group that lets all traffic to and from itself pass, as EFA needs."""
    description = resources.description
    if not any(group.count > 1 and WITH_EFA.match(group.type) for group in description.groups):
        return
    groups = resources.security_groups(list(description.security_groups))
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(
            rule.get("IpProtocol") == "-1"
            and any(pair.get("GroupId") == group["GroupId"] for pair in rule.get("UserIdGroupPairs", ()))
            for group in groups
            for rule in group.get(key, ())
        ):
            names = ", ".join(description.security_groups)
            detail = f"none of {names} lets all traffic of itself {way}, which EFA needs"
            remedy = "add a rule for all protocols whose other side is the group itself"
            yield failed("security_groups", detail, remedy)


def _ensure(resources: ClusterResources, request: Request, existing: Resource | None, key: str) -> Resource:
    """Return the resource, created or existing; an existing one is left unchanged."""
    if existing is None:
        answer = resources.create(request)
        log.info("%s: created", request.what)
        return dict(answer[key]) if key else answer
    if causes := differences_from(request, existing):
        log.warning(
            "%s: exists, differs from the description and is left: %s", request.what, "; ".join(causes)
        )
    else:
        log.info("%s: exists", request.what)
    return existing


def _link(resources: ClusterResources, file_system: str) -> Iterator[tuple[str, str]]:
    """Create all links, then wait for each; yield link and state."""
    planned = {
        request.arguments["FileSystemPath"]: request
        for request in requests.links(resources.description, file_system)
    }
    existing = resources.links(file_system) if planned else {}
    for path, request in planned.items():
        _ensure(resources, request, existing.get(path), "Association")
    for path, request in planned.items():

        def find(path: str = path) -> Resource | None:
            return resources.links(file_system).get(path)

        yield request.what, _await_storage(request.what, find, LINK_S)


def _await_storage(what: str, find: Callable[[], Resource | None], timeout_s: float) -> str:
    def state_of() -> tuple[str, str]:
        resource = find() or {"Lifecycle": "CREATING"}  # not listed yet
        return str(resource.get("Lifecycle", "AVAILABLE")), failure_of(resource)

    bad = ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE", "DELETING")
    return wait_until(what, state_of, good=("AVAILABLE", "UPDATING"), bad=bad, timeout_s=timeout_s)


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
    """Return the values that the PersistentVolume of the file system needs."""
    system = resources.file_system() or {}
    values = {
        "file system": system.get("FileSystemId"),
        "file system dnsname": system.get("DNSName"),
        "file system mountname": system.get("LustreConfiguration", {}).get("MountName"),
    }
    return {key: str(value) for key, value in values.items() if value}


def deletions(
    resources: ClusterResources | None, *, cluster: str, with_file_system: bool
) -> Iterator[Request]:
    """Yield the calls that `delete` makes, in order; without resources, for a file system whose id is not known."""
    yield Request("sagemaker", "DeleteCluster", f"HyperPod cluster {cluster}", {"ClusterName": cluster})
    system = resources.file_system() if resources else {"FileSystemId": FILE_SYSTEM}
    if not with_file_system or not system:
        return
    name = str(system["FileSystemId"])
    links = resources.links(name) if resources else {}
    exports = [
        path.lstrip("/")
        for path, link in links.items()
        if link.get("S3", {}).get("AutoExportPolicy", {}).get("Events")
    ]
    if exports:
        arguments = {
            "FileSystemId": name,
            "Type": "EXPORT_TO_REPOSITORY",
            "Paths": exports,
            "Report": {"Enabled": False},
        }
        yield Request("fsx", "CreateDataRepositoryTask", f"export of {', '.join(exports)}", arguments)
    yield Request("fsx", "DeleteFileSystem", f"file system {name}", {"FileSystemId": name})


def delete_cluster(resources: ClusterResources, *, confirmed: bool, with_file_system: bool) -> list[str]:
    """Remove the cluster, and the file system where that is asked for; return what was removed."""
    name = resources.description.name
    if not confirmed:
        also = " and its file system with all files that are not on S3" if with_file_system else ""
        raise PreflightError(f"{name}: would delete the HyperPod cluster{also}; say --yes to do it")
    removed = []
    # A list, because what exists is asked before anything is removed.
    for request in list(deletions(resources, cluster=name, with_file_system=with_file_system)):
        if request.operation == "DeleteCluster" and resources.cluster() is None:
            log.info("%s: does not exist", request.what)
            continue
        answer = resources.create(request)
        log.info("%s: requested", request.what)
        if request.operation == "CreateDataRepositoryTask":
            _await_export(resources, str(answer["DataRepositoryTask"]["TaskId"]))
            continue
        if request.operation == "DeleteCluster":

            def state_of() -> tuple[str, str]:
                cluster = resources.cluster() or {"ClusterStatus": GONE}
                return str(cluster["ClusterStatus"]), str(cluster.get("FailureMessage", ""))

            wait_until(request.what, state_of, good=(GONE,), bad=("Failed",), timeout_s=DELETION_S)
        removed.append(request.what)
    system = resources.file_system() if resources.description.fsx and not with_file_system else None
    if system:
        log.info("file system %s is kept; --with-file-system removes it too", system["FileSystemId"])
    if resources.description.ecr:
        log.info("the repositories under %s/ are kept", resources.description.ecr.prefix)
    return removed


def _await_export(resources: ClusterResources, task: str) -> None:
    what = f"export {task}"

    def state_of() -> tuple[str, str]:
        answer = resources.call(Request("fsx", "DescribeDataRepositoryTasks", what, {"TaskIds": [task]}))
        result = next(iter(answer["DataRepositoryTasks"]), None)
        if result is None:
            raise DataError(f"{what}: does not exist any more; run the same command again")
        failed = result.get("Status", {}).get("FailedCount", 0)
        if result["Lifecycle"] == "SUCCEEDED" and failed:
            raise PreflightError(
                f"{what}: {failed} files could not be written to S3, so the file system is kept; see the role of "
                "the link and its bucket"
            )
        return str(result["Lifecycle"]), failure_of(result)

    bad = ("FAILED", "CANCELED", "CANCELING")
    wait_until(what, state_of, good=("SUCCEEDED",), bad=bad, timeout_s=EXPORT_S)
