"""The resources of a cluster as AWS describes them: find, wait for, compare with a request, describe."""

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from anadil.core.aws import aws_client, aws_errors, request_differences
from anadil.core.errors import DataError, PreflightError, RetryableError
from anadil.core.format import human_seconds
from anadil.launch.hyperpod import requests
from anadil.launch.hyperpod.config import Description
from anadil.launch.hyperpod.requests import CLUSTER_TAG, Request

log = logging.getLogger(__name__)

POLL_S = 15.0
REPEAT_S = 300.0  # Time after which an unchanged state is logged again.

ABSENT = "not there"
Resource = dict[str, Any]


class ClusterResources:
    """The existing resources of a description."""

    def __init__(self, description: Description, clients: Callable[[str], Any] | None = None) -> None:
        """Look for the resources of `description` with the client that `clients`, else boto3, has for a service."""
        self.description = description
        self.client = clients or functools.cache(lambda service: aws_client(service, description.region))

    def call(self, request: Request, action: str = "") -> Resource:
        """Send a request and return the answer; the action of IAM is that of the operation."""
        operation = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in request.operation)
        with aws_errors(request.what, action or f"{request.service}:{request.operation}"):
            return dict(getattr(self.client(request.service), operation.lstrip("_"))(**request.arguments))

    def create(self, request: Request) -> Resource:
        """Send a request that creates or deletes a tagged resource, and return the answer."""
        return self.call(request, f"{request.service}:{request.operation} and the action that tags it")

    def repository(self, name: str) -> Resource | None:
        """Return the repository of a name."""
        arguments = {"repositoryNames": [name]}
        with suppress(DataError):  # it does not exist
            answer = self.call(Request("ecr", "DescribeRepositories", f"repository {name}", arguments))
            return dict(answer["repositories"][0])
        return None

    def file_system(self) -> Resource | None:
        """Return the file system with this cluster's tag, unless it is being deleted."""
        with aws_errors("file systems", "fsx:DescribeFileSystems"):
            pages = self.client("fsx").get_paginator("describe_file_systems").paginate()
            for system in (each for page in pages for each in page["FileSystems"]):
                tags = {tag["Key"]: tag["Value"] for tag in system.get("Tags", ())}
                gone = system.get("Lifecycle") == "DELETING"
                if tags.get(CLUSTER_TAG) == self.description.name and not gone:
                    return dict(system)
        return None

    def links(self, file_system: str) -> dict[str, Resource]:
        """Return directory of a file system -> its link to S3."""
        arguments: Resource = {"Filters": [{"Name": "file-system-id", "Values": [file_system]}]}
        links: dict[str, Resource] = {}
        while True:  # botocore has no paginator for it
            operation, what = "DescribeDataRepositoryAssociations", f"links of {file_system}"
            page = self.call(Request("fsx", operation, what, arguments))
            for link in page["Associations"]:
                if link.get("Lifecycle") != "DELETING":
                    links[str(link["FileSystemPath"]).rstrip("/")] = link
            if not page.get("NextToken"):
                return links
            arguments["NextToken"] = page["NextToken"]

    def cluster(self) -> Resource | None:
        """Return the HyperPod cluster."""
        name = self.description.name
        with suppress(DataError):  # it does not exist
            return self.call(
                Request("sagemaker", "DescribeCluster", f"cluster {name}", {"ClusterName": name})
            )
        return None

    def nodes(self) -> list[Resource]:
        """Return the nodes of the cluster."""
        name = self.description.name
        with aws_errors(f"nodes of {name}", "sagemaker:ListClusterNodes"):
            pages = self.client("sagemaker").get_paginator("list_cluster_nodes").paginate(ClusterName=name)
            return [each for page in pages for each in page["ClusterNodeSummaries"]]

    def eks(self) -> Resource:
        """Return the EKS cluster, which must exist."""
        name = self.description.eks_name
        return dict(
            self.call(Request("eks", "DescribeCluster", f"EKS cluster {name}", {"name": name}))["cluster"]
        )

    def subnets(self, ids: list[str]) -> list[Resource]:
        """Return subnets by their ids."""
        what = f"subnets {', '.join(ids)}"
        return list(self.call(Request("ec2", "DescribeSubnets", what, {"SubnetIds": ids}))["Subnets"])

    def security_groups(self, ids: list[str]) -> list[Resource]:
        """Return security groups by their ids."""
        what = f"security groups {', '.join(ids)}"
        answer = self.call(Request("ec2", "DescribeSecurityGroups", what, {"GroupIds": ids}))
        return list(answer["SecurityGroups"])


def wait_until(
    what: str,
    state_of: Callable[[], tuple[str, str]],
    *,
    good: tuple[str, ...],
    bad: tuple[str, ...],
    timeout_s: float,
) -> str:
    """Poll the state of a resource, with AWS's message about it, until it is a good one; log each change."""
    started = logged = time.monotonic()
    before = ""
    while True:
        state, message = state_of()
        now = time.monotonic()
        if state != before or now - logged > REPEAT_S:
            detail = f", {message}" if message else ""
            log.info("%s: %s%s (%s)", what, state, detail, human_seconds(now - started))
            before, logged = state, now
        if state in good:
            return state
        if state in bad:
            raise PreflightError(
                f"{what}: {state}: {message or 'AWS gives no reason'}; remove it in the console and run the same command again"
            )
        if now - started > timeout_s:
            raise RetryableError(
                f"{what}: still {state} after {human_seconds(timeout_s)}; run the same command again to wait on"
            )
        time.sleep(POLL_S)


