"""The parts of a cluster as AWS describes them: found by name or tag, compared with what is asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anadil.core.aws import aws_errors, client, differences, is_missing
from anadil.hyperpod.description import Description
from anadil.hyperpod.requests import CLUSTER_TAG, Request

Part = dict[str, Any]


class Parts:
    """What is there of a description."""

    def __init__(self, description: Description, clients: Callable[[str], Any] | None = None) -> None:
        """Look for the parts of `description`.

        Args:
            description: The cluster.
            clients: What gives the client of a service; left out, boto3.
        """
        self.description = description
        region = description.region
        made: dict[str, Any] = {}

        def cached(service: str) -> Any:
            if service not in made:
                made[service] = client(service, region)
            return made[service]

        self.client = clients or cached

    def repository(self, name: str) -> Part | None:
        """The repository of a name."""
        with aws_errors(f"repository {name}", "ecr:DescribeRepositories"), _missing() as found:
            found.extend(self.client("ecr").describe_repositories(repositoryNames=[name])["repositories"])
        return found[0] if found else None

    def file_system(self) -> Part | None:
        """The file system that bears this cluster's tag, one that goes away left out."""
        with aws_errors("file systems", "fsx:DescribeFileSystems"):
            pages = self.client("fsx").get_paginator("describe_file_systems").paginate()
            for system in (each for page in pages for each in page["FileSystems"]):
                tags = {tag["Key"]: tag["Value"] for tag in system.get("Tags", ())}
                gone = system.get("Lifecycle") == "DELETING"
                if tags.get(CLUSTER_TAG) == self.description.name and not gone:
                    return dict(system)
        return None

    def links(self, file_system: str) -> list[Part]:
        """Links of a file system to S3."""
        wanted = [{"Name": "file-system-id", "Values": [file_system]}]
        found: list[Part] = []
        more: Part = {}
        with aws_errors(f"links of {file_system}", "fsx:DescribeDataRepositoryAssociations"):
            while True:  # botocore has no paginator for it
                page = self.client("fsx").describe_data_repository_associations(Filters=wanted, **more)
                found.extend(page["Associations"])
                if not page.get("NextToken"):
                    break
                more = {"NextToken": page["NextToken"]}
        return [each for each in found if each.get("Lifecycle") != "DELETING"]

    def cluster(self) -> Part | None:
        """The HyperPod cluster."""
        name = self.description.name
        with aws_errors(f"cluster {name}", "sagemaker:DescribeCluster"), _missing() as found:
            found.append(self.client("sagemaker").describe_cluster(ClusterName=name))
        return found[0] if found else None

    def nodes(self) -> list[Part]:
        """Machines of the cluster."""
        name = self.description.name
        with aws_errors(f"nodes of {name}", "sagemaker:ListClusterNodes"):
            pages = self.client("sagemaker").get_paginator("list_cluster_nodes").paginate(ClusterName=name)
            return [each for page in pages for each in page["ClusterNodeSummaries"]]

    def eks(self) -> Part:
        """The EKS cluster.

        Raises:
            DataError: It is not there.
        """
        name = self.description.eks_name
        with aws_errors(f"EKS cluster {name}", "eks:DescribeCluster"):
            return dict(self.client("eks").describe_cluster(name=name)["cluster"])

    def subnets(self, ids: list[str]) -> list[Part]:
        """Subnets by their ids."""
        with aws_errors(f"subnets {', '.join(ids)}", "ec2:DescribeSubnets"):
            return list(self.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"])

    def security_groups(self, ids: list[str]) -> list[Part]:
        """Security groups by their ids."""
        with aws_errors(f"security groups {', '.join(ids)}", "ec2:DescribeSecurityGroups"):
            return list(self.client("ec2").describe_security_groups(GroupIds=ids)["SecurityGroups"])

    def call(self, request: Request) -> Part:
        """Make a part."""
        operation = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in request.operation)
        action = f"{request.service}:{request.operation}"
        with aws_errors(request.what, f"{action} and the action that tags it"):
            return dict(getattr(self.client(request.service), operation.lstrip("_"))(**request.arguments))


@contextmanager
def _missing() -> Iterator[list[Part]]:
    """A list that stays empty where AWS says that there is no such thing."""
    from botocore.exceptions import ClientError

    found: list[Part] = []
    try:
        yield found
    except ClientError as error:
        if not is_missing(error):
            raise


def changed(request: Request, part: Part) -> list[str]:
    """Where a part that is there is not what is asked for."""
    asked = {key: value for key, value in request.arguments.items() if key.lower() != "tags"}
    if request.operation == "CreateCluster":
        return differences(_by_name(asked), _by_name(_as_asked(part)))
    if request.operation == "CreateFileSystem":
        # FSx tells the network interfaces, not the security groups.
        asked.pop("SecurityGroupIds")
    if request.operation == "CreateDataRepositoryAssociation":
        asked.pop("BatchImportMetaDataOnCreate")
    return differences(asked, part)


def _by_name(cluster: Part) -> Part:
    groups = {group["InstanceGroupName"]: group for group in cluster.get("InstanceGroups", ())}
    return {**cluster, "InstanceGroups": groups}


def _as_asked(cluster: Part) -> Part:
    """DescribeCluster in the words of CreateCluster."""
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
