"""Aliases of the registry: promotion to champion or challenger, and rollback."""

import datetime as dt
import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from anadil.artifacts import artifact
from anadil.artifacts.artifact import verify
from anadil.core.candidates import answers
from anadil.core.errors import AnadilError, DataError, IntegrityError, RetryableError
from anadil.recipe.retrain import Champion
from anadil.release.registry.client import WHOLE_TAG, RegisteredModel, Registry, registry_errors
from anadil.release.registry.gate_verdict import (
    Promotable,
    Source,
    Undo,
    description_of,
    source_of,
    tags_of,
    undone_on_failure,
)
from anadil.runtime.champion import ALIAS

log = logging.getLogger(__name__)

CHALLENGER = "challenger"
PREVIOUS = "previous"
REPLACED_TAG = "anadil.replaced"
"""Tag of a version: number of the champion that it replaced."""
PROMOTED_TAG = "anadil.promoted"
LEFT_TAG = "anadil.rolled_back"
LINKS_TAG = "mlflow.modelVersions"
"""Tag of a logged model: the versions made from it. Source: mlflow 3.17, utils/mlflow_tags.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Result of a promotion or rollback."""

    name: str
    version: str
    alias: str
    previous: str = ""
    """Number of the version that is `previous` now; empty if no champion was replaced."""
    rolled_back: str = ""
    """Time at which somebody has rolled the version back, which is why it is no champion by itself."""


def promote(
    registry: Registry, name: str, model: Promotable, alias: str | None, experiment: str, *, began_with: Champion | None = None,
) -> Promotion:  # fmt: skip
    """Give a model a version and an alias, by default that of `target_alias`; a failure leaves the registry as it was.

    A version that was rolled back becomes champion again by name only.

    Args:
        registry: Where.
        name: Registered model.
        model: Model that passed its gate.
        alias: `champion` or `challenger`; left out, the scores decide.
        experiment: Experiment of a run that is made for a model without one.
        began_with: Champion that a retraining began with; another one now is refused.
    """
    tags, description = tags_of(model), description_of(model)
    with registry_errors(registry.uri), undone_on_failure() as undo:
        before = registry.by_alias(name, ALIAS)
        champion = _usable(before, model, alias)
        _refuse_another(name, champion, model, began_with)
        version = _same(registry, name, model)
        left = _left(champion, version)
        chosen = alias or (CHALLENGER if left else target_alias(champion, model))
        if version is None:
            source = source_of(registry, model, experiment, undo)
            version = _create(registry, name, source, tags, description, undo)
        if champion and chosen == ALIAS and not model.was_compared_with(champion.digest):
            log.warning(
                "%s version %s, which is replaced, was not compared with; evaluate again for that",
                name,
                champion.version,
            )
        # Bytes were read meanwhile.
        if registry.number(name, ALIAS) != (before.version if before else ""):
            raise RetryableError(f"{name}: another promotion moved the aliases; look, and run again")
        done = _move(registry, version, chosen, champion, undo)
        return done if alias else replace(done, rolled_back=left)


def target_alias(champion: RegisteredModel | None, model: Promotable) -> str:
    """`champion` if there is none, if it is this one, or if the scores show that it is beaten.

    A model that only continues text never takes the place of one that answers, whatever it gains on text.
    """
    if champion is None or champion.digest == model.manifest.digest:
        return ALIAS
    is_better = model.has_beaten(champion.digest) and not loses_answers(champion.uri, model)
    return ALIAS if is_better else CHALLENGER


def loses_answers(champion: str, model: Promotable) -> bool:
    """Return True if the champion of a URI answers, and the model only continues text."""
    if answers(model.manifest.kind, model.manifest.figures):
        return False
    with suppress(AnadilError, OSError):  # a champion that is gone answers nobody
        if manifest := artifact.read_manifest(champion):
            return answers(manifest.kind, manifest.figures)
    return False


def roll_back(registry: Registry, name: str) -> Promotion:
    """Make the version `previous` the champion again, after its bytes were verified; the two change places."""
    with registry_errors(registry.uri):
        before = _pair(registry, name)
        champion, previous = before
        if previous is None or (champion and champion.version == previous.version):
            raise DataError(f"{name}@{PREVIOUS}: no earlier version to roll back to; {registry.known(name)}")
        _verify(previous, whole=True)
        left = champion.version if champion else ""
        with undone_on_failure() as undo:
            if _pair(registry, name) != before:
                raise RetryableError(f"{name}: another promotion moved the aliases; look, and run again")
            _point(registry, name, PREVIOUS, left, undo)
            _point(registry, name, ALIAS, previous.version, undo)
            if left:
                registry.client.set_model_version_tag(name, left, LEFT_TAG, _now())
    return Promotion(name=name, version=previous.version, alias=ALIAS, previous=left)


def _pair(registry: Registry, name: str) -> tuple[RegisteredModel | None, RegisteredModel | None]:
    return registry.by_alias(name, ALIAS), registry.by_alias(name, PREVIOUS)


