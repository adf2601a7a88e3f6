"""Each value of each key finds its packages in the image of the stage that reads it, or is refused before anything is sent."""

import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import ENGINE_IMAGES, IMAGES
from anadil.recipe import tracking_address
from anadil.recipe.load import parse_recipe
from anadil.recipe.packages import NEEDS, PackageNeed, is_needed, refuse_without_image
from anadil.recipe.sections import Recipe
from anadil.tasks import check
from tests.images.files import STAGES, pins
from tests.images.test_containerfiles import STARTS, reached
from tests.test_house import imported

SCHEMA = Recipe.model_json_schema()
ADDRESSES = {
    "tracking.uri": [
        "off", "https://mlflow.example", "arn:aws:sagemaker:us-east-1:111122223333:mlflow-tracking-server/a", "wandb://me/it",
        "tensorboard:/data/events", *(f"{name}+driver://host/it" for name in tracking_address.DATABASES),
    ],
    "base.model": ["tiny", "smollm2", "meta-llama/Llama-3.2-1B", "/data/base"],
    "tokenizer.keep": ["en", "/data/a.jsonl.zst", "/data/a.parquet"],
    "evaluate.retained": ["en", "/data/a.jsonl.zst", "/data/a.parquet"],
}  # fmt: skip
"""Values of texts that decide by their form what reads them."""
OTHERS_NEED = {
    "float8_tensorwise": {"torchao"}, "float8_rowwise": {"torchao"}, "mxfp8": {"torchao"}, "nvfp4": {"torchao"},
    "liger": {"liger-kernel"}, "4bit": {"bitsandbytes"}, "ray": {"ray"}, "job": {"kubernetes"},
}  # fmt: skip
"""Value of an enumeration -> packages that its stage alone does not need."""
GUARDED = {"tokenizers", "safetensors", "rich", "torch", "numba", "fasttext", "py3langid", "pycld2"}
"""Modules that an image without them reaches in a function that it never calls, or does without."""


def enumerations(node: dict[str, Any], path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each value of an enumeration below a key."""
    name = node.get("$ref", "").rpartition("/")[2]
    if name and name not in above:
        yield from enumerations(SCHEMA["$defs"][name], path, (*above, name))
    for value in (*node.get("enum", ()), *([node["const"]] if "const" in node else ())):
        yield path, str(value)
    inner = [
        *node.get("anyOf", ()),
        *node.get("prefixItems", ()),
        node.get("items"),
        node.get("additionalProperties"),
    ]
    for each in filter(lambda part: isinstance(part, dict), inner):
        yield from enumerations(each, path, above)
    for key, each in node.get("properties", {}).items():
        yield from enumerations(each, f"{path}.{key}".strip("."), above)


VALUES = [*enumerations(SCHEMA, ""), *((key, value) for key, values in ADDRESSES.items() for value in values)]


def image_of(need: PackageNeed, stage: str, value: str) -> str:
    return ENGINE_IMAGES[value] if need.key == "clean.engine" else IMAGES[stage]


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_value_finds_its_packages_in_the_image_of_its_stage_or_is_refused(key: str, value: str) -> None:
    needs = [need for need in NEEDS if need.key == key and is_needed(need, value)]

    if key not in ADDRESSES:
        assert {name for need in needs for name in need.packages} == OTHERS_NEED.get(value, set())
    for need in needs:
        lacks = [
            name
            for stage in need.stages
            for name in need.packages
            if name not in pins(image_of(need, stage, value), "cuda")
        ]
        assert bool(lacks) == bool(need.instead), need


def test_the_modules_of_the_harnesss_tasks_that_their_image_holds_are_listed() -> None:
    [tasks], brings = check._harness(), packages_distributions()
    for module in {name for file in tasks.rglob("*.py") for name in check.imported(file, set())}:
        names = {re.sub("[-_.]+", "-", each).lower() for each in brings.get(module, [module])}
        assert bool(names & pins("tasks").keys()) == (module in check.IMAGE_MODULES), module


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.parquet", "/in/a.PARQUET"])
def test_a_folder_or_a_pattern_that_holds_parquet_needs_its_package(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").touch()
    recipe = parse_recipe("", "r", [f"tokenizer.keep=[{tmp_path}{pattern}]"])

    with pytest.raises(RecipeError, match=r"tokenizer\.keep: .* needs pyarrow"):
        refuse_without_image(recipe)


def test_a_database_is_refused_where_images_open_it_and_not_where_another_process_sends_to_it() -> None:
    recipe = parse_recipe("", "r", ["tracking.uri=sqlite:////data/mlflow.db"])

    with pytest.raises(RecipeError, match=r"tracking\.uri: .* needs sqlalchemy and alembic, which the image"):
        refuse_without_image(recipe)
    refuse_without_image(recipe, tracks=False)


def test_what_an_image_can_import_and_does_not_hold_is_declared() -> None:
    brings = packages_distributions()
    lacking: set[str] = set()
    for image in STAGES:
        held = {name.replace("_", "-") for name in pins(image, "cuda")}
        for module in {
            name.partition(".")[0]
            for path in reached(*STARTS[image])
            for name in imported(path.parent, path.name)
        }:
            if not {re.sub("[-_.]+", "-", each).lower() for each in brings.get(module, [module])} & held:
                lacking.add(module)

    declared = {name for need in NEEDS if need.instead for name in need.packages}
    assert lacking - GUARDED <= declared, "name the value that asks for it in recipe/packages.py"
    assert {"pyarrow", "gguf"} <= lacking