def failure_of(resource: Resource) -> str:
    """Return why a resource of FSx failed, in AWS's words."""
    return str(resource.get("FailureDetails", {}).get("Message", ""))


def differences_from(request: Request, resource: Resource) -> list[str]:
    """Return where a resource differs from the request that would create it."""
    asked = {key: value for key, value in request.arguments.items() if key.lower() != "tags"}
    if request.operation == "CreateCluster":
        return request_differences(_by_name(asked), _by_name(_as_requested(resource)))
    if request.operation == "CreateFileSystem":
        # FSx returns the network interfaces, not the security groups.
        asked.pop("SecurityGroupIds")
    if request.operation == "CreateDataRepositoryAssociation":
        asked.pop("BatchImportMetaDataOnCreate")
    return request_differences(asked, resource)


def _by_name(cluster: Resource) -> Resource:
    groups = {group["InstanceGroupName"]: group for group in cluster.get("InstanceGroups", ())}
    return {**cluster, "InstanceGroups": groups}


def _as_requested(cluster: Resource) -> Resource:
    """Translate an answer of DescribeCluster into the terms of CreateCluster."""
    groups = []
    for group in cluster.get("InstanceGroups", ()):
        kubernetes = group.get("KubernetesConfig", {})
        asked = {
            "InstanceCount": group.get("TargetCount"),
            "MinInstanceCount": group.get("MinCount"),
            "KubernetesConfig": {
                "Labels": kubernetes.get("DesiredLabels", kubernetes.get("Labels")),
                "Taints": kubernetes.get("DesiredTaints", kubernetes.get("Taints")),
            },
        }
        groups.append({**group, **asked})
    return {**cluster, "InstanceGroups": groups}


class ResourceState(NamedTuple):
    """One line of `anadil cluster describe`."""

    part: str
    state: str
    detail: str = ""


def describe_cluster(resources: ClusterResources) -> list[ResourceState]:
    """Return the state of the EKS cluster, repositories, file system, links, cluster, groups and nodes."""
    description, eks = resources.description, resources.eks()
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    detail = f"Kubernetes {eks.get('version')}, authentication {mode}"
    rows = [ResourceState(f"EKS cluster {description.eks_name}", str(eks.get("status", "")), detail)]
    for request in requests.repositories(description):
        existing = resources.repository(request.arguments["repositoryName"])
        detail = "; ".join(differences_from(request, existing)) if existing else ""
        rows.append(ResourceState(request.what, "there" if existing else ABSENT, detail))
    return [*rows, *_describe_storage(resources), *_describe_machines(resources)]


def _describe_storage(resources: ClusterResources) -> Iterator[ResourceState]:
    storage = requests.file_system(resources.description)
    if storage is None:
        return
    system = resources.file_system()
    if system is None:
        yield ResourceState(storage.what, ABSENT)
        return
    name = str(system["FileSystemId"])
    lustre = system.get("LustreConfiguration", {})
    facts = [f"{system.get('StorageCapacity')} GiB", system.get("DNSName"), lustre.get("MountName")]
    detail = ", ".join(str(fact) for fact in facts if fact)
    causes = "; ".join([detail, *differences_from(storage, system)])
    yield ResourceState(f"file system {name}", str(system.get("Lifecycle", "")), causes)
    planned = list(requests.links(resources.description, name))
    existing = resources.links(name) if planned else {}
    for request in planned:
        link = existing.get(request.arguments["FileSystemPath"])
        reasons = [failure_of(link), *differences_from(request, link)] if link else []
        state = str(link["Lifecycle"]) if link else ABSENT
        yield ResourceState(request.what, state, "; ".join(filter(None, reasons)))


def _describe_machines(resources: ClusterResources) -> Iterator[ResourceState]:
    request = requests.cluster(resources.description)
    cluster = resources.cluster()
    if cluster is None:
        yield ResourceState(request.what, ABSENT)
        return
    causes = [str(cluster.get("FailureMessage") or ""), *differences_from(request, cluster)]
    yield ResourceState(request.what, str(cluster["ClusterStatus"]), "; ".join(filter(None, causes)))
    for group in cluster.get("InstanceGroups", ()):
        counts = f"{group.get('CurrentCount', 0)} of {group.get('TargetCount', 0)}"
        detail = f"{counts} {group.get('InstanceType', '')}".strip()
        yield ResourceState(f"group {group['InstanceGroupName']}", str(group.get("Status", "")), detail)
    for node in resources.nodes():
        status = node["InstanceStatus"]
        details = [node["InstanceGroupName"], node["InstanceType"], status.get("Message")]
        yield ResourceState(
            f"node {node['InstanceId']}", str(status["Status"]), ", ".join(filter(None, details))
        )