def _same(registry: Registry, name: str, model: Promotable) -> RegisteredModel | None:
    """A version with the same bytes, if they are still in their place."""
    for version in registry.of_digest(name, model.manifest.digest):
        with suppress(AnadilError, OSError):
            if version.uri != model.uri:
                _verify(version, whole=False)
            return version
    return None


def _usable(champion: RegisteredModel | None, model: Promotable, alias: str | None) -> RegisteredModel | None:
    """The champion, if its bytes are those that were promoted; one that is not may only be replaced by name."""
    # One that somebody else has registered has no digest, and is taken as it is.
    if champion is None or not champion.digest or champion.digest == model.manifest.digest:
        return champion
    try:
        _verify(champion, whole=alias is None)
    except (IntegrityError, DataError, OSError) as error:
        if alias is None:
            raise IntegrityError(
                f"{error}; it is the champion of {champion.name}: --as champion replaces it, anadil rollback goes back "
                "to the one before"
            ) from None
        log.warning("the champion, version %s, is left: %s", champion.version, error)
        return None
    return champion


def _refuse_another(
    name: str, champion: RegisteredModel | None, model: Promotable, began_with: Champion | None
) -> None:
    """Refuse to judge against a champion that is not the one now; the model itself is, where a killed step was done."""
    if began_with is None or (champion and champion.digest == model.manifest.digest):
        return
    # A version that another program registered has no digest.
    if champion and champion.version == began_with.version and champion.digest in (began_with.digest, ""):
        return
    now = f"is version {champion.version} now" if champion else "is no version now"
    raise RetryableError(
        f"{name}@{ALIAS}: {now}, and this retraining began with version {began_with.version}; nothing was moved; run "
        "anadil retrain again, which begins with the champion as it is then"
    )


def _left(champion: RegisteredModel | None, version: RegisteredModel | None) -> str:
    """Time at which a version was rolled back; empty for one that was not, or is champion again."""
    # Two that change places by rollbacks both have the tag, and one of them is champion by somebody's decision.
    if version is None or (champion and champion.version == version.version):
        return ""
    return version.tags.get(LEFT_TAG, "")


def _verify(version: RegisteredModel, *, whole: bool) -> None:
    """Compare a version's artifact with what was promoted."""
    where = f"{version.uri} ({version.name} version {version.version})"
    manifest = artifact.read_manifest(version.uri)
    if manifest is None:
        raise IntegrityError(f"{where}: the artifact was deleted, or is not visible on this host; restore it")
    expected = version.tags.get(WHOLE_TAG, manifest.whole_digest)
    if manifest.digest != version.digest or manifest.whole_digest != expected:
        raise IntegrityError(f"{where}: its bytes differ from those that were promoted; restore them")
    if whole:
        verify(version.uri, manifest, whole=True)
    else:
        artifact.check_sizes(version.uri, manifest)


def _create(
    registry: Registry, name: str, source: Source, tags: dict[str, str], description: str, undo: Undo
) -> RegisteredModel:  # fmt: skip
    """A version, and the registered model if it is the first."""
    client = registry.client
    if registry.model(name) is None:
        undo.append(lambda: client.delete_registered_model(name))
        client.create_registered_model(name, description="Models that passed their gate, by anadil promote.")
    if source.model_id:
        logged = source.model_id
        links = client.get_logged_model(logged).tags.get(LINKS_TAG)
        # MLflow adds the version to the links of the logged model.
        undo.append(
            (lambda: client.delete_logged_model_tag(logged, LINKS_TAG))
            if links is None
            else (lambda: client.set_logged_model_tags(logged, {LINKS_TAG: links}))
        )
    created = client.create_model_version(
        name, source.source, run_id=source.run_id, tags=tags, description=description,
        model_id=source.model_id, await_creation_for=0,
    )  # fmt: skip
    undo.append(lambda: client.delete_model_version(name, created.version))
    version = registry.by_number(name, str(created.version))
    assert version is not None
    return version


def _move(
    registry: Registry, version: RegisteredModel, alias: str, champion: RegisteredModel | None, undo: Undo
) -> Promotion:  # fmt: skip
    """Set the alias, and `previous` to the champion before."""
    # `previous` first, so that a crash between the two loses neither.
    client, name, left = registry.client, version.name, ""
    if alias == ALIAS and champion and champion.version != version.version:
        left = champion.version
        client.set_model_version_tag(name, version.version, REPLACED_TAG, left)
        _point(registry, name, PREVIOUS, left, undo)
    client.set_model_version_tag(name, version.version, PROMOTED_TAG, _now())
    _point(registry, name, alias, version.version, undo)
    if alias == ALIAS and registry.number(name, CHALLENGER) == version.version:
        _point(registry, name, CHALLENGER, "", undo)
    log.info("%s version %s: %s", name, version.version, version.uri)
    return Promotion(name=name, version=version.version, alias=alias, previous=left)


def _point(registry: Registry, name: str, alias: str, number: str, undo: Undo) -> None:
    """Point an alias to a version; an empty number deletes the alias."""

    def write(number: str) -> None:
        if number:
            registry.client.set_registered_model_alias(name, alias, number)
        else:
            registry.client.delete_registered_model_alias(name, alias)

    before = registry.number(name, alias)
    undo.append(lambda: write(before))
    write(number)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
