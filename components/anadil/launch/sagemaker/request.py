"""Render a training job as the request CreateTrainingJob of SageMaker, without AWS.

Limits are those of the API's own model (botocore, service-2.json of sagemaker).
"""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.launch.job import SPEC_ANNOTATION, TARGET_ANNOTATION, TrainingJob
from anadil.launch.manifests.pod import EFA_ENVIRONMENT, GPU_ENVIRONMENT
from anadil.plan.instances import LOCAL, Machine
from anadil.runtime.job import earlier_place, named_side_files
from anadil.runtime.sagemaker import CHECKPOINTS, RECIPE, SECRETS

log = logging.getLogger(__name__)

PYTHON = "/opt/anadil/bin/python"  # Interpreter of every image.
# Environment variable with the hash of the request, by which a launcher knows a job again.
SPEC = "ANADIL_SPEC"
ATTEMPT_CHARS = 4  # Room in the name for `-r99`, the 99th new start of a job that failed.
MAX_ARGUMENT_CHARS = 256
MAX_ARGUMENTS = 100
MAX_HYPERPARAMETER_CHARS = 2_500
MAX_HYPERPARAMETERS = 100
MAX_ENVIRONMENT_CHARS = 512
MAX_TAG_CHARS = 256
MAX_RETRIES = 30
MAX_RUNTIME_S = 28 * 24 * 3_600
# Without `cluster.deadline_hours`: the longest that AWS allows an account that has not asked for more.
# Source: AWS, Service Quotas, "Longest run time for a training job". The API's own default is a day.
DEFAULT_RUNTIME_S = 5 * 24 * 3_600
SPOT_WAIT_S = 24 * 3_600  # Time to wait for spot capacity, beside that of the training itself. Assumption.
ECR = re.compile(r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/.+")
# Keys of `cluster` that only Kubernetes understands.
MEANINGLESS = (
    "namespace", "hyperpod", "queue", "priority", "topology", "pull_secrets", "service_account", "volumes", "work",
    "node_selector", "tolerations",
)  # fmt: skip


def request_of(job: TrainingJob) -> dict[str, Any]:
    """Return the request that starts a job."""
    machine = _machine(job)
    _check_places(job)
    _warn(job)
    settings = job.recipe.cluster.sagemaker
    root = (job.recipe.storage.root or job.target.rpartition("/")[0]).rstrip("/")
    request: dict[str, Any] = {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {
            "TrainingImage": job.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [PYTHON, "-m", "anadil.runtime.sagemaker", job.stage],
            "ContainerArguments": _arguments(job),
            "MetricDefinitions": metric_definitions(job.stage),
        },
        "HyperParameters": _hyperparameters(job),
        "Environment": _environment(job),
        "RoleArn": settings.role,
        "OutputDataConfig": {"S3OutputPath": f"{root}/sagemaker"},
        "CheckpointConfig": {"S3Uri": f"{root}/checkpoints/{job.name}", "LocalPath": CHECKPOINTS},
        "ResourceConfig": {
            "InstanceType": f"ml.{machine.name}",
            "InstanceCount": job.nodes,
            "VolumeSizeInGB": settings.volume_gb,
            **({"TrainingPlanArn": settings.training_plan} if settings.training_plan else {}),
        },
        "StoppingCondition": _stopping_condition(job),
        "EnableManagedSpotTraining": settings.spot,
        "EnableNetworkIsolation": False,  # the stage itself reads and writes S3
        # EFA passes the encrypted network by; the hardware of such machines encrypts between them.
        "EnableInterContainerTrafficEncryption": job.nodes > 1 and not machine.efa,
        "ProfilerConfig": {"DisableProfiler": True},
        "RemoteDebugConfig": {"EnableRemoteDebug": False},
        "Tags": _tags(job),
    }
    if settings.subnets:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(settings.security_groups),
            "Subnets": list(settings.subnets),
        }
    if job.recipe.cluster.restarts:
        attempts = min(job.recipe.cluster.restarts, MAX_RETRIES)
        request["RetryStrategy"] = {"MaximumRetryAttempts": attempts}
    return _sealed(request)


