"""Metadata of a registered version: source, scores, tags and description."""

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
from anadil.artifacts.find import artifacts_below, root_of
from anadil.artifacts.mlmodel import MLMODEL, write_mlmodel
from anadil.artifacts.uri import join
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import AnadilError
from anadil.core.format import number
from anadil.release.registry.client import KIND_TAG, SCORES_TAG, WHOLE_TAG, Registry
from anadil.release.registry.gate_verdict import Promotable
from anadil.report.model_card import model_card
from anadil.report.read import field
from anadil.runtime.champion import DIGEST_TAG, URI_TAG
from anadil.runtime.evidence import parent_tags
from anadil.runtime.job import kind_of
from anadil.runtime.mlflow_database import artifact_place

log = logging.getLogger(__name__)

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
    loads = (f"{inside}/{MLMODEL}" if inside else MLMODEL) in model.manifest.files
    logged = _logged_model_of(registry, model)
    run = (logged.source_run_id if logged else None) or _run_of(registry, model)
    if "://" in model.uri or (loads and not registry.is_server):
        if not loads:
            log.warning(
                "%s: has no file MLmodel, since an earlier release made it: mlflow.transformers cannot load it; "
                "anadil chat and anadil export can",
                directory,
            )
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
        "the model has to see that path (with storage.root on S3 everybody does)"
        if registry.is_server
        else "%s: has no file MLmodel, since an earlier release made it: the registry got one that names the path",
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
