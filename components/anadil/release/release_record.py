"""`release.json`: what a retraining has released, by whom, why and when."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from anadil.artifacts import artifact, storage
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError

FILE = "release.json"
Outcome = Literal["champion", "challenger", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """Result of the release step."""

    outcome: Outcome
    """`refused`: the gate let no candidate through, and the champion stays."""
    alias: str = ""
    """Alias that the version got; empty where none was moved."""
    name: str
    """Registered model."""
    version: str = ""
    """Its version that the candidate is; empty for a refused one."""
    previous: str
    """Version that was the champion when the retraining began."""
    candidate: str = ""
    """Name of the candidate in the scores."""
    uri: str = ""
    digest: str = ""
    reasons: tuple[str, ...]
    """Sentences, the first of which says the outcome."""
    checks: tuple[dict[str, Any], ...]
    """The gate's checks of the candidate, of all candidates where none was released."""
    by: dict[str, str]
    """Who: `user`, `run`, `recipe` (SHA-256 of the resolved recipe) and `program`."""
    at: str
    """Time in UTC, ISO 8601."""

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def read_release(uri: str) -> ReleaseRecord:
    """The record in an artifact `release`."""
    artifact.finished_manifest(uri, "release")
    place = join(uri, FILE)
    try:
        return TypeAdapter(ReleaseRecord).validate_json(storage.store(place).read(place))
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise IntegrityError(
            f"{place}: no record of a release ({why}); remove {uri}, and run the stage again"
        ) from None
