"""Packages that a value of the recipe needs beyond a plain run, and whether the images hold them."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import RecipeError
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
    only_if: str = ""
    """Key without whose truth no stage reads the value."""
    instead: str = ""
    """Value to set where stages run in images and no image holds the packages."""


NEEDS = (
    PackageNeed(
        key="pretrain.matmul", values="float8_.*|mxfp8|nvfp4", packages=("torchao",), stages=TRAINING,
    ),
    PackageNeed(key="pretrain.kernels", values="liger", packages=("liger-kernel",), stages=TRAINING),
    PackageNeed(
        key="finetune.quantization", values="4bit", packages=("bitsandbytes",), stages=("finetune",),
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
    PackageNeed(key="clean.engine", values="ray", packages=("ray",), stages=("clean",)),
    PackageNeed(key="clean.engine", values="job", packages=("kubernetes",), stages=("clean",)),
    *(
        PackageNeed(
            key=each.key, values=TABLES, packages=("pyarrow",), stages=(stage.name,), only_if=each.only_if,
            instead="the same text as .jsonl.zst or .txt",
        )
        for stage in FLOW if stage.pod.image in NO_TABLES for each in stage.side_files
    ),
)  # fmt: skip
"""Tests compare the list with the locks of the images."""


def refuse_without_image(recipe: Recipe, stages: Sequence[str] = EVERY) -> None:
    """Refuse a value whose packages the images of some stages lack. An image has no pip, so nothing is installed there."""
    for need in NEEDS:
        used = [stage for stage in need.stages if stage in stages]
        if not need.instead or not used or (need.only_if and not _value_at(recipe, need.only_if)):
            continue
        given = _value_at(recipe, need.key)
        for value in (given,) if isinstance(given, str) else given or ():
            if any(is_needed(need, each) for each in _files(value)):
                raise RecipeError(
                    f"{need.key}: {masked(value)} needs {' and '.join(need.packages)}, which the image of {used[0]} does not "
                    f"hold; set {need.key} to {need.instead}, or run it on a machine with anadil run"
                )


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
