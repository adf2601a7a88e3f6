"""Packages that a value of the recipe needs beyond a plain run, and whether this machine or the images hold them."""

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import PreflightError, RecipeError
from anadil.core.install import install, is_installed, names_of
from anadil.core.log import masked
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import DATABASES, TENSORBOARD, WANDB

EVERY = tuple(stage.name for stage in FLOW)
TRAINING = tuple(stage.name for stage in FLOW if stage.training and "pretrain" in stage.keys)
"""Stages that train as `pretrain` says."""
NO_TABLES = ("tokenizer", "pretrain")
"""Images whose stages read files of text, and that hold no reader of tables."""
TABLES = r".*\.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageNeed:
    """A value of a key, and packages without which a stage cannot read the value."""

    key: str
    values: str
    """Regular expression of the values, which are texts."""
    packages: tuple[str, ...]
    stages: tuple[str, ...]
    extra: str = ""
    """Extra that brings the packages. Empty: a run goes on without them and says so, or their reader alone knows whether it needs them."""
    only_if: str = ""
    """Key without whose truth no stage reads the value."""
    instead: str = ""
    """Value to set where stages run in images and no image holds the packages."""


NEEDS = (
    PackageNeed(
        key="pretrain.matmul", values="float8_.*|mxfp8|nvfp4", packages=("torchao",), stages=TRAINING,
        extra="lowprecision",
    ),
    PackageNeed(
        key="pretrain.kernels", values="liger", packages=("liger-kernel",), stages=TRAINING, extra="pretrain",
    ),
    PackageNeed(
        key="finetune.quantization", values="4bit", packages=("bitsandbytes",), stages=("finetune",),
        extra="quantization",
    ),
    PackageNeed(key="tracking.uri", values=f"{TENSORBOARD}:.*", packages=("tensorboardx",), stages=EVERY),
    PackageNeed(key="tracking.uri", values=f"{WANDB}:.*", packages=("wandb",), stages=EVERY),
    PackageNeed(key="tracking.uri", values="https?:.*", packages=("mlflow-skinny",), stages=EVERY),
    PackageNeed(key="tracking.uri", values="arn:.*", packages=("sagemaker-mlflow",), stages=EVERY),
    PackageNeed(
        key="tracking.uri", values=rf"({'|'.join(DATABASES)})(\+\w+)?:.*", packages=("sqlalchemy", "alembic"),
        stages=EVERY, instead="the address of an MLflow server before that database, such as http://mlflow:5000",
    ),
    PackageNeed(
        key="base.model", values="smollm2", packages=("gguf", "pip"),
        stages=tuple(stage.name for stage in FLOW if "base" in stage.keys),
        instead="HuggingFaceTB/SmolLM2-135M-Instruct, which the hub has, or a directory of cluster.volumes",
    ),
    PackageNeed(key="clean.engine", values="ray", packages=("ray",), stages=("clean",), extra="ray"),
    PackageNeed(
        key="clean.engine", values="job", packages=("kubernetes",), stages=("clean",), extra="launch",
    ),
    *(
        PackageNeed(
            key=each.key, values=TABLES, packages=("pyarrow",), stages=(stage.name,), extra="clean",
            only_if=each.only_if, instead="the same text as .jsonl.zst or .txt",
        )
        for stage in FLOW if stage.pod.image in NO_TABLES for each in stage.side_files
    ),
)  # fmt: skip
"""Tests compare the list with the locks of the images."""


def refuse_without_image(recipe: Recipe, stages: Sequence[str] = EVERY, *, tracks: bool = True) -> None:
    """Refuse a value whose packages the images of some stages lack. An image has no pip, so nothing is installed there.

    Without `tracks`, the images only write what another process sends to the tracking server.
    """
    for need, stage, value in _used(recipe, stages):
        if need.instead and (tracks or need.key != "tracking.uri"):
            raise RecipeError(
                f"{need.key}: {masked(value)} needs {' and '.join(need.packages)}, which the image of {stage} does not "
                f"hold; set {need.key} to {need.instead}, or run it on a machine with anadil run"
            )


def refuse_not_installed(recipe: Recipe, stages: Sequence[str] = EVERY) -> None:
    """Refuse a value whose packages this machine lacks, before the stages run here."""
    for need, _, value in _used(recipe, stages):
        if need.extra and (lacks := [name for name in need.packages if not is_installed(name)]):
            # An extra leaves out what has no wheel for this machine.
            is_in_extra = names_of(need.extra).issuperset(lacks)
            remedy = f"{install(need.extra)}, or" if is_in_extra else "it has no build for this machine;"
            raise PreflightError(
                f"{need.key}: {masked(value)} needs {' and '.join(lacks)}, which is not installed; {remedy} "
                f"set {need.key} to {need.instead or _value_at(Recipe(), need.key)}"
            )


def _used(recipe: Recipe, stages: Sequence[str]) -> Iterator[tuple[PackageNeed, str, str]]:
    """Values that need packages, each with its need and the first of the stages that reads the value."""
    for need in NEEDS:
        used = [stage for stage in need.stages if stage in stages]
        if not used or (need.only_if and not _value_at(recipe, need.only_if)):
            continue
        given = _value_at(recipe, need.key)
        for value in (given,) if isinstance(given, str) else given or ():
            if any(is_needed(need, each) for each in _files(value)):
                yield need, used[0], value


def _files(value: str) -> list[str]:
    """Return the value, and the files of this machine that it stands for where it is a folder or a pattern."""
    places = [Path(each) for each in glob.iglob(value, recursive=True)]  # noqa: PTH207  it takes absolute patterns
    return [value, *(str(file) for place in places for file in (place, *place.rglob("*.parquet")))]


def is_needed(need: PackageNeed, value: str) -> bool:
    """Return whether a value of the need's key needs the packages."""
    return re.fullmatch(need.values, value, re.IGNORECASE) is not None


def _value_at(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for part in key.split("."):
        value = getattr(value, part, None)
    return value
