"""Making, looking at and removing a cluster, against moto and stubs."""

import json
import logging
import urllib.request
from typing import Any

import pytest

from anadil.cli import main
from anadil.core.errors import PreflightError, RetryableError
from anadil.launch.hyperpod import resources as parts_module
from anadil.launch.hyperpod.commands import create_cluster, delete_cluster
from anadil.launch.hyperpod.config import REPOSITORIES, Description
from anadil.launch.hyperpod.requests import cluster
from anadil.launch.hyperpod.resources import ClusterResources, describe_cluster, differences_from, wait_until
from tests.kit.hyperpod import SYSTEM, Cloud, described, eks, example

EXPORT = {
    "TaskId": "task-0123456789abcdef0",
    "Lifecycle": "PENDING",
    "Type": "EXPORT_TO_REPOSITORY",
    "CreationTime": 1,
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "POLL_S", 0.0)


@pytest.fixture
def cloud(bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An account with a VPC and nothing else."""
    del bucket  # sets the credentials and the address
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # which takes seconds
    request = urllib.request.Request(f"{s3_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=10).close()
    return Cloud()


@pytest.fixture
def description(cloud: Cloud) -> Description:
    """The example in that account's network."""
    ec2 = cloud("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    fsx = {**example()["fsx"], "subnet": subnet}
    # moto wants every group to say this.
    groups = [{"threads_per_core": 1, **each} for each in example()["groups"]]
    return described(subnets=[subnet], security_groups=[group], fsx=fsx, groups=groups)


def link(
    path: str, s3: str, *, exports: bool = True, lifecycle: str = "AVAILABLE", number: int = 0
) -> dict[str, Any]:
    events = {"Events": ["NEW", "CHANGED", "DELETED"]}
    policies = {"AutoImportPolicy": events, **({"AutoExportPolicy": events} if exports else {})}
    return {
        "AssociationId": f"dra-0123456789abcdef{number}",
        "FileSystemPath": path,
        "DataRepositoryPath": s3,
        "Lifecycle": lifecycle,
        "S3": policies,
    }


LINKS = (
    link("/anadil", "s3://anadil-123456789012/anadil"),
    link("/raw", "s3://anadil-123456789012/raw", exports=False, number=1),
)


WHAT_MOTO_FORGETS = {
    "FileSystemTypeVersion",
    "NodeRecovery",
    "Orchestrator.Eks.ClusterArn",
    "InstanceGroups.training.KubernetesConfig.Labels.anadil.dev/role",
    "InstanceGroups.training.KubernetesConfig.Taints",
}


def links_are_made(cloud: Cloud) -> None:
    cloud.fakes.answer("fsx", "describe_data_repository_associations", {"Associations": []})
    for each in LINKS:
        made = {**each, "Lifecycle": "CREATING"}
        cloud.fakes.answer("fsx", "create_data_repository_association", {"Association": made})
    links_are_there(cloud, 2)


def links_are_there(cloud: Cloud, times: int, file_system: str = SYSTEM) -> None:
    for _ in range(times):
        answer = {"Associations": [{**each, "FileSystemId": file_system} for each in LINKS]}
        cloud.fakes.answer("fsx", "describe_data_repository_associations", answer)


def test_everything_is_made_once_and_found_again(
    cloud: Cloud, description: Description, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cloud.fakes.answer("eks", "describe_cluster", eks(), {"name": "anadil"})
    links_are_made(cloud)

    made = create_cluster(ClusterResources(description, cloud))

    assert made["HyperPod cluster anadil"] == "InService"
    assert made["link of /raw to s3://anadil-123456789012/raw"] == "AVAILABLE"
    assert made["repository anadil/pretrain"].endswith("/anadil/pretrain")
    assert "find /fsx/raw -type f" in caplog.text
    caplog.clear()
    cloud.fakes.answer("eks", "describe_cluster", eks(), {"name": "anadil"})
    links_are_there(cloud, 3, made["file system"])

    again = create_cluster(ClusterResources(description, cloud))

    cloud.fakes.done()
    assert again == made
    assert ": created" not in caplog.text
    told = [text.partition(" and is left: ")[2] for text in caplog.messages if " and is left: " in text]
    assert {each.partition(":")[0] for line in told for each in line.split("; ")} == WHAT_MOTO_FORGETS
    assert len(cloud("fsx").describe_file_systems()["FileSystems"]) == 1


def test_a_part_that_is_there_but_different_is_told_and_left(
    cloud: Cloud, description: Description, caplog: pytest.LogCaptureFixture
) -> None:
    cloud("ecr").create_repository(repositoryName="anadil/clean")
    cloud.fakes.answer("eks", "describe_cluster", eks())

    create_cluster(ClusterResources(description.model_copy(update={"fsx": None}), cloud))

    told = caplog.text
    assert "repository anadil/clean: exists, differs from the description and is left" in told
    assert "imageTagMutability: MUTABLE instead of IMMUTABLE" in told


def test_an_instance_group_that_was_made_larger_is_told() -> None:
    request = cluster(described())
    groups = [
        {**group, "TargetCount": group["InstanceCount"] + (group["InstanceGroupName"] == "training")}
        for group in reversed(request.arguments["InstanceGroups"])
    ]

    there = {**request.arguments, "InstanceGroups": groups}

    assert differences_from(request, there) == ["InstanceGroups.training.InstanceCount: 9 instead of 8"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"accessConfig": {"authenticationMode": "CONFIG_MAP"}}, "needs API or API_AND_CONFIG_MAP; aws eks update-cluster-config"),
        ({"version": "1.27"}, "Kubernetes 1.27 is too old"),
        ({"status": "CREATING"}, "wait until it is ACTIVE"),
        ({"resourcesVpcConfig": {"vpcId": "vpc-0"}}, "and the EKS cluster in vpc-0"),
    ],
)  # fmt: skip
def test_an_eks_cluster_that_hyperpod_cannot_use_is_refused(
    cloud: Cloud, description: Description, told: dict[str, Any], message: str
) -> None:
    cloud.fakes.answer("eks", "describe_cluster", eks(**told))

    with pytest.raises(PreflightError) as raised:
        create_cluster(ClusterResources(description, cloud))

    assert message in str(raised.value)
    assert cloud("ecr").describe_repositories()["repositories"] == []


