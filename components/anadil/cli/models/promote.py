"""`anadil promote`: a model that passed its gate gets a version and an alias in MLflow's registry.

Whoever serves the model asks the registry for the alias, so that moving it is the release.
"""

import argparse
import json
import logging
import os
import shlex

from anadil.artifacts import artifact
from anadil.artifacts.uri import absolute
from anadil.core.candidates import BY_KIND
from anadil.core.errors import RecipeError
from anadil.core.log import masked
from anadil.recipe.load import load_recipe
from anadil.release.registry.client import SCHEME, check_name, open_registry, parse, registry_address, resolve
from anadil.runtime.compared_champion import ALIAS
from anadil.runtime.entry_point import add_recipe_options
from anadil.runtime.tracking_spool import tracking_uri

log = logging.getLogger(__name__)

ALIASES = (ALIAS, "challenger")


def add_promote(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    command.description = (
        f"{command.description}. Without --as it becomes champion where there is none, or where its scores show that it "
        "beats the champion, else challenger. The champion before stays as `previous`. Prints the version; exits 6 where "
        "the gate was not passed, and moves nothing."
    )
    help_text = f"model, merged or adapter artifact, or {SCHEME}NAME@challenger"
    command.add_argument("model", nargs="?", metavar="URI", help=help_text)
    command.add_argument("--as", dest="alias", choices=ALIASES, help="the alias that it gets")
    help_text = "the same as `anadil rollback`"
    command.add_argument("--rollback", action="store_true", help=help_text)
    help_text = (
        "scores artifact with the gate's verdict (default: the newest of the model that lies beside it)"
    )
    command.add_argument("--scores", metavar="URI", help=help_text)
    help_text = "registered model (default: anadil- and the language that the model learned)"
    command.add_argument("--name", metavar="NAME", help=help_text)
    help_text = "print what would be done, and do nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    add_recipe_options(command)
    command.set_defaults(command=promote, needs="tracking", recipe=None)


def add_rollback(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    command.description = f"{command.description}, after its bytes were verified; the two change places. Exits 5 where the bytes differ."
    help_text = "registered model (default: anadil- and the recipe's language)"
    command.add_argument("--name", metavar="NAME", help=help_text)
    help_text = "print what would be done, and do nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    add_recipe_options(command)
    command.set_defaults(command=rollback, needs="tracking", recipe=None, alias=None, model=None)


def promote(options: argparse.Namespace) -> int:
    """Check the verdict and the model, register it and move the alias; or go back to the champion before."""
    from anadil.release.registry.promotion import check_promotable, find_scores, target_alias
    from anadil.release.registry.promotion import promote as release

    recipe = load_recipe(options.recipe, options.set) if options.recipe else None
    if options.rollback:
        return rollback(options)
    if options.model is None:
        raise RecipeError("promote: which model? give the URI of a model, merged or adapter artifact")
    uri, scores, name = absolute(options.model), options.scores, options.name
    if options.model.startswith(SCHEME):
        version = resolve(options.model, tracking_uri(recipe or load_recipe("{}", options.set)))
        uri, scores, name = version.uri, scores or version.scores or None, name or version.name
    if name:
        check_name(name, "--name")
    manifest = artifact.finished_manifest(uri, *BY_KIND)
    recipe = recipe or load_recipe(json.dumps(manifest.recipe or {}), options.set)
    name = name or f"anadil-{recipe.language_code}"
    model = check_promotable(scores or find_scores(uri, manifest, recipe.storage.root), uri)
    tracking = registry_address(recipe, uri)
    if options.dry_run:
        registry = open_registry(tracking, makes=False) if tracking and not options.alias else None
        champion = registry.by_alias(name, ALIAS) if registry else None
        print(f"{model.uri} would be {name}@{options.alias or target_alias(champion, model)}")
        return 0
    registry = open_registry(tracking)
    done = release(registry, name, model, options.alias, recipe.tracking.experiment)
    print(f"{done.name} version {done.version} is {done.alias}")
    if done.previous:
        print(f"{done.name} version {done.previous} is previous; anadil rollback goes back to it")
    elif done.alias == ALIASES[1]:
        log.info("the champion stays: --as champion replaces it")
    if os.environ.get("MLFLOW_TRACKING_URI") != registry.uri:
        address = shlex.quote(masked(registry.uri))
        log.info("for commands that name it: export MLFLOW_TRACKING_URI=%s", address)
    log.info('to load it: mlflow.transformers.load_model("%s%s@%s")', SCHEME, done.name, done.alias)
    return 0


def rollback(options: argparse.Namespace) -> int:
    """Make the version `previous` the champion again."""
    from anadil.release.registry.promotion import roll_back

    recipe = load_recipe(options.recipe or "{}", options.set)
    if options.alias:
        raise RecipeError("--rollback: takes no alias: it makes `previous` the champion")
    language = f"anadil-{recipe.language_code}"
    name = options.name or (parse(options.model).name if options.model else language)
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
