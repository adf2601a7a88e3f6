"""A model that may be promoted: the gate passed, the bytes are those that were scored, and what its version says."""

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from anadil.core.errors import AnadilError, DataError, GateError, IntegrityError
from anadil.core.format import number
from anadil.release.registry.client import KIND_TAG, SCORES_TAG, WHOLE_TAG, Registry
from anadil.report.model_card import model_card, newest_scores
from anadil.report.read import field
from anadil.report.verdict import before, check_words, checks_of, outcome_words
from anadil.runtime.champion import DIGEST_TAG, URI_TAG
from anadil.runtime.evidence import parent_tags
from anadil.runtime.job import kind_of
from anadil.runtime.mlflow_records import artifact_place

log = logging.getLogger(__name__)

AGAINST_CHAMPION = {"bits_per_byte_to_champion": 1.0, "answers_to_champion": 0.0}
"""Checks that compare with the champion, and the value at which both are equal; less is better."""


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
    table = _table_of(scores, folder / "scores.json")
    manifest = artifact.finished_manifest(model, *BY_KIND)
    if scored.origin.get(f"input {manifest.kind}") != manifest.digest:
        raise IntegrityError(
            f"{scores}: the scores are not of {model}; give the {manifest.kind} that was evaluated, or evaluate it"
        )
    gate, candidate = table["gate"], BY_KIND[manifest.kind].name
    checks = checks_of(table, candidate)
    if not checks:
        raise DataError(f"{scores}: holds no checks of the {candidate} model; run evaluate again")
    failed = [check for check in checks if check.get("enforced", True) and not check["passed"]]
    # Scores of an earlier release have checks and no verdicts.
    verdict = (gate.get("verdicts") or {}).get(manifest.kind, {"passed": True})
    if failed or not verdict["passed"]:
        reasons = [
            f"{check_words(check, candidate, before(table))} {outcome_words(check)}" for check in failed
        ]
        passed = BY_NAME.get(str(gate.get("released")))
        other = f"; the {passed.name} model passed: promote the {passed.kind}" if passed else ""
        raise GateError(
            f"{model}: the gate was not passed: {'; '.join(reasons) or ', '.join(verdict.get('failed', []))}; "
            f"nothing was promoted{other}"
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


def _table_of(scores: str, path: Path) -> dict[str, Any]:
    """Read `scores.json`."""
    table = json.loads(path.read_text(encoding="utf-8"))
    gate = table.get("gate")
    checks = gate.get("checks") if isinstance(gate, dict) else None
    if not isinstance(checks, list) or not all({"name", "passed"} <= set(check) for check in checks):
        raise DataError(f"{scores}: scores.json holds no verdict of the gate; run evaluate again")
    return dict(table)


MOST_CHARS = 5_000
"""Longest description in MLflow's database. Source: mlflow 3.17, store/model_registry/dbmodels/models.py."""
FIGURES = ("bits_per_byte", "fertility", "bytes_per_token", "questions.bits_per_byte", "questions.exact")
"""Paths in a candidate's scores that a version shows."""
CORPORA_TAG = "anadil.corpora"
"""Tag of a version: corpus -> digest, as JSON."""
# Folder among a run's artifacts with what MLflow needs to load a model on a path.
FOLDER = "promoted"


Undo = list[Callable[[], object]]


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
        created = run = _new_run(registry, model, experiment)
        undo.append(lambda: registry.client.delete_run(created))
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


def _new_run(registry: Registry, model: Promotable, experiment: str) -> str:
    client, number = registry.client, _experiment(registry, experiment, root_of(model.uri))
    tags = {DIGEST_TAG: model.manifest.digest, "anadil.artifact": model.uri}
    run = client.create_run(number, tags=tags, run_name=f"promote {model.manifest.kind}").info.run_id
    client.set_terminated(run)
    return str(run)


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
    tags = {
        DIGEST_TAG: model.manifest.digest,
        WHOLE_TAG: model.manifest.whole_digest,
        URI_TAG: model.uri,
        KIND_TAG: model.manifest.kind,
        SCORES_TAG: model.scores,
        "anadil.scores_sha256": model.scores_manifest.whole_digest,
        "anadil.gate": json.dumps(checks, ensure_ascii=False),
        "anadil.version": __version__,
        **_parents(model),
    }
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


def _parents(model: Promotable) -> dict[str, str]:
    """Digests of the corpora, and of a retrained model the champion that it began with."""
    corpora = {
        name.removeprefix("input "): digest
        for name, digest in sorted(model.scores_manifest.origin.items())
        if kind_of(name.removeprefix("input ")) == "corpus"
    }
    return {**parent_tags(model.manifest.recipe), **({CORPORA_TAG: json.dumps(corpora)} if corpora else {})}


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
    kinds = {"adapter": "Merged model of the adapter", "merged": "Merged model"}
    kind = kinds.get(model.manifest.kind, "Model")
    return "\n".join([f"{kind} at `{model.uri}`, judged by `{model.scores}`.", "", *rows])
