"""Definitions of custom resources, as strict as a server that refuses unknown fields.

They are large and not ours, so they lie beside the test data: `$ANADIL_DATA/../crds`. Tests
that need them skip where they are not.
"""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

PYTORCHJOB = ("kubeflow.org_pytorchjobs", "hyperpod-helm-chart_kubeflow.org_pytorchjobs")
"""PyTorchJob of the training operator 1.9, and of the older one that HyperPod's chart installs."""
TRAINJOB = "trainer.kubeflow.org_trainjobs"
HYPERPOD_SPEC = "sagemaker.amazonaws.com_hyperpodpytorchjobs.spec.schema"
"""Only the spec: AWS publishes no definition, but the model of its command line."""


def mistakes(name: str, manifest: Mapping[str, Any]) -> list[str]:
    """What the definition of a resource refuses in a manifest; skips where it is not at hand.

    Args:
        name: Of the file, without its ending.
        manifest: The whole resource, or its spec for `HYPERPOD_SPEC`.
    """
    found = [leaf for error in validator(name).iter_errors(manifest) for leaf in _leaves(error)]
    return [f"{error.json_path}: {error.message}" for error in found]


@functools.cache
def validator(name: str) -> Any:
    """A strict jsonschema validator of a definition; skips where it is not at hand."""
    folder = Path(os.environ.get("ANADIL_DATA", "")).parent / "crds"
    files = [folder / f"{name}.yaml", folder / f"{name}.json"]
    found = next((file for file in files if os.environ.get("ANADIL_DATA") and file.is_file()), None)
    if found is None:
        pytest.skip(f"ANADIL_DATA has no ../crds/{name}, the definition of a resource")
    jsonschema = pytest.importorskip("jsonschema")
    text = found.read_text(encoding="utf-8")
    if found.suffix == ".json":
        return jsonschema.Draft202012Validator(strict(json.loads(text)["spec"]))
    definition = yaml.load(text, Loader=yaml.CSafeLoader)
    schema = strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    names = definition["spec"]["names"]
    version = f"{definition['spec']['group']}/{definition['spec']['versions'][0]['name']}"
    schema["properties"] |= {
        "apiVersion": {"const": version},
        "kind": {"const": names["kind"]},
        "metadata": {"type": "object"},
    }
    return jsonschema.Draft202012Validator(schema)


def _leaves(error: Any) -> Iterator[Any]:
    """The mistake itself where a schema offers several forms, of which one is nothing at all."""
    inner = [each for each in error.context if each.schema != {"type": "null"}]
    if not inner:
        yield error
    for each in inner:
        yield from _leaves(each)


def strict(schema: Any) -> Any:
    """The schema of a resource with unknown fields refused, as kubectl does."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    # A field may be called `properties` or `type`: those tables hold schemas by name.
    changed = {
        key: {name: strict(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else strict(value)
        for key, value in schema.items()
        if key not in ("format", "description")
    }
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        changed["additionalProperties"] = False
    return changed
