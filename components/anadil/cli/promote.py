"""`anadil promote`: a model that passed its gate gets a version and an alias in MLflow's registry.

Whoever serves the model asks the registry for the alias, so that moving it is the release.
"""

import argparse
import json
import logging
import os
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute, join
from anadil.cli.doctor.local import require_packages
from anadil.core.errors import (
    DataError,
    GateError,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
)
from anadil.recipe.load import load_recipe
from anadil.runtime.champion import ALIAS, DIGEST_TAG, TIMEOUTS
from anadil.runtime.entry_point import add_recipe_options
from anadil.runtime.mlflow_spool import tracking_uri

log = logging.getLogger(__name__)

PROMOTED = {"model": "adapted", "adapter": "finetuned"}
"""Kinds of artifacts that speak -> the candidate of the scores that each of them is."""


def add_promote(name: str, commands: Any, text: str) -> None:
    """Put the command among those of `anadil`."""
    told = f"{text}. Prints the version; exits 6 where the gate was not passed, and moves nothing."
    command = commands.add_parser(name, help=text, description=told)
    add_recipe_options(command)
    command.add_argument(
        "--scores", required=True, metavar="URI", help="scores artifact with the gate's verdict"
    )
    told = "model or adapter artifact that the scores are of"
    command.add_argument("--model", required=True, metavar="URI", help=told)
    told = "registered model (default: anadil- and the recipe's language)"
    command.add_argument("--name", metavar="NAME", help=told)
    command.add_argument("--alias", default=ALIAS, metavar="ALIAS", help="default: %(default)s")
    told = "say what would be done, and do nothing"
    command.add_argument("--dry-run", action="store_true", help=told)
    command.set_defaults(command=promote)


def promote(options: argparse.Namespace) -> int:
    """Check the verdict and the model, register it and move the alias."""
    recipe = load_recipe(options.recipe, options.set)
    manifest = check_promotable(options.scores, options.model)
    model, scores = absolute(options.model), absolute(options.scores)
    name = options.name or f"anadil-{recipe.language_code}"
    if options.dry_run:
        print(f"{model} would be {name}@{options.alias}")
        return 0
    uri = tracking_uri(recipe)
    if uri is None:
        raise RecipeError("tracking.uri: no MLflow server; set it or MLFLOW_TRACKING_URI")
    require_packages("tracking")
    if uri.startswith("http") and "://" not in model:
        raise PreflightError(
            f"--model {model}: a path of this machine, which an MLflow server neither takes nor reaches; put "
            "storage.root on S3, or set tracking.uri to a database, such as sqlite:///mlflow.db"
        )
    version = _register(uri, name, options.alias, model, scores, manifest)
    print(f"{name} version {version} is {options.alias}")
    return 0


def check_promotable(scores: str, model: str) -> Manifest:
    """The manifest of a model whose scores passed the gate: the checks of what it is itself.

    Raises:
        GateError: One of them was not passed.
        IntegrityError: The scores are of another model, or a file of the model is missing or changed.
        DataError: One of the two is no such artifact.
    """
    folder, judged = fetch(scores, "scores")
    gate = _gate_of(scores, folder / "scores.json")
    manifest = artifact.read_manifest(model)
    if manifest is None or manifest.kind not in PROMOTED:
        raise DataError(f"--model {model}: no finished model or adapter there; give the URI of one")
    of = judged.origin.get(f"input {manifest.kind}")
    if of != manifest.digest:
        raise IntegrityError(
            f"{scores}: the scores are not of {model}; give the {manifest.kind} that was evaluated, or evaluate it"
        )
    candidate = PROMOTED[manifest.kind]
    own = [check for check in gate["checks"] if str(check["name"]).startswith(f"{candidate}.")]
    failed = [check for check in own if check.get("enforced", True) and not check["passed"]]
    # Scores of an earlier release have checks and no verdicts.
    verdict = (gate.get("verdicts") or {}).get(manifest.kind, {"passed": True})
    if not own:
        raise DataError(f"{scores}: holds no checks of the {candidate} model; run evaluate again")
    if failed or not verdict["passed"]:
        reasons = "; ".join(map(_reason, failed)) or ", ".join(verdict.get("failed", []))
        raise GateError(f"{model}: the gate was not passed: {reasons}; nothing was promoted{_other(gate)}")
    _verify(model, manifest)
    return manifest


