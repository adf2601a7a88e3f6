"""Aliases of the registry: promotion to champion or challenger, and rollback."""

import contextlib
import datetime as dt
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anadil import __version__
from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest, verify
from anadil.artifacts.find import artifacts_below, root_of
from anadil.artifacts.mlmodel import write_mlmodel
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute, join
from anadil.core.candidates import BY_KIND, BY_NAME, answers
from anadil.core.errors import AnadilError, DataError, GateError, IntegrityError, RetryableError
from anadil.core.format import number, with_article
from anadil.core.json_text import read_json
from anadil.page.values import field
from anadil.recipe.retrain import Champion
from anadil.release.registry.client import (
    KIND_TAG,
    SCORES_TAG,
    WHOLE_TAG,
    RegisteredModel,
    Registry,
    registry_errors,
)
from anadil.report.model_card import model_card, newest_scores
from anadil.report.verdict import before, check_words, checks_of, outcome_words
from anadil.runtime.compared_champion import ALIAS, DIGEST_TAG, URI_TAG
from anadil.runtime.evidence import parent_tags
from anadil.runtime.job import kind_of
from anadil.runtime.mlflow_records import artifact_place

log = logging.getLogger(__name__)

AGAINST_CHAMPION = {"bits_per_byte_to_champion": 1.0, "answers_to_champion": 0.0}
"""Checks that compare with the champion, and the value at which both are equal; less is better."""
MOST_CHARS = 5_000
"""Longest description in MLflow's database. Source: mlflow 3.17, store/model_registry/dbmodels/models.py."""
FIGURES = ("bits_per_byte", "fertility", "bytes_per_token", "questions.bits_per_byte", "questions.exact")
"""Paths in a candidate's scores that a version shows."""
CORPORA_TAG = "anadil.corpora"
"""Tag of a version: corpus -> digest, as JSON."""
# Folder among a run's artifacts with what MLflow needs to load a model on a path.
FOLDER = "promoted"
Undo = list[Callable[[], object]]
CHALLENGER = "challenger"
PREVIOUS = "previous"
REPLACED_TAG = "anadil.replaced"
"""Tag of a version: number of the champion that it replaced."""
PROMOTED_TAG = "anadil.promoted"
LEFT_TAG = "anadil.rolled_back"
LINKS_TAG = "mlflow.modelVersions"
"""Tag of a logged model: the versions made from it. Source: mlflow 3.17, utils/mlflow_tags.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotable:
    """A model, merged model or adapter whose gate was passed."""

    uri: str
    manifest: Manifest
    scores: str
    scores_manifest: Manifest
    table: dict[str, Any]

    @property
    def candidate(self) -> str:
        """Name of the model in the scores."""
        return BY_KIND[self.manifest.kind].name

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The gate's checks of this candidate."""
        return checks_of(self.table, self.candidate)

    def has_beaten(self, champion: str) -> bool:
        """True if the scores show with 95 % confidence that it beats this champion.

        All comparisons hold, and the 95 % interval of one of them excludes equality.
        """
        if self.scores_manifest.origin.get("input champion") != champion:
            return False
        rows = [(AGAINST_CHAMPION.get(str(row["name"]).partition(".")[2]), row) for row in self.checks]
        compared = [(equal, row) for equal, row in rows if equal is not None and row.get("value") is not None]
        deciding = [(equal, row) for equal, row in compared if row.get("enforced", True)]
        # A model that answers is compared by its answers; its running text is only shown.
        is_asked = answers(self.manifest.kind, self.manifest.figures)
        compared = deciding if is_asked and deciding else compared
        better = [max(row.get("interval") or [row["value"]]) < equal for equal, row in compared]
        return any(better) and all(row["passed"] for _, row in compared)

    def was_compared_with(self, champion: str) -> bool:
        """True if the scores include the champion of this digest."""
        return champion in (self.manifest.digest, self.scores_manifest.origin.get("input champion"))