def metric_definitions(stage: str) -> list[dict[str, str]]:
    """Return the numbers that SageMaker draws, as patterns of lines of `anadil.core.log.JsonFormatter`."""
    progress = rf'"stage": "{stage}", "rank": 0, "msg": "{STAGES[stage].progress_name}: [^"]*'
    figures = rf'"stage": "{stage}", "rank": 0, .*"figures": \{{[^}}]*'
    number = r"([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
    definitions = {f"{stage}:loss": rf"{progress}, loss {number}"}
    for name in STAGES[stage].figures:
        definitions[f"{stage}:final_{name}"] = rf'{figures}"{name}": {number}'
    return [{"Name": name, "Regex": regex} for name, regex in definitions.items()]


def _machine(job: TrainingJob) -> Machine:
    cluster = job.recipe.cluster
    settings = cluster.sagemaker
    if settings.role is None:
        raise RecipeError(
            "cluster.sagemaker.role: not set; give the ARN of the IAM role that the job takes, such as "
            "arn:aws:iam::123456789012:role/anadil-training"
        )
    machine = job.machine
    if machine is None or machine.name == LOCAL:
        raise RecipeError(
            "cluster.instance: not set; SageMaker needs a machine type such as p5.48xlarge (anadil plan)"
        )
    disk = machine.disk_bytes // 10**9
    if disk and settings.volume_gb > disk:
        raise RecipeError(
            f"cluster.sagemaker.volume_gb: {settings.volume_gb} is more than the {disk} GB of local NVMe that "
            f"{machine.name} uses instead; lower it or take another machine"
        )
    return machine


def _check_places(job: TrainingJob) -> None:
    """Refuse places that are not on S3: a job mounts nothing of ours."""
    root, base = job.recipe.storage.root, job.recipe.base.model
    files = job.files or (job.recipe.finetune.inputs if job.stage == "finetune" else ())
    places = [("--out", job.target), *((f"--{word}", uri) for word, uri in job.inputs.items())]
    places += [("storage.root", root)] if root is not None else []
    places += [(f"{job.stage}.inputs", uri) for uri in files]
    beside = named_side_files(STAGES[job.stage], job.recipe)
    places += [(key, uri) for key, uris in beside.items() for uri in uris]
    places += earlier_place(STAGES[job.stage], job.recipe).items()
    for key, uri in places:
        if not uri.startswith(("s3://", "builtin:")):
            raise RecipeError(f"{key}: {uri} is not on S3, and a SageMaker job sees nothing else; use s3://")
    if job.stage == "pretrain" and (Path(base).is_absolute() or base.startswith(".")):
        raise RecipeError(f"base.model: {base} is a directory of this machine; give a name of the hub")


def _warn(job: TrainingJob) -> None:
    cluster = job.recipe.cluster
    ignored = [f"cluster.{key}" for key in MEANINGLESS if getattr(cluster, key)]
    if ignored:
        log.warning("%s: has no meaning on SageMaker and is ignored", ", ".join(ignored))
    if not ECR.match(job.image):
        log.warning(
            "cluster.image: %s is not in Amazon ECR, from where alone SageMaker takes images; push it there "
            "and give such as 123456789012.dkr.ecr.us-east-1.amazonaws.com/anadil/{stage}:{version}",
            job.image,
        )


def _arguments(job: TrainingJob) -> list[str]:
    """Return the command line without the recipe, which is too long for it."""
    recipe = job.arguments.index("--recipe")
    arguments = [*job.arguments[:recipe], *job.arguments[recipe + 2 :]]
    long = [text for text in arguments if len(text) > MAX_ARGUMENT_CHARS]
    if long:
        raise RecipeError(
            f"{long[0][:80]}...: longer than the {MAX_ARGUMENT_CHARS} characters that SageMaker takes; "
            "choose a shorter storage.root"
        )
    if len(arguments) > MAX_ARGUMENTS:
        raise RecipeError(
            f"{job.stage}: {len(arguments)} arguments, and SageMaker takes {MAX_ARGUMENTS}; name a prefix "
            "or a glob on S3 instead of single files"
        )
    return arguments


