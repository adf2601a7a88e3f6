"""The registry's champion, with which a retraining begins."""

from dataclasses import dataclass

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest, verify
from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.release.registry.client import SCHEME, Registry, check_name, open_registry, registry_errors
from anadil.runtime.champion import ALIAS
from anadil.runtime.tracking_spool import tracking_uri

RESTORE = "restore it, or go back to the version before by `anadil rollback`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedModel:
    """The champion, found and verified."""

    name: str
    """Registered model."""
    version: str
    uri: str
    manifest: Manifest


def champion_name(recipe: Recipe) -> tuple[str, str]:
    """Return registered model and alias of the champion, as `evaluate.champion` or the language says."""
    named = recipe.evaluate.champion
    if named is None:
        return f"anadil-{recipe.language_code}", ALIAS
    name, sign, alias = named.removeprefix(SCHEME).rpartition("@")
    if not sign or "/" in name:
        raise RecipeError(
            f"evaluate.champion: {named}: a retraining begins with a model of the registry; write NAME@ALIAS, or leave it "
            f"out for anadil-{recipe.language_code}@{ALIAS}"
        )
    check_name(name, "evaluate.champion")
    return name, alias


def find_released(recipe: Recipe, recipe_argument: str) -> ReleasedModel:
    """Ask the registry for the champion, and verify its artifact: every byte of a local one, sizes on S3.

    Args:
        recipe: Its `evaluate.champion` and `tracking.uri` are used.
        recipe_argument: The recipe and options as the user gave them, for the remedy.
    """
    name, alias = champion_name(recipe)
    tracking = tracking_uri(recipe)
    first = f"make the first one: anadil run {recipe_argument}, then anadil promote MODEL"
    try:
        registry = open_registry(tracking, makes=False)
    except DataError as error:
        raise DataError(f"{error}; {first}") from None
    with registry_errors(registry.uri):
        version = registry.by_alias(name, alias)
    if version is None:
        raise DataError(f"{name}@{alias}: {_lack(registry, name)}; {first}")
    where = f"{version.uri} ({name} version {version.version}, @{alias})"
    if not version.digest:
        raise IntegrityError(
            f"{where}: another program registered it, so what it was trained on is not known; promote a model of `anadil run`"
        )
    manifest = artifact.read_manifest(version.uri)
    if manifest is None:
        raise IntegrityError(f"{where}: the artifact was deleted, or is not visible on this host; {RESTORE}")
    if manifest.digest != version.digest:
        raise IntegrityError(f"{where}: its bytes differ from those that were promoted; {RESTORE}")
    # Evaluation skips a champion that it cannot read. A retraining must not come so far.
    try:
        verify(version.uri, manifest)
    except IntegrityError as error:
        # It was promoted, so that what follows for an artifact of a run would be the wrong advice.
        fault = str(error).partition(";")[0]
        raise IntegrityError(f"{where}: {fault}; {RESTORE}") from None
    return ReleasedModel(name=name, version=version.version, uri=version.uri, manifest=manifest)


def champion_version(recipe: Recipe) -> str:
    """Return the version that is champion now; empty where none is."""
    name, alias = champion_name(recipe)
    registry = open_registry(tracking_uri(recipe), makes=False)
    with registry_errors(registry.uri):
        version = registry.by_alias(name, alias)
    return version.version if version else ""


def _lack(registry: Registry, name: str) -> str:
    known = registry.known(name)
    return f"no champion in the registry at {masked(registry.uri)} ({known.partition(';')[0]})"