def test_every_lack_is_told_at_once(cloud: Cloud, description: Description) -> None:
    ec2 = cloud("ec2")
    zones = {each["AvailabilityZone"]: each for each in ec2.describe_subnets()["Subnets"]}
    mine = ec2.describe_subnets(SubnetIds=list(description.subnets))["Subnets"][0]["AvailabilityZone"]
    other = next(each["SubnetId"] for zone, each in zones.items() if zone != mine)
    vpc = ec2.describe_subnets()["Subnets"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="closed", Description="closed", VpcId=vpc)["GroupId"]
    fsx = {**example()["fsx"], "subnet": other}
    wrong = described(subnets=list(description.subnets), security_groups=[group], fsx=fsx)
    cloud.fakes.answer("eks", "describe_cluster", eks(version="1.20"))

    with pytest.raises(PreflightError) as raised:
        create_cluster(ClusterResources(wrong, cloud))

    lines = str(raised.value).splitlines()
    assert lines[0] == "anadil: 4 things to put right first"
    assert f"fsx.subnet: {other} is in" in lines[2]
    assert f"none of {group} lets all traffic of itself in, which EFA needs" in lines[3]
    assert "lets all traffic of itself out" in lines[4]


def test_a_link_that_fails_says_why(cloud: Cloud, description: Description) -> None:
    cloud.fakes.answer("eks", "describe_cluster", eks())
    cloud.fakes.answer("fsx", "describe_data_repository_associations", {"Associations": []})
    for each in LINKS:
        cloud.fakes.answer("fsx", "create_data_repository_association", {"Association": each})
    failed = {**LINKS[0], "Lifecycle": "MISCONFIGURED", "FailureDetails": {"Message": "bucket denies fsx"}}
    cloud.fakes.answer("fsx", "describe_data_repository_associations", {"Associations": [failed]})

    with pytest.raises(PreflightError, match=r"link of /anadil.*MISCONFIGURED: bucket denies fsx"):
        create_cluster(ClusterResources(description, cloud))


def test_waiting_ends() -> None:
    with pytest.raises(RetryableError, match="still Creating after"):
        wait_until("cluster", lambda: ("Creating", ""), good=("InService",), bad=(), timeout_s=-1.0)