def _hyperparameters(job: TrainingJob) -> dict[str, str]:
    # ASCII, because what SageMaker does to other letters is not documented.
    text = json.dumps(json.loads(job.arguments[job.arguments.index("--recipe") + 1]))
    parts = [text[at : at + MAX_HYPERPARAMETER_CHARS] for at in range(0, len(text), MAX_HYPERPARAMETER_CHARS)]
    if len(parts) > MAX_HYPERPARAMETERS:
        raise RecipeError(f"recipe: {len(text):,} characters are more than SageMaker takes; use globs")
    return {f"{RECIPE}{number}": part for number, part in enumerate(parts)}


def _environment(job: TrainingJob) -> dict[str, str]:
    cluster, machine = job.recipe.cluster, job.machine
    environment = {
        "ANADIL_LOG": "json",
        "ANADIL_IMAGE": job.image,
        "ANADIL_RUN_ID": job.run or job.name,
        "ANADIL_WORK": CHECKPOINTS,
        # The disk of the job is under /opt/ml and /tmp; the image's own file system is small.
        "ANADIL_CACHE": "/tmp/anadil-cache",  # noqa: S108  a volume of the job's own
        "HF_HOME": "/tmp/huggingface",  # noqa: S108  as above
        "PET_NPROC_PER_NODE": str(job.processes),
    }
    if cluster.sagemaker.region:
        environment["AWS_DEFAULT_REGION"] = cluster.sagemaker.region
    if cluster.secrets:
        environment[SECRETS] = json.dumps({name: list(keys) for name, keys in cluster.secrets.items()})
    if job.devices:
        environment |= GPU_ENVIRONMENT
    if job.nodes > 1 and machine is not None and machine.efa:
        environment |= EFA_ENVIRONMENT
    for name, value in environment.items():
        if len(value) > MAX_ENVIRONMENT_CHARS:
            raise RecipeError(
                f"{name}: {len(value)} characters, and SageMaker takes {MAX_ENVIRONMENT_CHARS}; name fewer keys in "
                "cluster.secrets"
            )
    return environment


def _stopping_condition(job: TrainingJob) -> dict[str, int]:
    hours = job.recipe.cluster.deadline_hours
    runtime = DEFAULT_RUNTIME_S if hours is None else max(1, round(hours * 3_600))
    if runtime > MAX_RUNTIME_S:
        raise RecipeError(
            f"cluster.deadline_hours: {hours:g} is more than SageMaker's {MAX_RUNTIME_S // 3_600} (28 days); "
            "lower it: the next start resumes from the checkpoint"
        )
    if not job.recipe.cluster.sagemaker.spot:
        return {"MaxRuntimeInSeconds": runtime}
    return {"MaxRuntimeInSeconds": runtime, "MaxWaitTimeInSeconds": runtime + SPOT_WAIT_S}


def _tags(job: TrainingJob) -> list[dict[str, str]]:
    tags = {**job.labels, TARGET_ANNOTATION: job.target}
    # The end of a URI that is too long says more than its beginning.
    short = {key: re.sub(r"[^\w .:/=+@-]", "_", value)[-MAX_TAG_CHARS:] for key, value in tags.items()}
    return [{"Key": key, "Value": value} for key, value in short.items()]


def _sealed(request: dict[str, Any]) -> dict[str, Any]:
    """Add the hash of what a request asks for, where DescribeTrainingJob gives it back."""
    decides = {key: value for key, value in request.items() if key not in ("TrainingJobName", "Tags")}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    request["Environment"][SPEC] = digest
    request["Tags"].append({"Key": SPEC_ANNOTATION, "Value": digest})
    return request
