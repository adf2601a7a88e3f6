"""`anadil promote`: a model that passed its gate gets a version and an alias in MLflow's registry.

Whoever serves the model asks the registry for the alias, so that moving it is the release.
"""

import argparse
import json
import logging
import os
import shlex
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import absolute, join
from anadil.core.errors import RecipeError
from anadil.core.log import masked
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.release.registry.client import SCHEME, check_alias, check_name, open_registry, parse, resolve
from anadil.release.registry.gate_verdict import Promotable, check_promotable, find_scores, read_model
from anadil.runtime.champion import ALIAS
from anadil.runtime.entry_point import add_recipe_options
from anadil.runtime.mlflow_spool import tracking_uri

log = logging.getLogger(__name__)

ALIASES = (ALIAS, "challenger")


def add_promote(name: str, commands: Any, text: str) -> None:
    """Put the command among those of `anadil`."""
    help_text = (
        f"{text}. Without --as it becomes champion where there is none, or where its scores show that it beats the "
        "champion, else challenger. The champion before stays as `previous`. Prints the version; exits 6 where the "
        "gate was not passed, and moves nothing."
    )
    command = commands.add_parser(name, help=text, description=help_text)
    help_text = f"model or adapter artifact, or {SCHEME}NAME@challenger"
    command.add_argument("model", nargs="?", metavar="URI", help=help_text)
    command.add_argument("--as", dest="alias", choices=ALIASES, help="the alias that it gets")
    help_text = "make the version `previous` the champion again, after its bytes were verified"
    command.add_argument("--rollback", action="store_true", help=help_text)
    help_text = (
        "scores artifact with the gate's verdict (default: the newest of the model that lies beside it)"
    )
    command.add_argument("--scores", metavar="URI", help=help_text)
    help_text = "registered model (default: anadil- and the language that the model learned)"
    command.add_argument("--name", metavar="NAME", help=help_text)
    help_text = "print what would be done, and do nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    command.add_argument("--model", dest="named_model", metavar="URI", help="the same as URI")
    command.add_argument("--alias", dest="other_alias", metavar="ALIAS", help="another alias instead of --as")
    add_recipe_options(command)
    command.set_defaults(command=promote, recipe=None)


def promote(options: argparse.Namespace) -> int:
    """Check the verdict and the model, register it and move the alias; or go back to the champion before."""
    alias = _alias_of(options)
    given = _model_of(options)
    if options.rollback:
        return _roll_back(options, given)
    if given is None:
        raise RecipeError("promote: which model? give the URI of a model or adapter artifact")
    recipe = _given_recipe(options)
    uri, scores, name = _artifact_of(given, options, recipe)
    check_name(name, "--name")
    manifest = read_model(uri)
    if recipe is None:
        recipe = _recipe_of(manifest, options.set)
        name = options.name or (name if given.startswith(SCHEME) else f"anadil-{recipe.language_code}")
    model = check_promotable(scores or find_scores(uri, manifest, recipe.storage.root), uri)
    tracking = _tracking(recipe, uri)
    if options.dry_run:
        return _say_only(model, name, alias, tracking)
    from anadil.release.registry.promotion import promote as release

    registry = open_registry(tracking)
    done = release(registry, name, model, alias, recipe.tracking.experiment)
    print(f"{done.name} version {done.version} is {done.alias}")
    if done.previous:
        print(f"{done.name} version {done.previous} is previous; anadil promote --rollback goes back to it")
    elif done.alias == ALIASES[1]:
        log.info("the champion stays: --as champion replaces it")
    if os.environ.get("MLFLOW_TRACKING_URI") != registry.uri:
        log.info(
            "for commands that name it: export MLFLOW_TRACKING_URI=%s", shlex.quote(masked(registry.uri))
        )
    log.info('to load it: mlflow.transformers.load_model("%s%s@%s")', SCHEME, done.name, done.alias)
    return 0


def _alias_of(options: argparse.Namespace) -> str | None:
    if options.alias and options.other_alias:
        raise RecipeError("--alias: give it or --as, not both")
    if options.other_alias:
        check_alias(options.other_alias, "--alias")
    if options.rollback and (options.alias or options.other_alias):
        raise RecipeError("--rollback: takes no alias: it makes `previous` the champion")
    alias: str | None = options.alias or options.other_alias
    return alias


def _model_of(options: argparse.Namespace) -> str | None:
    if options.model and options.named_model:
        raise RecipeError(f"--model {options.named_model}: give it or {options.model}, not both")
    given: str | None = options.model or options.named_model
    return given


def _given_recipe(options: argparse.Namespace) -> Recipe | None:
    return load_recipe(options.recipe, options.set) if options.recipe else None


def _artifact_of(
    given: str, options: argparse.Namespace, recipe: Recipe | None
) -> tuple[str, str | None, str]:
    """URI of the artifact, of its scores where they are known, and the registered model's name."""
    if given.startswith(SCHEME):
        found = resolve(given, tracking_uri(recipe or load_recipe("{}", options.set)))
        return found.uri, options.scores or found.scores or None, options.name or found.name
    name = options.name or (f"anadil-{recipe.language_code}" if recipe else "anadil")
    return absolute(given), options.scores, name


def _recipe_of(manifest: Manifest, overrides: list[str]) -> Recipe:
    """The recipe that made a model; of another release, whose keys have changed, the built-in one."""
    try:
        return load_recipe(json.dumps(manifest.recipe or {}), overrides)
    except RecipeError:
        return load_recipe("{}", overrides)


def _tracking(recipe: Recipe, model: str) -> str | None:
    """Where the registry is: as for every command, else the database that `anadil run` keeps beside its artifacts."""
    root = model.rpartition("/")[0].rpartition("/")[0]
    database = join(root, "mlflow.db")
    beside = "://" not in root and storage.store(database).exists(database)
    return tracking_uri(recipe, default=f"sqlite:///{database}" if beside else None)


def _say_only(model: Promotable, name: str, alias: str | None, tracking: str | None) -> int:
    from anadil.release.registry.promotion import target_alias

    if alias is None:
        registry = open_registry(tracking, makes=False) if tracking else None
        alias = target_alias(registry.by_alias(name, ALIAS) if registry else None, model)
    print(f"{model.uri} would be {name}@{alias}")
    return 0


def _roll_back(options: argparse.Namespace, given: str | None) -> int:
    from anadil.release.registry.promotion import roll_back

    recipe = _given_recipe(options) or load_recipe("{}", options.set)
    name = options.name or (parse(given).name if given else f"anadil-{recipe.language_code}")
    check_name(name, "--name")
    registry = open_registry(tracking_uri(recipe), makes=False)
    if options.dry_run:
        previous = registry.number(name, "previous") or "none"
        print(f"{name} would go back to version {previous} in the registry at {masked(registry.uri)}")
        return 0
    done = roll_back(registry, name)
    print(f"{done.name} version {done.version} is champion")
    if done.previous:
        print(f"{done.name} version {done.previous} is previous")
    return 0