def _gate_of(scores: str, path: Path) -> dict[str, Any]:
    """The gate's table.

    Raises:
        DataError: There is none, or checks are not as any release wrote them.
    """
    gate = json.loads(path.read_text(encoding="utf-8")).get("gate")
    checks = gate.get("checks") if isinstance(gate, dict) else None
    if not isinstance(checks, list) or not all({"name", "passed"} <= set(check) for check in checks):
        raise DataError(f"{scores}: scores.json holds no verdict of the gate; run evaluate again")
    return dict(gate)


def _reason(check: dict[str, Any]) -> str:
    """A failed check: `finetuned.ended 0.2 below 0.5`."""
    value, limit = check.get("value"), check.get("limit")
    if value is None or limit is None:
        return f"{check['name']} not measured"
    ends = check.get("interval") or [value]
    around = f" [{ends[0]:.4g}, {ends[-1]:.4g}]" if len(ends) > 1 else ""
    side = "below" if check.get("at_least") else "above"
    holds = value >= limit if check.get("at_least") else value <= limit
    # Then it is its interval that does not hold.
    return f"{check['name']} {value:.4g}{around} {'not surely under' if holds else side} {limit:.4g}"


def _other(gate: dict[str, Any]) -> str:
    """What may be promoted instead."""
    released = gate.get("released")
    kinds = [kind for kind, candidate in PROMOTED.items() if candidate == released]
    return f"; the {released} model passed: promote the {kinds[0]}" if kinds else ""


def _verify(model: str, manifest: Manifest) -> None:
    """Look whether the model can be loaded; of what lies on S3, whether each file is there."""
    if "://" not in model:
        artifact.verify_files(Path(model), manifest, model)
        return
    files = storage.store(model)
    for name in manifest.files:
        if not files.exists(join(model, name)):
            raise IntegrityError(
                f"{model}/{name}: missing, but its manifest names it; make the artifact again"
            )


def _register(uri: str, name: str, alias: str, model: str, scores: str, manifest: Manifest) -> str:
    """Version number; one that holds the same bytes is taken again."""
    # A person waits: a server that is away should be told in seconds, not minutes.
    os.environ.update(TIMEOUTS | os.environ)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        if not client.search_registered_models(filter_string=f"name = '{name}'"):
            client.create_registered_model(name, description="Made by anadil.")
        versions = client.search_model_versions(filter_string=f"name = '{name}'")
        same = [each for each in versions if each.tags.get(DIGEST_TAG) == manifest.digest]
        tags = {DIGEST_TAG: manifest.digest, "anadil.scores": scores, "anadil.kind": manifest.kind}
        made = same[0] if same else client.create_model_version(name, source=model, tags=tags)
        if current := client.get_registered_model(name).aliases.get(alias):
            digest = client.get_model_version(name, current).tags.get(DIGEST_TAG)
            _warn_uncompared(f"{name} version {current}", digest, scores, manifest)
        client.set_registered_model_alias(name, alias, made.version)
    except MlflowException as error:
        if error.get_http_status_code() >= 500:
            raise RetryableError(f"MLflow did not answer: {error}; run the same command again") from None
        raise PreflightError(f"MLflow refused: {error}; check the name, the alias and your rights") from None
    log.info("%s version %s: %s", name, made.version, model)
    return str(made.version)


def _warn_uncompared(champion: str, digest: str | None, scores: str, manifest: Manifest) -> None:
    """Say that the model which is replaced is none that these scores know."""
    judged = artifact.finished_manifest(scores, "scores")
    if digest not in (manifest.digest, judged.origin.get("input champion")):
        log.warning("%s, which is replaced, was not compared with; evaluate again for that", champion)
