"""The description of a HyperPod cluster on Amazon EKS: one small, closed YAML file.

Limits are those of the API models of SageMaker, FSx and ECR, unless another source is named.
"""

import itertools
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError
from anadil.core.stages import STEP_IMAGES
from anadil.recipe.fields import StrictModel, Text
from anadil.recipe.load import mistakes

Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
Role = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$")]
Subnet = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]+$", max_length=32)]
SecurityGroup = Annotated[str, Field(pattern=r"^sg-[0-9a-f]+$", max_length=32)]
Object = Annotated[str, Field(pattern=r"^s3://[^/]+/.+$", max_length=1_024)]
Prefix = Annotated[str, Field(pattern=r"^s3://[^/]+(/.*)?$", max_length=1_024)]
Word = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$", max_length=63)]
DeepCheck = Literal["InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation"]

SMALLEST_GIB = 1_200
STEP_GIB = 2_400
# Directories of a file system that may be linked to S3. Source: Amazon FSx for Lustre user guide, quotas.
MAX_LINKS = 8
# Versions of Kubernetes. Source: SageMaker AI guide, "Getting started with Amazon EKS support in HyperPod".
OLDEST, NEWEST = (1, 28), (1, 34)
MLFLOW = "mlflow"
# Images of this program, each in a repository of its own.
REPOSITORIES = tuple(sorted({*STEP_IMAGES, "pipelines", MLFLOW}))


class Taint(StrictModel):
    """A taint, which keeps other pods away from the nodes of a group."""

    key: Text
    value: Text | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class InstanceGroup(StrictModel):
    """Machines of one type."""

    name: Word
    type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")]  # Such as `ml.p5.48xlarge`.
    count: Annotated[int, Field(ge=0, le=6_758)]
    min: NonNegativeInt | None = None
    """Machines that suffice for the group to go into service; left out, all."""
    threads_per_core: Literal[1, 2] | None = None  # 1 turns multithreading off; left out, the type's default.
    # Reserved capacity that the machines come from.
    training_plan: (
        Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:training-plan/.+$")] | None
    ) = None
    spot: bool = False  # Capacity that can be taken away.
    ebs_gb: Annotated[int, Field(ge=1, le=16_384)] | None = None
    """Size of an additional EBS volume of each machine."""
    deep_health_checks: tuple[DeepCheck, ...] = ()
    """Checks before a machine takes work; they take an hour or two."""
    lifecycle: Object | None = None
    """Script that runs when a machine is created; its bucket should begin with `sagemaker-`, which AWS's own
    policy for such machines can read."""
    labels: dict[str, str] = Field(default={}, max_length=50)
    taints: tuple[Taint, ...] = Field(default=(), max_length=50)

    @model_validator(mode="after")
    def _plan_is_not_spot(self) -> "InstanceGroup":
        if self.spot and self.training_plan:
            raise ValueError(
                "spot contradicts training_plan: reserved capacity is not interrupted; leave one out"
            )
        if self.min is not None and self.min > self.count:
            raise ValueError(f"min {self.min} is more than count {self.count}")
        if len(set(self.deep_health_checks)) < len(self.deep_health_checks):
            raise ValueError("deep_health_checks names a check twice")
        return self


class S3Link(StrictModel):
    """A directory of the file system that shows, and keeps, what lies under a prefix on S3."""

    path: Annotated[str, Field(pattern=r"^/[^/].*[^/]$|^/[^/]$")]
    """Directory of the file system, such as `/anadil`."""
    s3: Prefix
    imports: bool = True  # New, changed and deleted objects of S3 show up in the directory.
    exports: bool = True  # Files written into the directory go to S3.
    preload: bool = False  # True if `create` logs how to fetch the content before the first read.


