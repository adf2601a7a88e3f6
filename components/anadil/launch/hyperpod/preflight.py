"""What has to hold before a cluster is created, read from AWS; every lack is told at once."""

import logging
import re
from collections.abc import Iterator

from anadil.core.errors import PreflightError
from anadil.core.format import counted
from anadil.launch.hyperpod.config import Description
from anadil.launch.hyperpod.resources import ClusterResources, Resource

log = logging.getLogger(__name__)

MODES = ("API", "API_AND_CONFIG_MAP")
"""Source for this and the versions: SageMaker AI guide, "Getting started with Amazon EKS support in HyperPod"."""
OLDEST, NEWEST = (1, 28), (1, 34)
WITH_EFA = re.compile(r"^ml\.(p4|p5|p6|trn|g5\.(8|12|16|24|48)|g6\.(8|12|16|24|48)|g6e\.(8|12|16|24|48))")
"""Types whose machines talk over EFA. Source: Amazon EC2 guide, instance types that support EFA."""


def check_preconditions(description: Description, resources: ClusterResources) -> None:
    """Check the EKS cluster, the network and the availability zones.

    Raises:
        PreflightError: With every lack and its remedy, a line each.
        DataError: The EKS cluster, a subnet or a security group is not there.
    """
    eks = resources.eks()
    lacks = [*_eks_lacks(description, eks), *_network_lacks(description, resources, eks)]
    if lacks:
        listed = "\n".join(f"  {lack}" for lack in lacks)
        raise PreflightError(
            f"{description.name}: {counted(len(lacks), 'thing')} to put right first\n{listed}"
        )


def _eks_lacks(description: Description, eks: Resource) -> Iterator[str]:
    name = description.eks_name
    if eks.get("status") != "ACTIVE":
        yield f"EKS cluster {name}: {eks.get('status')}; wait until it is ACTIVE"
    mode = eks.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    if mode not in MODES:
        yield (
            f"EKS cluster {name}: authentication mode {mode}, and HyperPod needs API or API_AND_CONFIG_MAP: "
            f"aws eks update-cluster-config --name {name} --access-config authenticationMode=API_AND_CONFIG_MAP"
        )
    version = tuple(int(part) for part in str(eks.get("version", "0.0")).split(".")[:2])
    if version < OLDEST:
        yield f"EKS cluster {name}: Kubernetes {eks.get('version')} is too old; update it to 1.28 or later"
    elif version > NEWEST:
        log.warning(
            "Kubernetes %s is newer than what AWS lists for HyperPod (1.28 to 1.34)", eks.get("version")
        )


def _network_lacks(description: Description, resources: ClusterResources, eks: Resource) -> Iterator[str]:
    vpc = eks.get("resourcesVpcConfig", {}).get("vpcId")
    fsx = description.fsx
    wanted: list[str] = sorted({*description.subnets, fsx.subnet if fsx else description.subnets[0]})
    subnets = {subnet["SubnetId"]: subnet for subnet in resources.subnets(wanted)}
    for name, subnet in subnets.items():
        if vpc and subnet["VpcId"] != vpc:
            yield f"subnets: {name} is in {subnet['VpcId']}, and the EKS cluster in {vpc}; give a subnet of that"
    zones = {subnets[name]["AvailabilityZone"] for name in description.subnets if name in subnets}
    if fsx and fsx.subnet in subnets:
        zone = subnets[fsx.subnet]["AvailabilityZone"]
        if zone not in zones:
            yield (
                f"fsx.subnet: {fsx.subnet} is in {zone}, the machines are in {', '.join(sorted(zones))}; the file "
                "system must be in the zone of the machines"
            )
        elif len(zones) > 1:
            log.warning("machines of other zones than %s read the file system over a slower network", zone)
    if any(group.count > 1 and WITH_EFA.match(group.type) for group in description.groups):
        yield from _efa_lacks(description, resources)


def _efa_lacks(description: Description, resources: ClusterResources) -> Iterator[str]:
    """EFA needs a group that lets all traffic to and from itself pass."""
    groups = resources.security_groups(list(description.security_groups))
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_allows_itself(group, group.get(key, ())) for group in groups):
            names = ", ".join(description.security_groups)
            yield (
                f"security_groups: none of {names} lets all traffic of itself {way}, which EFA needs; add a rule "
                "for all protocols whose other side is the group itself"
            )


def _allows_itself(group: Resource, rules: object) -> bool:
    assert isinstance(rules, list | tuple)
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group["GroupId"] for pair in rule.get("UserIdGroupPairs", ()))
        for rule in rules
    )
