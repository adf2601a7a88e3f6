"""Records of one run in MLflow: parent, stages, datasets, models. Each is made once, also after a sender's restart."""

import copy
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname
from uuid import uuid4

from filelock import FileLock

from anadil.artifacts.uri import join
from anadil.core.files import write_atomic
from anadil.recipe.tracking_address import DATABASES
from anadil.runtime.trackers import FILES, NOTE_TAG
from anadil.runtime.tracking_spool import SENT, SPOOL, SQLITE

log = logging.getLogger(__name__)

KIND_TAG = "mlflow.experimentKind"
KIND = "custom_model_development"
"""Value of a tag that makes MLflow's pages open an experiment as one of training and not of chat applications.
Source: ExperimentKind in the pages of MLflow 3.17."""
SPOOL_TAG = "anadil.spool"
"""Tag of a run: whose lines it holds. A sender that was killed between making a run and noting it finds it by this."""
RUN_TAG = "anadil.run"
"""Tag of a parent run: the pipeline run whose steps have senders of their own."""
DIGEST_TAG, URI_TAG, KIND_OF_ARTIFACT_TAG = "anadil.sha256", "anadil.uri", "anadil.kind"
CONTEXT_TAG = "mlflow.data.context"
EXTERNAL_TAG = "mlflow.model.isExternal"
"""Says that the weights lie elsewhere. Source: mlflow.utils.mlflow_tags."""
READY = "READY"
BAD_REQUEST, NOT_FOUND = 400, 404
NEVER_TAKEN = frozenset((400, 403, 413))
"""Answers to a file that another try would not change; 413 is what a gateway says of one that is too large."""
SOURCES = {"s3": "s3", "http": "http", "https": "http", "hf": "hugging_face"}
"""Scheme of a place -> MLflow's name of the kind of source; any other is a path."""