def check_promotable(scores: str, model: str) -> Promotable:
    """Verify a model whose scores passed the gate, by the checks of its own candidate."""
    folder, scored = fetch(scores, "scores")
    table = read_json(folder / "scores.json")
    gate = table.get("gate")
    listed = gate.get("checks") if isinstance(gate, dict) else None
    if not isinstance(listed, list) or not all({"name", "passed"} <= set(check) for check in listed):
        raise DataError(f"{scores}: scores.json holds no verdict of the gate; run evaluate again")
    manifest = artifact.finished_manifest(model, *BY_KIND)
    if scored.origin.get(f"input {manifest.kind}") != manifest.digest:
        raise IntegrityError(
            f"{scores}: the scores are not of {model}; give the {manifest.kind} that was evaluated, or evaluate it"
        )
    candidate = BY_KIND[manifest.kind].name
    checks = checks_of(table, candidate)
    if not checks:
        raise DataError(f"{scores}: holds no checks of the {candidate} model; run evaluate again")
    failed = [check for check in checks if check.get("enforced", True) and not check["passed"]]
    verdict = (gate.get("verdicts") or {}).get(manifest.kind, {"passed": True})
    if failed or not verdict["passed"]:
        reasons = [
            f"{check_words(check, candidate, before(table))} {outcome_words(check)}" for check in failed
        ] or verdict["failed"]
        passed = BY_NAME.get(str(gate.get("released")))
        other = f"; the {passed.name} model passed: promote the {passed.kind}" if passed else ""
        raise GateError(
            f"{model}: the gate was not passed: {'; '.join(reasons)}; nothing was promoted{other}"
        )
    verify(model, manifest)
    return Promotable(
        uri=absolute(model), manifest=manifest, scores=absolute(scores), scores_manifest=scored, table=table
    )


