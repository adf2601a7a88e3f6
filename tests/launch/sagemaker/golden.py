"""Requests to SageMaker as users have them, which `make golden` rewrites."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from anadil.launch.job import TrainingJob
from anadil.launch.sagemaker import SageMakerBackend
from tests.kit.compact_yaml import compact
from tests.kit.jobs import S3, job

FOLDER = Path(__file__).parents[2] / "golden" / "launch"
ROLE = "arn:aws:iam::123456789012:role/anadil-training"
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/anadil-spring"
ON_AWS = (
    "cluster.backend=sagemaker",
    f"storage.root={S3}",
    "cluster.image=123456789012.dkr.ecr.us-east-1.amazonaws.com/anadil/{stage}:{version}",
    f"cluster.sagemaker.role={ROLE}",
    "cluster.sagemaker.region=us-east-1",
)


def sagemaker(recipe: str, *overrides: str, stage: str = "pretrain", run: str = "") -> TrainingJob:
    """A job of a shipped recipe that SageMaker can run."""
    return job(recipe, *ON_AWS, *overrides, stage=stage, run=run)


JOBS: dict[str, Callable[[], TrainingJob]] = {
    "sagemaker-azerbaijani-1b": lambda: sagemaker(
        "azerbaijani-1b", "cluster.deadline_hours=72", "cluster.secrets={hub: [HF_TOKEN]}", run="run-20"
    ),
    "sagemaker-spot-in-a-vpc": lambda: sagemaker(
        "azerbaijani-1b",
        "cluster.sagemaker.spot=true",
        "cluster.sagemaker.subnets=[subnet-0a1b2c3d4e5f60718]",
        "cluster.sagemaker.security_groups=[sg-0a1b2c3d4e5f60718]",
        "cluster.restarts=0",
        stage="finetune",
    ),
    "sagemaker-training-plan": lambda: sagemaker("japanese-70b", f"cluster.sagemaker.training_plan={PLAN}"),
}


def request(name: str) -> dict[str, Any]:
    return SageMakerBackend().render(JOBS[name]())


def text(name: str) -> str:
    return compact(request(name))


GOLDEN: dict[Path, Callable[[], str]] = {FOLDER / f"{name}.yaml": partial(text, name) for name in JOBS}
