"""Objects held against Kubernetes' own schemas, of every version that we say we run on."""

import functools
from collections.abc import Mapping
from typing import Any
from unittest import mock

from tests.kit.marks import matrix

_SUPPORTED = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34")
VERSIONS = [
    version if version in (_SUPPORTED[0], _SUPPORTED[-1]) else matrix(version) for version in _SUPPORTED
]  # The oldest and the newest by default: what both take, those between them take nearly always.


def validate(item: Mapping[str, Any], version: str) -> None:
    """Fails where an object is not as a version of Kubernetes defines it, or has unknown fields."""
    import kubernetes_validate

    # The library reads its definitions again for every object.
    with mock.patch.object(kubernetes_validate.utils, "schema_contents", _contents()):
        kubernetes_validate.validate(item, version, strict=True)


@functools.cache
def _contents() -> Any:
    import kubernetes_validate

    return functools.cache(kubernetes_validate.utils.schema_contents)


@functools.cache
def definitions(version: str) -> dict[str, Any]:
    """Every type of a version of Kubernetes, by its name."""
    file = f"kubernetes-json-schema/v{version}.0-local/_definitions.json"
    types: dict[str, Any] = _contents()(file, version)["$defs"]
    return types
