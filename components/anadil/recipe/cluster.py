"""The recipe's section `cluster`: where steps run, in which image, with what."""

import re
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from anadil import __version__
from anadil.core.stages import ALL_IMAGES, IMAGES, STEP_IMAGES
from anadil.recipe.fields import Directory, Name, StrictModel, Text


def _as_text(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Quantity = Annotated[
    str, BeforeValidator(_as_text), Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")
]
"""Amount of a resource. Source: Kubernetes, resource.Quantity."""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable."""
IMAGE = re.compile(
    r"([a-z0-9.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?",
    re.ASCII | re.IGNORECASE,
)
"""Source: distribution/reference of the OCI registries."""
Backend = Literal["local", "pytorchjob", "trainjob", "sagemaker"]


class Volume(StrictModel):
    """A PersistentVolumeClaim that every step and training job mounts."""

    claim: Name
    """Name of the claim, in the namespace of the pod."""
    path: Directory
    """Where it is mounted; the same everywhere, so that a path in the recipe means one thing."""
    read_only: bool = False
    """True if it may only be read."""

    def holds(self, place: str) -> bool:
        """Return whether a path lies on it."""
        return place == self.path or place.startswith(f"{self.path}/")


class Toleration(StrictModel):
    """A taint of nodes that steps and training jobs bear."""

    key: Text
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Equal`: `value` must be equal too."""
    value: str | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Left out, every effect."""


class Resources(StrictModel):
    """Resources that a pod of a step asks for."""

    cpu: Quantity | None = None
    """CPUs, such as `4` or `500m`."""
    memory: Quantity | None = None
    """Memory, such as `16Gi`; request and limit."""
    gpus: NonNegativeInt | None = None
    """Devices `nvidia.com/gpu`."""


class SageMaker(StrictModel):
    """Training jobs of Amazon SageMaker: `backend: sagemaker`."""

    role: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$")] | None = None
    """IAM role that the job takes."""
    region: Text | None = None
    """AWS region; left out, that of the environment."""
    spot: bool = False
    """Run the job on spot capacity, and resume from its checkpoint after an interruption."""
    training_plan: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:sagemaker:.+:training-plan/.+$")] | None = (
        None
    )
    """Reserved capacity that the job takes."""
    volume_gb: PositiveInt = 500
    """Size of each instance's disk; instances with local NVMe use that instead. Assumption: base model, corpus and two checkpoints of an 8B."""
    subnets: tuple[Text, ...] = ()
    """Subnets of the job's VPC; needed with `security_groups`."""
    security_groups: tuple[Text, ...] = ()
    """Security groups of the job's VPC; with EFA they must allow all traffic to themselves."""

    @model_validator(mode="after")
    def _plan_is_not_spot(self) -> "SageMaker":
        if self.spot and self.training_plan:
            raise ValueError(
                "spot contradicts training_plan: reserved capacity is not interrupted; leave one out"
            )
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("subnets and security_groups go together; give both or none")
        return self


class Cluster(StrictModel):
    """Where steps run, in which image, with what."""

    image: str = "anadil/{stage}:{version}"
    """Image of a step; `{stage}` and `{version}` are filled in."""
    digests: dict[str, Digest] = Field(default={})
    """Image name (`pretrain`, `tools`, ...) -> digest that pins it; `images/build.sh` prints them."""
    instance: Text | None = None
    """Instance type that `anadil plan` prices and fits, such as `p5.48xlarge`; left out, this machine."""
    nodes: PositiveInt = 1
    """Nodes that train together."""
    processes_per_node: PositiveInt | None = None
    """Training processes on a node; left out, one for each GPU, or one."""
    backend: Backend = "local"
    """How pretrain and finetune run on a cluster: in the pod of their step, or as a job of their own."""
    namespace: Name | None = None
    """Namespace of training jobs; left out, that of whoever launches them."""
    hyperpod: bool = False
    """True if the nodes are of SageMaker HyperPod: only healthy ones are taken, and a job is resumed when one is replaced."""
    queue: Name | None = None
    """Kueue LocalQueue of training jobs; HyperPod task governance calls it `hyperpod-ns-TEAM-localqueue`."""
    priority: Name | None = None
    """Kueue WorkloadPriorityClass of training jobs, such as `training-priority`."""
    topology: Annotated[str, Field(pattern=r"^([-a-z0-9.]+/)?[-A-Za-z0-9_.]+$")] | None = None
    """Label of nodes whose value the pods of a training job shall share where there is room, for Kueue; with HyperPod task governance `topology.k8s.aws/network-node-layer-3` is the nearest network."""
    service_account: Name | None = None
    """ServiceAccount of training jobs, whose AWS role reads and writes `storage.root`; left out, the namespace's default."""
    secrets: dict[Name, tuple[Variable, ...]] = Field(default={})
    """Secret -> its keys that become environment variables of steps and jobs, such as `{hub: [HF_TOKEN]}`."""
    pull_secrets: tuple[Name, ...] = ()
    """Secrets of type dockerconfigjson by which pods of steps and jobs pull their images."""
    volumes: tuple[Volume, ...] = ()
    """Claims that steps and jobs mount."""
    work: Directory | None = None
    """Directory of such a volume for what outlives a killed pod (checkpoints) where `storage.root` is on S3."""
    node_selector: dict[str, str] = Field(default={})
    """Labels of the nodes that steps with GPUs and training jobs take."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that steps and training jobs bear."""
    resources: dict[str, Resources] = Field(default={})
    """Stage -> what its pod asks for, over the defaults."""
    restarts: NonNegativeInt = 3
    """Number of restarts of a failed training job. Source: torchrun's max_restarts as the training operator sets it."""
    deadline_hours: PositiveFloat | None = None
    """Longest time of a training job from its first running pod, queueing left out; left out, none."""
    parallel_sweep: bool = False
    """Give each size of the vocabulary sweep, and each strategy of `tokenizer.trial`, a pod of its own."""
    notifications: Name | None = None
    """Secret with the address of one or more alert channels (follow-a-job.md): who is told how a run ended."""
    sagemaker: SageMaker = SageMaker()

    @field_validator("image")
    @classmethod
    def _has_known_places(cls, image: str) -> str:
        try:
            name = image.format(stage="clean", version="1")
        except (LookupError, ValueError, AttributeError):
            raise ValueError("only {stage} and {version} are filled in") from None
        if not IMAGE.fullmatch(name):
            raise ValueError("is not the name of an image; write REGISTRY/NAME-{stage}:{version}")
        return image

    @field_validator("digests", "resources")
    @classmethod
    def _names_known_images(cls, table: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        # `images/build.sh` prints the digests of images that no step runs in, too.
        known = {*IMAGES, *(ALL_IMAGES if info.field_name == "digests" else STEP_IMAGES)}
        if unknown := sorted(set(table) - known):
            raise ValueError(f"{', '.join(unknown)}: not one of {', '.join(sorted(known))}")
        return table

    @model_validator(mode="after")
    def _volumes_fit(self) -> "Cluster":
        paths = [volume.path for volume in self.volumes]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(
                f"volumes: {', '.join(twice)} is mounted twice; give each claim a path of its own"
            )
        if self.work and not any(volume.holds(self.work) for volume in self.volumes if not volume.read_only):
            raise ValueError(
                f"work: {self.work} is on none of cluster.volumes that can be written; add its claim"
            )
        return self

    def image_named(self, name: str) -> str:
        """An image by its name, pinned by its digest where the recipe gives one."""
        image = self.image.format(stage=name, version=__version__)
        digest = self.digests.get(name)
        if digest is None or "@" in image:
            return image
        return f"{re.sub(r':[^/:]+$', '', image)}@{digest}"