class Records:
    """The runs, datasets and models of one spool."""

    def __init__(self, spool: Path) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        with alone_at(uri):
            self.client: Any = MlflowClient()
            follow_move(uri)
        self.spool = spool
        self._path = spool / SENT
        self.state: dict[str, Any] = {"id": uuid4().hex, "parent": None}
        for part in ("runs", "offsets", "ended", "finals", "models", "made", "uploads"):
            self.state[part] = {}
        if self._path.is_file():
            self.state.update(json.loads(self._path.read_text(encoding="utf-8")))
        # Lines that this process has handed over; remembered only with the offset of its lines, so that
        # a server that goes away in between loses nothing.
        self._finals: dict[str, dict[str, Any]] = copy.deepcopy(self.state["finals"])

    def save(self) -> None:
        """Keep the ids of what was made."""
        write_atomic(self._path, json.dumps(self.state))

    def save_lines(self, name: str, offset: int) -> None:
        """Note that the lines of a file up to a byte were handed over."""
        self.state["offsets"][name] = offset
        self.state["finals"] = copy.deepcopy(self._finals)
        self.save()

    def fresh(self, owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values that were not sent before: final figures are said by several places, and shown once."""
        known = self._finals.setdefault(owner, {})
        new = {name: value for name, value in values.items() if known.get(name) != value}
        known.update(new)
        return new

    def ensure_parent(self, experiment: str, name: str, shared: str, start_ms: int | None = None) -> None:
        """Find or make the run that the stages stand below, from the time on at which the first of them began."""
        # Kubeflow Pipelines' MLflow plugin opens the run itself and names it here.
        if given := os.environ.get("MLFLOW_RUN_ID"):
            self.state["parent"] = self.state["parent"] or given
            self.state["given"] = True
        if self.state["parent"]:
            return
        experiment_id = self._experiment(experiment)
        key, value = (RUN_TAG, shared) if shared else (SPOOL_TAG, self.state["id"])
        run = self._find_run(experiment_id, key, value)
        if run:
            self.client.update_run(run, status="RUNNING")
        tags = {key: value}
        self.state["parent"] = run or self.client.create_run(experiment_id, start_ms, tags, name).info.run_id
        self.save()

    def end_all(self, experiment: str, shared: str, status: str) -> None:
        """End a pipeline run whose last step is over, and stages of it whose process was killed."""
        found = self.client.get_experiment_by_name(experiment)
        given = os.environ.get("MLFLOW_RUN_ID", "")  # its plugin ends that itself
        parent = given or (found and self._find_run(found.experiment_id, RUN_TAG, shared))
        if not parent:
            return
        query = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
        for stage in self.client.search_runs([self.client.get_run(parent).info.experiment_id], query):
            self.client.set_terminated(stage.info.run_id, "KILLED")
        if not given:
            self.client.set_terminated(parent, status)

    def _experiment(self, name: str) -> str:
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            place = artifact_place(os.environ.get("MLFLOW_TRACKING_URI", ""), str(work_of(self.spool)))
            return str(self.client.create_experiment(name, artifact_location=place, tags={KIND_TAG: KIND}))
        if KIND_TAG not in experiment.tags:
            self.unless_refused(self.client.set_experiment_tag, experiment.experiment_id, KIND_TAG, KIND)
        return str(experiment.experiment_id)

    @property
    def experiment_id(self) -> str:
        """Experiment of the parent, which may be another than the recipe's."""
        if not self.state.get("experiment"):
            self.state["experiment"] = self.client.get_run(self.state["parent"]).info.experiment_id
        return str(self.state["experiment"])

    def _find_run(self, experiment_id: str, key: str, value: str) -> str:
        words = value.replace("'", "")
        runs = self.client.search_runs([experiment_id], f"tags.`{key}` = '{words}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def run(self, stage: str, start_ms: int | None = None) -> str:
        """Id of a stage's run, which is made where there is none."""
        runs: dict[str, str] = self.state["runs"]
        if stage not in runs:
            spool = f"{self.state['id']}/{stage}"
            known_run = self._find_run(self.experiment_id, SPOOL_TAG, spool)
            tags = {"mlflow.parentRunId": self.state["parent"], SPOOL_TAG: spool}
            runs[stage] = (
                known_run
                or self.client.create_run(
                    self.experiment_id, start_time=start_ms, tags=tags, run_name=stage
                ).info.run_id
            )
            self.save()
        return runs[stage]

    def log_inputs(self, stage: str, datasets: list[dict[str, Any]]) -> None:
        """Link data to a stage and to the whole run; what is linked already stays."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for each in datasets:
            scheme = urlsplit(each["uri"]).scheme
            dataset = Dataset(
                name=each["name"],
                digest=each["digest"],
                source_type=each["source"] or SOURCES.get(scheme, "local"),
                source=json.dumps({"uri": each["uri"]}),
                profile=json.dumps({"num_rows": each["rows"]}) if each["rows"] is not None else None,
            )
            inputs.append(DatasetInput(dataset, [InputTag(CONTEXT_TAG, each["context"])]))
        for run in (self.run(stage), self.state["parent"]):
            self.unless_refused(self.client.log_inputs, run, inputs)

    def log_model(self, stage: str, line: dict[str, Any]) -> None:
        """Find or make a model by its digest, and link it to the stage that made or read it, with its figures."""
        from mlflow.exceptions import MlflowException

        if self.state.get("without models"):
            return
        try:
            self.unless_refused(self._log_model, stage, line)
        except MlflowException as error:
            if error.get_http_status_code() != NOT_FOUND:
                raise
            self.client.get_experiment(self.experiment_id)  # raises where nothing is there
            self.state["without models"] = True
            log.warning(
                "this server knows no models of runs, as MLflow 2 does not: they are left out; MLflow 3 takes them"
            )

    def _log_model(self, stage: str, line: dict[str, Any]) -> None:
        from mlflow.entities import LoggedModelInput, LoggedModelOutput

        model, run, parent = self._model(stage, line), self.run(stage), self.state["parent"]
        if line["new"]:
            self.state["made"][line["digest"]] = model
        for each in (run, parent):
            # A link that is there already is refused, and its figures may not be there yet.
            if line["new"]:
                self.unless_refused(
                    self.client.log_outputs, each, [LoggedModelOutput(model, step=0)], quiet=True
                )
            elif each == run or line["digest"] not in self.state["made"]:  # it is not both to one run
                self.unless_refused(self.client.log_inputs, each, None, [LoggedModelInput(model)], quiet=True)
        self._log_scores(stage, run, model, line)

    def _log_scores(self, stage: str, run: str, model: str, line: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        name, digest = line["dataset"] or (None, None)
        # MLflow shows them with the run too; said again as the stage's own, they would be points of a curve.
        self.fresh(stage, line["metrics"])
        metrics = [
            Metric(
                key, float(value), line["time"], 0, model_id=model, run_id=run,
                dataset_name=name, dataset_digest=digest,
            )
            for key, value in self.fresh(f"model {line['digest']}", line["metrics"]).items()
        ]  # fmt: skip
        if metrics:
            self.client.log_batch(run, metrics)

    def _model(self, stage: str, line: dict[str, Any]) -> str:
        models: dict[str, str] = self.state["models"]
        digest = line["digest"]
        if digest not in models:
            models_of_digest = self.client.search_logged_models(
                [self.experiment_id], filter_string=f"tags.`{DIGEST_TAG}` = '{digest}'", max_results=1
            )
            model = models_of_digest[0] if models_of_digest else self._new_model(stage, line)
            if str(model.status) != READY:
                # MLflow asks for the file before it registers a model whose weights lie elsewhere.
                name = f"MLmodel of {model.model_id}"
                place = self.spool / FILES / name
                place.parent.mkdir(exist_ok=True)
                place.write_text(json.dumps(_external_mlmodel(model)), encoding="utf-8")
                self.state["uploads"][name] = {"file": name, "model": model.model_id, "name": "MLmodel"}
                self.client.finalize_logged_model(model.model_id, READY)
            models[digest] = str(model.model_id)
            self.save()
        return models[digest]

    def _new_model(self, stage: str, line: dict[str, Any]) -> Any:
        tags = {
            DIGEST_TAG: line["digest"], URI_TAG: line["uri"], KIND_OF_ARTIFACT_TAG: line["artifact"],
            EXTERNAL_TAG: "true", NOTE_TAG: f"The {line['artifact']} lies at `{line['uri']}`; MLflow holds no copy of it.",
        }  # fmt: skip
        return self.client.create_logged_model(
            self.experiment_id, name=line["name"], source_run_id=self.run(stage) if line["new"] else None,
            tags=tags, params={"uri": line["uri"], "digest": line["digest"]}, model_type=line["artifact"],
        )  # fmt: skip

    def add_files(self, files: Mapping[str, str]) -> None:
        """Remember small files that are to become artifacts of the parent run."""
        for name, file in self.fresh("files", files).items():
            self.state["uploads"][name] = {"file": file, "name": name}

    def upload(self) -> Exception | None:
        """Hand over the files that wait; why one could not be, if another try may help.

        An artifact store that is away holds up no number.
        """
        from mlflow.exceptions import MlflowException

        uploads: dict[str, dict[str, str]] = self.state["uploads"]
        for key, each in list(uploads.items()):
            try:
                self._upload(each)
            except Exception as error:  # noqa: BLE001  each store's client has errors of its own
                status = error.get_http_status_code() if isinstance(error, MlflowException) else 0
                if status not in NEVER_TAKEN:
                    return error
                log.warning("left out: %s: %s", each["name"], error)
            del uploads[key]
            self.save()
        return None

    def _upload(self, each: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, each["name"])
            shutil.copyfile(self.spool / FILES / each["file"], path)
            if "model" in each:
                self.client.log_model_artifacts(each["model"], folder)
            else:
                self.client.log_artifact(self.state["parent"], str(path))

    def unless_refused(self, call: Callable[..., object], *values: object, quiet: bool = False) -> bool:
        """Make a call of the client; return False for what the server will never take, so that it does not block the rest."""
        from mlflow.exceptions import MlflowException, RestException

        try:
            call(*values)
        except MlflowException as error:
            status = error.get_http_status_code()
            # A page instead of JSON may come from a gateway whose server is away.
            if status != BAD_REQUEST and not (status == NOT_FOUND and isinstance(error, RestException)):
                raise
            if not quiet:
                log.warning("left out: %s", error)
            return False
        return True


def _external_mlmodel(model: Any) -> dict[str, Any]:
    """Return the MLmodel of a model whose weights lie outside MLflow. Source: mlflow 3.17."""
    # mlflow.models.utils.get_external_mlflow_model_spec does the same, but that module needs numpy and pandas, which no
    # image has. The signature is its placeholder for registries that ask for one.
    placeholder = '[{"type": "boolean", "required": true}]'
    return {
        "artifact_path": model.artifact_location, "flavors": {}, "metadata": {EXTERNAL_TAG: True},
        "model_id": model.model_id, "model_uuid": model.model_id, "run_id": model.source_run_id,
        "signature": {"inputs": placeholder, "outputs": placeholder, "params": None},
    }  # fmt: skip


def work_of(spool: Path) -> Path:
    """The work directory of a spool, which is its `tracking`, or lies in it."""
    return spool.parent if spool.name == SPOOL else spool.parent.parent


FOLDER = "mlflow-artifacts"
WAIT_S = 30
"""For others that write the database."""
PLACES = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}
"""Table -> column with the place of its artifacts. Source: mlflow.store.tracking.dbmodels.models, MLflow 3.11 to 3.17."""


def artifact_place(uri: str, root: str) -> str | None:
    """Return where artifacts of a database without a server lie: beside its file, or below `root`."""
    if uri.partition(":")[0].partition("+")[0].lower() not in DATABASES:
        return None  # the server decides
    if uri.startswith(SQLITE):
        root = str(Path(uri.removeprefix(SQLITE)).absolute().parent)
    place = join(root, FOLDER)
    return place if "://" in place else Path(place).absolute().as_uri()


def follow_move(uri: str) -> None:
    """Correct the places in a database that was moved or copied together with its artifacts."""
    # MLflow keeps absolute places: files of new runs would go to where the work directory once was, and those of earlier
    # runs would not be found.
    here = artifact_place(uri, "/")
    if not uri.startswith(SQLITE) or here is None:
        return
    with closing(sqlite3.connect(uri.removeprefix(SQLITE), timeout=WAIT_S)) as database, database:
        places = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for place in [place for (place,) in places if _was_moved(place, here)]:
            for table, column in PLACES.items():
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608  names of our own
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (here, len(place) + 1, place, len(place) + 1, f"{place}/"),
                )


def _was_moved(place: str, here: str) -> bool:
    if place == here or not place.startswith("file:") or not place.endswith(f"/{FOLDER}"):
        return False
    old, new = (Path(url2pathname(urlsplit(each).path)) for each in (place, here))
    if not os.path.isdir(old):  # noqa: PTH112  also where it may not be looked at
        return True
    # Where only the database was moved there is no new one; a directory with two names was not moved.
    return new.is_dir() and not new.samefile(old)


def alone_at(uri: str) -> AbstractContextManager[object]:
    """Return a lock for opening a database file: of two processes that make its tables at once both fail."""
    database = uri.removeprefix(SQLITE)
    if database == uri:
        return nullcontext()
    name = hashlib.sha256(str(Path(database).absolute()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"anadil-{name}.lock", mode=0o666)