class FileSystem(StrictModel):
    """An FSx for Lustre file system, which all nodes share."""

    capacity_gib: PositiveInt  # 1200, 2400 or a multiple of 2400.
    throughput: Literal[125, 250, 500, 1000] = 250  # MB/s for each TiB of capacity.
    subnet: Subnet  # One subnet, in the availability zone of the machines.
    security_groups: tuple[SecurityGroup, ...] = ()  # Left out, those of the cluster.
    links: tuple[S3Link, ...] = Field(default=(), max_length=MAX_LINKS)

    @field_validator("capacity_gib")
    @classmethod
    def _is_an_allowed_size(cls, size: int) -> int:
        if size != SMALLEST_GIB and size % STEP_GIB:
            lower = max(SMALLEST_GIB, size // STEP_GIB * STEP_GIB)
            upper = (size // STEP_GIB + 1) * STEP_GIB
            raise ValueError(
                f"FSx has {SMALLEST_GIB}, {STEP_GIB} and multiples of {STEP_GIB}; take {lower} or {upper}"
            )
        return size

    @model_validator(mode="after")
    def _links_are_apart(self) -> "FileSystem":
        for key in ("path", "s3"):
            places = sorted(f"{str(getattr(link, key)).rstrip('/')}/" for link in self.links)
            for one, other in itertools.pairwise(places):
                if other.startswith(one):
                    raise ValueError(
                        f"links: {other} lies in {one}; each directory needs a prefix of its own"
                    )
        return self


class Repositories(StrictModel):
    """Repositories of this program's images in Amazon ECR."""

    prefix: Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$")] = "anadil"
    """Repositories are called `<prefix>/<image>`."""
    kms_key: Text | None = None  # ARN of the key that encrypts them; left out, that of ECR (AES256).


class Description(StrictModel):
    """A cluster and what belongs to it."""

    name: Word
    region: Region
    # ARN of the EKS cluster, which has to be there.
    eks: Annotated[
        str, Field(pattern=r"^arn:aws[a-z-]*:eks:[a-z0-9-]+:\d{12}:cluster/[0-9A-Za-z][\w-]{0,99}$")
    ]
    subnets: Annotated[tuple[Subnet, ...], Field(min_length=1, max_length=16)]
    """Private subnets of the EKS cluster's VPC."""
    security_groups: Annotated[tuple[SecurityGroup, ...], Field(min_length=1, max_length=5)]
    """Security groups of the machines; they must allow all traffic to themselves."""
    role: Role  # IAM role of the machines, with AmazonSageMakerClusterInstanceRolePolicy.
    node_recovery: Literal["Automatic", "None"] = "Automatic"  # HyperPod reboots or replaces faulty machines.
    groups: Annotated[tuple[InstanceGroup, ...], Field(min_length=1, max_length=100)]
    fsx: FileSystem | None = None  # Shared file system; left out, none is made.
    ecr: Repositories | None = None  # Repositories of images; left out, none are made.
    tags: dict[str, str] = Field(default={}, max_length=40)

    @model_validator(mode="after")
    def _belongs_together(self) -> "Description":
        names = [group.name for group in self.groups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"groups: {', '.join(twice)} is given twice; each group needs a name of its own")
        plans = {f"groups.{i}.training_plan": group.training_plan for i, group in enumerate(self.groups)}
        for key, arn in {"eks": self.eks, **plans}.items():
            if arn and arn.split(":")[3] != self.region:
                raise ValueError(f"{key}: is in {arn.split(':')[3]}, and the cluster in {self.region}")
        return self

    @property
    def eks_name(self) -> str:
        """Name of the EKS cluster."""
        return self.eks.rpartition("/")[2]


def load_description(file: Path) -> Description:
    """Read and check a description."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None
    data, lines = strict_yaml.parse_yaml(text, str(file))
    if not isinstance(data, dict):
        raise RecipeError(f"{file}: the description of a cluster is a table of keys; see examples/hyperpod")
    try:
        return Description.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise RecipeError(mistakes(error, data, lines, str(file), Description)) from None
