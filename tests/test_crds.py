"""What stands for the definitions of custom resources has their fields and types."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.crds import QUANTITY, TRAINJOB, VERSIONS, mistakes, schema


def shape(part: dict[str, Any]) -> Any:
    """Fields and their types, nested as they are."""
    if "properties" in part:
        return {name: shape(each) for name, each in part["properties"].items()}
    if "items" in part:
        return [shape(part["items"])]
    if isinstance(part.get("additionalProperties"), dict):
        return {"{}": shape(part["additionalProperties"])}
    return "quantity" if part.get("x-kubernetes-int-or-string") or part == QUANTITY else part["type"]


@pytest.mark.parametrize("name", VERSIONS)
def test_fields_and_types_are_those_of_the_definition(name: str) -> None:
    file = Path(os.environ.get("ANADIL_DATA", "/nowhere")).parent / "crds" / f"{name}.yaml"
    if not file.is_file():
        pytest.skip(f"ANADIL_DATA has no ../crds/{name}.yaml to compare with")
    definition = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["spec"]
    [version] = definition["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    ours = schema(name)["properties"]

    assert shape(ours["spec"]) == shape(spec)
    assert ours["spec"]["required"] == spec["required"]
    assert ours["apiVersion"]["const"] == f"{definition['group']}/{version['name']}"
    assert ours["kind"]["const"] == definition["names"]["kind"]


def test_a_field_that_is_unknown_missing_or_of_another_type_is_told() -> None:
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"trainer": {"numNodes": "2", "env": [{"nam": "A"}]}},
    }

    told = " ".join(mistakes(TRAINJOB, job))

    assert "'runtimeRef' is a required property" in told
    assert "$.spec.trainer.numNodes: '2' is not of type 'integer'" in told
    assert "'nam' was unexpected" in told