def find_scores(model: str, manifest: Manifest, root: str | None) -> str:
    """Find the newest scores of a model, beside it or below a recipe's `storage.root`."""
    beside = root_of(model)
    roots = [beside, absolute(root or beside)]
    if scores := newest_scores(roots, manifest):
        log.info("scores: %s", scores[0])
        return scores[0]
    raise DataError(
        f"{model}: no scores of it in {join(roots[-1], 'scores')}; run evaluate, or name them by --scores URI"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of a version."""

    source: str
    run_id: str | None
    model_id: str | None


def source_of(registry: Registry, model: Promotable, experiment: str, undo: Undo) -> Source:
    """Find the directory that MLflow loads a model from; weights stay in their place."""
    # A server takes no path, unless it lies below a run's own artifacts: others could read its disk by it. So the run
    # or its logged model gets a small directory that names the path. Whoever loads the model has to see that path.
    inside = BY_KIND[model.manifest.kind].folder
    directory = join(model.uri, inside) if inside else model.uri
    logged = _logged_model_of(registry, model)
    run = (logged.source_run_id if logged else None) or _run_of(registry, model)
    if "://" in model.uri or not registry.is_server:
        return Source(source=directory, run_id=run, model_id=logged.model_id if logged and run else None)
    if run is None:
        client, number = registry.client, _experiment(registry, experiment, root_of(model.uri))
        tags = {DIGEST_TAG: model.manifest.digest, "anadil.artifact": model.uri}
        created = client.create_run(number, tags=tags, run_name=f"promote {model.manifest.kind}").info.run_id
        client.set_terminated(created)
        undo.append(lambda: client.delete_run(created))
        run = str(created)
    return _by_reference(registry, model, Path(directory), run, logged, undo)


def _by_reference(
    registry: Registry, model: Promotable, directory: Path, run: str, logged: Any, undo: Undo
) -> Source:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    client, path = registry.client, f"{FOLDER}/{model.manifest.digest[:16]}"
    root = logged.artifact_location if logged else client.get_run(run).info.artifact_uri
    undo.append(lambda: get_artifact_repository(root, tracking_uri=registry.uri).delete_artifacts(path))
    with tempfile.TemporaryDirectory(prefix="anadil-") as draft:
        folder, scores = Path(draft) / path, Path(model.scores) / "scores.json"
        folder.mkdir(parents=True)
        if (directory / "config.json").is_file():
            write_mlmodel(directory, chats=answers(model.manifest.kind, model.manifest.figures), out=folder)
        if scores.is_file():
            shutil.copyfile(scores, folder / "scores.json")
        reference = {"uri": model.uri, "sha256": model.manifest.digest}
        (folder / "anadil.json").write_text(json.dumps(reference), encoding="utf-8")
        if logged:
            client.log_model_artifacts(logged.model_id, draft)
        else:
            client.log_artifacts(run, draft)
    log.info(
        "%s: a path, which MLflow's server does not take: it got what names it, and the weights stay there; who loads "
        "the model has to see that path (with storage.root on S3 everybody does)",
        directory,
    )
    source = join(root, path) if logged else f"runs:/{run}/{path}"
    return Source(source=source, run_id=run, model_id=logged.model_id if logged else None)


def _experiment(registry: Registry, name: str, root: str) -> str:
    from mlflow.exceptions import MlflowException

    if experiment := registry.client.get_experiment_by_name(name):
        return str(experiment.experiment_id)
    try:
        place = artifact_place(registry.uri, root)
        return str(registry.client.create_experiment(name, artifact_location=place))
    except MlflowException as error:
        experiment = registry.client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
            raise
        return str(experiment.experiment_id)  # another process has just made it


@contextlib.contextmanager
def undone_on_failure() -> Iterator[Undo]:
    """A list of functions that undo each step of the block; called, last first, if the block fails."""
    undo: Undo = []
    try:
        yield undo
    except BaseException:
        while undo:
            with contextlib.suppress(Exception):  # a step stays if nobody answers
                undo.pop()()
        raise


def _run_of(registry: Registry, model: Promotable) -> str | None:
    """The run that made the model: by the digest, else by the place."""
    client = registry.client
    experiments = [each.experiment_id for each in client.search_experiments(max_results=1_000)]
    for tag, value in ((DIGEST_TAG, model.manifest.digest), ("anadil.artifact", model.uri)):
        query = f"tags.`{tag}` = '{value.replace(chr(39), '')}'"
        if runs := client.search_runs(experiments, query, max_results=1):
            return str(runs[0].info.run_id)
    return None


def _logged_model_of(registry: Registry, model: Promotable) -> Any:
    """MLflow's model of a run; None where there is none."""
    from mlflow.exceptions import MlflowException

    client = registry.client
    experiments = [each.experiment_id for each in client.search_experiments(max_results=1_000)]
    query = f"tags.`{DIGEST_TAG}` = '{model.manifest.digest}'"
    try:
        models = client.search_logged_models(experiments, query, max_results=1)
    except MlflowException as error:  # such as a server of another maker
        log.info("no logged model is linked: %s", error)
        return None
    return models[0] if models else None


def tags_of(model: Promotable) -> dict[str, str]:
    """Tags of a version: digests, places, scores and the gate's checks."""
    shown = ("name", "value", "limit", "passed", "enforced", "interval")
    checks = [{key: check.get(key) for key in shown} for check in model.checks]
    inputs = sorted(model.scores_manifest.inputs.items())
    corpora = {word: digest for word, digest in inputs if kind_of(word) == "corpus"}
    tags = {
        DIGEST_TAG: model.manifest.digest, WHOLE_TAG: model.manifest.whole_digest, URI_TAG: model.uri,
        KIND_TAG: model.manifest.kind, SCORES_TAG: model.scores,
        "anadil.scores_sha256": model.scores_manifest.whole_digest,
        "anadil.gate": json.dumps(checks, ensure_ascii=False), "anadil.version": __version__,
        **parent_tags(model.manifest.recipe), **({CORPORA_TAG: json.dumps(corpora)} if corpora else {}),
    }  # fmt: skip
    figures = model.table.get("candidates", {}).get(model.candidate, {})
    for path in FIGURES:
        if (value := number(field(figures, path))) is not None:
            tags[f"anadil.{path}"] = f"{value:.6g}"
    # The page that shows these scores, where it lies beside them.
    with contextlib.suppress(AnadilError, OSError):
        for uri, manifest in artifacts_below([root_of(model.scores)], "report"):
            if manifest.origin.get("input scores") == model.scores_manifest.whole_digest:
                tags["anadil.report"] = join(uri, "report.html")
                tags["anadil.report_sha256"] = manifest.whole_digest
                break
    return tags


def description_of(model: Promotable) -> str:
    """The model card without its front matter; a table of the gate's checks if there is no card."""
    text = ""
    try:
        card = model_card(model.uri, model.scores)
        text = card.removeprefix("---\n").partition("\n---\n")[2].lstrip()
    except (AnadilError, OSError) as error:
        log.warning("%s: no model card: %s", model.uri, error)
    text, more = text or _gate_table(model), f"\n\n... ({model.uri})"
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - len(more)] + more


def _gate_table(model: Promotable) -> str:
    rows = ["| check | value | limit | passed |", "|---|---|---|---|"]
    for check in model.checks:
        value, limit = (
            f"{number:.4g}" if isinstance(number, int | float) else "not measured"
            for number in (check.get("value"), check.get("limit"))
        )
        rows.append(f"| {check['name']} | {value} | {limit} | {'yes' if check['passed'] else 'no'} |")
    kind = model.manifest.kind
    noun = "merged model of the adapter" if kind == "adapter" else with_article(kind).removeprefix("a ")
    return "\n".join([f"{noun.capitalize()} at `{model.uri}`, judged by `{model.scores}`.", "", *rows])


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
        # Two that change places by rollbacks both have the tag, and one of them is champion by somebody's decision.
        is_champion = version and champion and champion.version == version.version
        left = version.tags.get(LEFT_TAG, "") if version and not is_champion else ""
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
                registry.client.set_model_version_tag(name, left, LEFT_TAG, now())
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


def _verify(version: RegisteredModel, *, whole: bool) -> None:
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
    client.set_model_version_tag(name, version.version, PROMOTED_TAG, now())
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


def now() -> str:
    """The time in UTC, ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
