"""The champion to compare with: the model that was released last.

`python -m anadil.runtime.compared_champion NAME ALIAS` asks the registry at MLFLOW_TRACKING_URI in a process of its own: a
registry that hangs, or a client that is not installed, costs a comparison and no run.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import absolute
from anadil.core.candidates import BY_KIND
from anadil.core.errors import AnadilError, DataError, RecipeError
from anadil.core.log import masked
from anadil.core.processes import last_line, run_child
from anadil.recipe.sections import Recipe
from anadil.runtime.tracking_spool import tracking_uri

log = logging.getLogger(__name__)

ALIAS = "champion"
DIGEST_TAG = "anadil.sha256"
"""Tag of a version in the registry: the digest of the artifact that it is."""
URI_TAG = "anadil.uri"
"""Tag of a version: where the artifact lies. Its source is the directory that MLflow loads, such as `merged` of an adapter."""
PATIENCE_S = 90.0
"""How long the registry has; a database is brought up to date meanwhile."""
# MLflow's own are 120 s and 7 tries; a run waits for this.
TIMEOUTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
SKIPPED = "champion: %s; candidates are not compared with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedChampion:
    """A released model."""

    uri: str
    kind: str
    """`model`, `merged` or `adapter`."""
    digest: str


def find_champion(recipe: Recipe, inputs: Mapping[str, Manifest]) -> ComparedChampion | None:
    """Return the model to compare with, as `evaluate.champion` says; None, with the reason logged, if there is none."""
    named = recipe.evaluate.champion
    if named == "none":
        return None
    champion = _at(named) if named and "@" not in named else _registered(recipe, named)
    # A retraining on new chats alone takes the champion's model, and what it makes of that is compared with it.
    words = ("adapter",) if recipe.retrain and recipe.retrain.keeps_model else inputs.keys()
    if champion and champion.digest in {inputs[word].digest for word in words if word in inputs}:
        log.info("champion: %s is what is evaluated", champion.uri)
        return None
    return champion


def _at(uri: str) -> ComparedChampion:
    try:
        manifest = artifact.finished_manifest(absolute(uri), *BY_KIND)
    except DataError as error:
        raise DataError(f"evaluate.champion: {error}") from None
    return ComparedChampion(uri=absolute(uri), kind=manifest.kind, digest=manifest.digest)


def _registered(recipe: Recipe, named: str | None) -> ComparedChampion | None:
    uri = tracking_uri(recipe)
    if uri is None:
        if named:
            raise RecipeError(
                f"evaluate.champion: {named}: no registry; set tracking.uri or MLFLOW_TRACKING_URI"
            )
        return None
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return None  # asking would make the database
    name, _, alias = (named or f"anadil-{recipe.language_code}@{ALIAS}").rpartition("@")
    version, reason = _ask(uri, name, alias)
    if reason:
        log.warning(SKIPPED, f"the registry at {masked(uri)} gave no answer ({reason})")
    if not version:
        return None
    try:
        champion = _at(str(version["uri"]))
    except (AnadilError, OSError) as error:
        log.warning(SKIPPED, error)
        return None
    if champion.digest != version["digest"]:
        log.warning(SKIPPED, f"{champion.uri} holds other bytes than {name}@{alias} of the registry")
        return None
    return champion


def _ask(uri: str, name: str, alias: str) -> tuple[dict[str, Any], str]:
    """Return the version that an alias stands for, empty if there is none, or the reason why it is unknown."""
    command = [sys.executable, "-m", "anadil.runtime.compared_champion", name, alias]
    environment = TIMEOUTS | os.environ | {"MLFLOW_TRACKING_URI": uri}
    try:
        done = run_child(command, PATIENCE_S, environment=environment)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1]), ""
        return {}, masked(last_line(done.stderr, f"exit code {done.returncode}"))[:300]
    except subprocess.TimeoutExpired:
        return {}, f"none within {PATIENCE_S:.0f} s"


def main(name: str, alias: str) -> None:
    """Print the version that an alias stands for as JSON; an empty table where there is none."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    tracking = os.environ["MLFLOW_TRACKING_URI"]
    try:
        version = MlflowClient(tracking_uri=tracking, registry_uri=tracking).get_model_version_by_alias(
            name, alias
        )
    except MlflowException as error:
        # No such model, no such alias.
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        print("{}")  # noqa: T201  this is what the module is run for
    else:
        # A version that somebody registered by hand has no such tag.
        uri = version.tags.get(URI_TAG, version.source)
        answer = {"uri": uri, "digest": version.tags.get(DIGEST_TAG, "")}
        print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