def test_describe_tells_states_differences_and_the_health_of_nodes(
    cloud: Cloud, description: Description
) -> None:
    parts = ClusterResources(description, cloud)
    parts.call(cluster(description))
    cloud.fakes.answer("eks", "describe_cluster", eks())

    rows = {row.part: row for row in describe_cluster(parts)}

    assert rows["EKS cluster anadil"].detail == "Kubernetes 1.33, authentication API_AND_CONFIG_MAP"
    assert rows["repository anadil/tools"].state == rows["file system"].state == "not there"
    assert rows["HyperPod cluster anadil"].state == "InService"
    assert rows["group training"].detail == "8 of 8 ml.p5.48xlarge"
    nodes = [row for part, row in rows.items() if part.startswith("node ")]
    assert {node.state for node in nodes} == {"Running"}


def test_delete_needs_a_yes(cloud: Cloud, description: Description) -> None:
    parts = ClusterResources(description, cloud)
    parts.call(cluster(description))

    with pytest.raises(PreflightError, match="would delete the HyperPod cluster; say --yes"):
        delete_cluster(parts, confirmed=False, with_file_system=False)

    assert parts.cluster() is not None


def test_delete_keeps_data(cloud: Cloud, description: Description, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cloud.fakes.answer("eks", "describe_cluster", eks())
    links_are_made(cloud)
    parts = ClusterResources(description, cloud)
    create_cluster(parts)

    gone = delete_cluster(parts, confirmed=True, with_file_system=False)

    assert gone == ["HyperPod cluster anadil"]
    assert parts.cluster() is None
    assert parts.file_system() is not None
    assert len(cloud("ecr").describe_repositories()["repositories"]) == len(REPOSITORIES)
    assert "is kept; --with-file-system removes it too" in caplog.text
    assert delete_cluster(parts, confirmed=True, with_file_system=False) == []


def test_the_file_system_goes_after_its_files_are_on_s3(cloud: Cloud, description: Description) -> None:
    cloud.fakes.answer("eks", "describe_cluster", eks())
    links_are_made(cloud)
    parts = ClusterResources(description, cloud)
    name = create_cluster(parts)["file system"]
    links_are_there(cloud, 1)
    wanted = {
        "FileSystemId": name,
        "Type": "EXPORT_TO_REPOSITORY",
        "Paths": ["anadil"],
        "Report": {"Enabled": False},
    }
    cloud.fakes.answer("fsx", "create_data_repository_task", {"DataRepositoryTask": EXPORT}, wanted)
    for state in ("EXECUTING", "SUCCEEDED"):
        cloud.fakes.answer(
            "fsx", "describe_data_repository_tasks", {"DataRepositoryTasks": [{**EXPORT, "Lifecycle": state}]}
        )

    gone = delete_cluster(parts, confirmed=True, with_file_system=True)

    cloud.fakes.done()
    assert gone == ["HyperPod cluster anadil", f"file system {name}"]
    assert parts.file_system() is None


def test_a_file_that_cannot_be_exported_keeps_the_file_system(cloud: Cloud, description: Description) -> None:
    cloud.fakes.answer("eks", "describe_cluster", eks())
    links_are_made(cloud)
    parts = ClusterResources(description, cloud)
    create_cluster(parts)
    links_are_there(cloud, 1)
    cloud.fakes.answer("fsx", "create_data_repository_task", {"DataRepositoryTask": EXPORT})
    failed = {
        **EXPORT,
        "Lifecycle": "SUCCEEDED",
        "Status": {"TotalCount": 9, "SucceededCount": 7, "FailedCount": 2},
    }
    cloud.fakes.answer("fsx", "describe_data_repository_tasks", {"DataRepositoryTasks": [failed]})

    with pytest.raises(PreflightError, match="2 files could not be written to S3, so the file system is"):
        delete_cluster(parts, confirmed=True, with_file_system=True)

    assert parts.file_system() is not None


def test_the_command_describes_a_cluster(
    cloud: Cloud,
    description: Description,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(description.model_dump_json(exclude_unset=True), encoding="utf-8")
    monkeypatch.setattr(parts_module, "aws_client", lambda service, region: cloud(service))
    cloud.fakes.answer("eks", "describe_cluster", eks())
    cloud.fakes.answer("eks", "describe_cluster", eks())
    told = []
    for output in ("table", "json"):
        options = main.command_parser("cluster").parse_args(["cluster", "describe", str(file), "-o", output])
        assert options.command(options) == 0
        told.append(capsys.readouterr().out)

    first = " ".join(told[0].splitlines()[0].split())
    assert first == "EKS cluster anadil ACTIVE Kubernetes 1.33, authentication API_AND_CONFIG_MAP"
    assert json.loads(told[1])[0]["state"] == "ACTIVE"
