"""Checks of AWS before a cluster is created. Every failure is reported at once."""

import re
from collections.abc import Iterator

from anadil.core.errors import PreflightError
from anadil.core.format import counted
from anadil.launch.hyperpod.resources import ClusterResources, Resource
from anadil.preflight.check import Check, CheckResult, failed, passed

MODES = ("API", "API_AND_CONFIG_MAP")
"""Source for this and the versions: SageMaker AI guide, "Getting started with Amazon EKS support in HyperPod"."""
OLDEST, NEWEST = (1, 28), (1, 34)
WITH_EFA = re.compile(r"^ml\.(p4|p5|p6|trn|g5\.(8|12|16|24|48)|g6\.(8|12|16|24|48)|g6e\.(8|12|16|24|48))")
"""Types whose machines talk over EFA. Source: Amazon EC2 guide, instance types that support EFA."""

Subject = tuple[ClusterResources, Resource]  # Resources of the description, and the EKS cluster.


def check_preconditions(resources: ClusterResources) -> None:
    """Check the EKS cluster, the network and the availability zones.

    Raises:
        PreflightError: With every failure and its remedy, a line each.
        DataError: The EKS cluster, a subnet or a security group does not exist.
    """
    subject = (resources, resources.eks())
    results = [result for check in CHECKS for result in check.function(subject)]
    for result in results:
        if result.status != "failed":
            result.log()
    if failures := [each for each in results if each.status == "failed"]:
        listed = "\n".join(f"  {each.name}: {each.detail}; {each.remedy}" for each in failures)
        name = resources.description.name
        raise PreflightError(f"{name}: {counted(len(failures), 'thing')} to put right first\n{listed}")


def _eks(subject: Subject) -> Iterator[CheckResult]:
    resources, eks = subject
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


def _network(subject: Subject) -> Iterator[CheckResult]:
    """Subnets in the VPC of the EKS cluster; the file system in a zone of the machines."""
    resources, eks = subject
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


def _efa(subject: Subject) -> Iterator[CheckResult]:
    """EFA needs a group that lets all traffic to and from itself pass."""
    resources, _ = subject
    description = resources.description
    if not any(group.count > 1 and WITH_EFA.match(group.type) for group in description.groups):
        return
    groups = resources.security_groups(list(description.security_groups))
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_allows_itself(group, group.get(key, ())) for group in groups):
            names = ", ".join(description.security_groups)
            detail = f"none of {names} lets all traffic of itself {way}, which EFA needs"
            remedy = "add a rule for all protocols whose other side is the group itself"
            yield failed("security_groups", detail, remedy)


def _allows_itself(group: Resource, rules: object) -> bool:
    assert isinstance(rules, list | tuple)
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group["GroupId"] for pair in rule.get("UserIdGroupPairs", ()))
        for rule in rules
    )


CHECKS: tuple[Check[Subject], ...] = (
    Check(name="EKS cluster", function=_eks),
    Check(name="network", function=_network),
    Check(name="EFA", function=_efa),
)
