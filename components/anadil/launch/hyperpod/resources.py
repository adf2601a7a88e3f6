"""The resources of a cluster as AWS describes them: found, compared with a request, waited for."""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from anadil.core.aws import aws_client, aws_errors, request_differences
from anadil.core.errors import DataError, PreflightError, RetryableError
from anadil.core.format import human_seconds
from anadil.launch.hyperpod.config import Description
from anadil.launch.hyperpod.requests import CLUSTER_TAG, Request

log = logging.getLogger(__name__)

POLL_S = 15.0
REPEAT_S = 300.0  # Time after which an unchanged state is logged again.

Resource = dict[str, Any]


class ClusterResources:
    """The existing resources of a description."""

    def __init__(self, description: Description, clients: Callable[[str], Any] | None = None) -> None:
        """Look for the resources of `description`.

        Args:
            description: The cluster.
            clients: What gives the client of a service; left out, boto3.
        """
        self.description = description
        self.client = clients or functools.cache(lambda service: aws_client(service, description.region))

    def repository(self, name: str) -> Resource | None:
        """The repository of a name."""
        try:
            with aws_errors(f"repository {name}", "ecr:DescribeRepositories"):
                return dict(
                    self.client("ecr").describe_repositories(repositoryNames=[name])["repositories"][0]
                )
        except DataError:  # it does not exist
            return None

    def file_system(self) -> Resource | None:
        """The file system that bears this cluster's tag, one that goes away left out."""
        with aws_errors("file systems", "fsx:DescribeFileSystems"):
            pages = self.client("fsx").get_paginator("describe_file_systems").paginate()
            for system in (each for page in pages for each in page["FileSystems"]):
                tags = {tag["Key"]: tag["Value"] for tag in system.get("Tags", ())}
                gone = system.get("Lifecycle") == "DELETING"
                if tags.get(CLUSTER_TAG) == self.description.name and not gone:
                    return dict(system)
        return None

    def links(self, file_system: str) -> dict[str, Resource]:
        """Directory of a file system -> its link to S3."""
        wanted = [{"Name": "file-system-id", "Values": [file_system]}]
        results: list[Resource] = []
        more: Resource = {}
        with aws_errors(f"links of {file_system}", "fsx:DescribeDataRepositoryAssociations"):
            while True:  # botocore has no paginator for it
                page = self.client("fsx").describe_data_repository_associations(Filters=wanted, **more)
                results.extend(page["Associations"])
                if not page.get("NextToken"):
                    break
                more = {"NextToken": page["NextToken"]}
        return {
            str(link["FileSystemPath"]).rstrip("/"): link
            for link in results
            if link.get("Lifecycle") != "DELETING"
        }

    def cluster(self) -> Resource | None:
        """The HyperPod cluster."""
        name = self.description.name
        try:
            with aws_errors(f"cluster {name}", "sagemaker:DescribeCluster"):
                return dict(self.client("sagemaker").describe_cluster(ClusterName=name))
        except DataError:  # it does not exist
            return None

    def nodes(self) -> list[Resource]:
        """Nodes of the cluster."""
        name = self.description.name
        with aws_errors(f"nodes of {name}", "sagemaker:ListClusterNodes"):
            pages = self.client("sagemaker").get_paginator("list_cluster_nodes").paginate(ClusterName=name)
            return [each for page in pages for each in page["ClusterNodeSummaries"]]

    def eks(self) -> Resource:
        """The EKS cluster.

        Raises:
            DataError: It is not there.
        """
        name = self.description.eks_name
        with aws_errors(f"EKS cluster {name}", "eks:DescribeCluster"):
            return dict(self.client("eks").describe_cluster(name=name)["cluster"])

    def subnets(self, ids: list[str]) -> list[Resource]:
        """Subnets by their ids."""
        with aws_errors(f"subnets {', '.join(ids)}", "ec2:DescribeSubnets"):
            return list(self.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"])

    def security_groups(self, ids: list[str]) -> list[Resource]:
        """Security groups by their ids."""
        with aws_errors(f"security groups {', '.join(ids)}", "ec2:DescribeSecurityGroups"):
            return list(self.client("ec2").describe_security_groups(GroupIds=ids)["SecurityGroups"])

    def call(self, request: Request) -> Resource:
        """Send a request."""
        operation = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in request.operation)
        action = f"{request.service}:{request.operation}"
        with aws_errors(request.what, f"{action} and the action that tags it"):
            return dict(getattr(self.client(request.service), operation.lstrip("_"))(**request.arguments))


def wait_until(
    what: str,
    state_of: Callable[[], tuple[str, str]],
    *,
    good: tuple[str, ...],
    bad: tuple[str, ...],
    timeout_s: float,
) -> str:
    """Poll the state of a resource until it is a good one; each change is logged.

    Args:
        what: The resource, for messages.
        state_of: Returns its state, and what AWS says about it.
        good: States that end the waiting.
        bad: States that never become good.
        timeout_s: Longest time.

    Raises:
        PreflightError: It is in a bad state.
        RetryableError: It takes too long.
    """
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
    """Why a resource of FSx failed, in AWS's words."""
    return str(resource.get("FailureDetails", {}).get("Message", ""))


def differences_from(request: Request, resource: Resource) -> list[str]:
    """Where a resource differs from the request that would create it."""
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
    """DescribeCluster in the terms of CreateCluster."""
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
