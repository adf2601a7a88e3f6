"""The requests of `anadil cluster create`, in order; rendering needs no AWS."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from anadil.launch.hyperpod.config import REPOSITORIES, Description, InstanceGroup

FILE_SYSTEM = "FILE-SYSTEM-ID"  # Stands for the file system where it is not there yet.
CLUSTER_TAG = "anadil.dev/cluster"  # Tag by which the resources of a cluster are found again.
LUSTRE = "2.15"  # Version of Lustre. Source: API of FSx, "recommended for all new file systems".
EVENTS = ["NEW", "CHANGED", "DELETED"]


class Request(NamedTuple):
    """One call of AWS."""

    service: str  # As boto3 calls it.
    operation: str  # As botocore calls it, such as `CreateCluster`.
    what: str  # Name of the resource, for people.
    arguments: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For YAML and JSON."""
        return {"service": self.service, "operation": self.operation, "request": self.arguments}


def requests_of(description: Description) -> list[Request]:
    """Return every request of `create` where nothing exists yet."""
    system = file_system(description)
    return [
        *repositories(description),
        *([system] if system else []),
        *links(description, FILE_SYSTEM),
        cluster(description),
    ]


def repositories(description: Description) -> Iterator[Request]:
    """Yield a repository for each image: a tag once pushed stays what it is, and every push is scanned."""
    ecr = description.ecr
    if ecr is None:
        return
    encryption = (
        {"encryptionType": "KMS", "kmsKey": ecr.kms_key} if ecr.kms_key else {"encryptionType": "AES256"}
    )
    for name in (f"{ecr.prefix}/{image}" for image in REPOSITORIES):
        arguments = {
            "repositoryName": name,
            "imageTagMutability": "IMMUTABLE",
            "imageScanningConfiguration": {"scanOnPush": True},
            "encryptionConfiguration": dict(encryption),
            "tags": _tags(description),
        }
        yield Request("ecr", "CreateRepository", f"repository {name}", arguments)


def file_system(description: Description) -> Request | None:
    """Return the shared file system: replicated SSD, compressed, with metadata that grow with its size."""
    fsx = description.fsx
    if fsx is None:
        return None
    arguments = {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": LUSTRE,
        "StorageType": "SSD",
        "StorageCapacity": fsx.capacity_gib,
        "SubnetIds": [fsx.subnet],
        "SecurityGroupIds": list(fsx.security_groups or description.security_groups),
        "LustreConfiguration": {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": fsx.throughput,
            "DataCompressionType": "LZ4",
            "MetadataConfiguration": {"Mode": "AUTOMATIC"},
        },
        "Tags": [{"Key": "Name", "Value": description.name}, *_tags(description)],
    }
    return Request("fsx", "CreateFileSystem", "file system", arguments)


def links(description: Description, file_system: str) -> Iterator[Request]:
    """Yield the links to S3 of the directories of a file system, by its id."""
    for link in description.fsx.links if description.fsx else ():
        policies = {"AutoImportPolicy": link.imports, "AutoExportPolicy": link.exports}
        arguments = {
            "FileSystemId": file_system,
            "FileSystemPath": link.path,
            "DataRepositoryPath": link.s3,
            "BatchImportMetaDataOnCreate": link.imports or link.preload,
            "S3": {key: {"Events": list(EVENTS)} for key, wish in policies.items() if wish},
            "Tags": _tags(description),
        }
        yield Request(
            "fsx", "CreateDataRepositoryAssociation", f"link of {link.path} to {link.s3}", arguments
        )


def cluster(description: Description) -> Request:
    """Return the HyperPod cluster on its EKS cluster."""
    # Spot and a smaller number than asked for need the mode that goes on asking for machines.
    is_continuous = any(group.spot or group.min is not None for group in description.groups)
    arguments = {
        "ClusterName": description.name,
        "Orchestrator": {"Eks": {"ClusterArn": description.eks}},
        "NodeRecovery": description.node_recovery,
        **({"NodeProvisioningMode": "Continuous"} if is_continuous else {}),
        "VpcConfig": {
            "SecurityGroupIds": list(description.security_groups),
            "Subnets": list(description.subnets),
        },
        "InstanceGroups": [_group(group, description.role) for group in description.groups],
        "Tags": _tags(description),
    }
    return Request("sagemaker", "CreateCluster", f"HyperPod cluster {description.name}", arguments)


def _group(group: InstanceGroup, role: str) -> dict[str, Any]:
    source, _, script = (group.lifecycle or "").rpartition("/")
    taints = [
        {"Key": taint.key, **({"Value": taint.value} if taint.value else {}), "Effect": taint.effect}
        for taint in group.taints
    ]
    kubernetes = {"Labels": dict(group.labels), "Taints": taints}
    request = {
        "InstanceGroupName": group.name,
        "InstanceType": group.type,
        "InstanceCount": group.count,
        "ExecutionRole": role,
        "MinInstanceCount": group.min,
        "ThreadsPerCore": group.threads_per_core,
        "LifeCycleConfig": {"SourceS3Uri": source, "OnCreate": script} if script else None,
        "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": group.ebs_gb}}]
        if group.ebs_gb
        else None,
        "OnStartDeepHealthChecks": list(group.deep_health_checks),
        "TrainingPlanArn": group.training_plan,
        "CapacityRequirements": {"Spot": {}} if group.spot else None,
        "KubernetesConfig": {key: value for key, value in kubernetes.items() if value},
    }
    return {key: value for key, value in request.items() if value not in (None, [], {})}


def _tags(description: Description) -> list[dict[str, str]]:
    tags = {CLUSTER_TAG: description.name, **description.tags}
    return [{"Key": key, "Value": value} for key, value in tags.items()]
