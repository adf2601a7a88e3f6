"""Client of Kubeflow Pipelines' API server, and the meaning of its refusals.

Calls go through the generated client of `kfp.Client`, which finds the server and the
credentials, but never without a timeout.
"""

import contextlib
import json
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kfp
import kfp_server_api  # type: ignore[import-untyped]  # generated, without types
import urllib3
from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import RETRAIN, flow_of
from anadil.runtime.run_record import StepRecord, read_steps

log = logging.getLogger(__name__)

TIMEOUT = (10, 60)  # Seconds to connect and to wait for an answer.
OLDEST_VERSION = (2, 16)
"""Older servers cannot set the security context of a step, nor read S3 by a role (kubeflow/pipelines #12512)."""
PAGE = 100
EQUALS = 1  # Number of the operation in a filter, as kfp sends it.
TOKEN_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"  # noqa: S105  the name of a variable
TOKEN_PATH = "/var/run/secrets/kubeflow/pipelines/token"  # noqa: S105  the path that kfp documents
HOST_VARIABLE = "KF_PIPELINES_ENDPOINT"
LOGIN_HINT = (
    f"run inside the cluster with a projected ServiceAccount token (audience pipelines.kubeflow.org), or set "
    f"{TOKEN_VARIABLE} to a file that holds one"
)
POLL_S = 15.0
MAX_FAILED_POLLS = 40  # Polls in a row that may fail: ten minutes, which a server that is updated needs.
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


class Client(kfp.Client):
    """kfp's client without its five tries, each with a traceback, at a server that refuses."""

    healthzs: Any
    runs: Any

    def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:  # noqa: ARG002  kfp's signature
        """Return the server's answer about itself."""
        return self.healthzs.healthz_service_get_healthz(_request_timeout=TIMEOUT)


class Kubeflow:
    """A server that answers and is new enough."""

    def __init__(self, host: str | None = None, namespace: str | None = None) -> None:
        given = host or os.environ.get(HOST_VARIABLE)
        self.host = given or "the cluster of the current kubeconfig context"
        with _translate_errors(self.host):
            self._client = _connect(host, namespace)
            if given is None:
                self.host = str(self._client.runs.api_client.configuration.host)
            health = self._health()
        self.namespace: str | None = namespace or self._client.get_user_namespace() or None
        tag = str(health.get("tag_name", ""))
        match = re.match(r"v?(\d+)\.(\d+)", tag)
        if match is None:
            log.warning("%s does not tell its version (%r); 2.16 or newer is needed", self.host, tag)
        elif (int(match[1]), int(match[2])) < OLDEST_VERSION:
            raise PreflightError(
                f"{self.host}: Kubeflow Pipelines {tag} is too old; install {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]} or newer"
            )
        if health["multi_user"] and not self.namespace:
            raise PreflightError(f"{self.host}: serves several users; say whose with --namespace")

    def _health(self) -> dict[str, Any]:
        # The generated model leaves out the version, so the text is read.
        answer = self._client.healthzs.healthz_service_get_healthz(
            _preload_content=False, _request_timeout=TIMEOUT
        )
        try:
            health = json.loads(answer.data)
        except ValueError:
            health = None
        if not isinstance(health, dict) or "multi_user" not in health:
            raise PreflightError(
                f"{self.host}: answers, but not as Kubeflow Pipelines' API does (a login page?); {LOGIN_HINT}, or give "
                "--host the address of the service ml-pipeline"
            )
        return health

    def link(self, page: str) -> str:
        """Return where the user interface shows something."""
        return f"{os.environ.get('KF_PIPELINES_UI_ENDPOINT', self.host).rstrip('/')}/#/{page}"

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is created if it is missing."""
        body = {"display_name": name} | self._namespace()
        existing = self._get_or_create(
            lambda: self._find("experiments", "experiment", name, **self._namespace()),
            lambda: self._call("experiments", "experiment_service_create_experiment", experiment=body),
        )
        return str(existing.experiment_id)

    def pipeline(self, name: str, description: str) -> str:
        """Return the id of a pipeline, which is created without a version if it is missing."""
        body = {"name": name, "display_name": name, "description": description} | self._namespace()
        existing = self._get_or_create(
            lambda: self._find("pipelines", "pipeline", name, **self._namespace()),
            lambda: self._call("pipelines", "pipeline_service_create_pipeline", pipeline=body),
        )
        return str(existing.pipeline_id)

    def version(self, pipeline: str, name: str, file: Path, description: str) -> str:
        """Return the id of a version, whose name is made of its content; it is uploaded if it is missing."""
        about = {"name": name, "pipelineid": pipeline, "description": description}
        existing = self._get_or_create(
            lambda: self._find("pipelines", "pipeline_version", name, pipeline_id=pipeline),
            lambda: self._call("pipeline_uploads", "upload_pipeline_version", str(file), **about),
        )
        return str(existing.pipeline_version_id)

    def create_run(self, body: dict[str, Any]) -> Any:
        """Start a run."""
        return self._call("runs", "run_service_create_run", run=body)

    def get_run(self, run: str) -> Any:
        """Return a run, with its tasks."""
        return self._call("runs", "run_service_get_run", run)

    def runs(self, experiment: str) -> Iterator[Any]:
        """Return the runs of an experiment, newest first."""
        return self._pages(
            "runs", "run_service_list_runs", "runs", experiment_id=experiment, sort_by="created_at desc"
        )

    def recurring_runs(self, experiment: str, name: str) -> list[Any]:
        """Return the recurring runs of a name; nothing keeps people from making several."""
        existing = self._pages(
            "recurring_runs", "recurring_run_service_list_recurring_runs", "recurring_runs",
            experiment_id=experiment,
        )  # fmt: skip
        return [each for each in existing if each.display_name == name]

    def create_recurring_run(self, body: dict[str, Any]) -> Any:
        """Create a recurring run."""
        return self._call("recurring_runs", "recurring_run_service_create_recurring_run", recurring_run=body)

    def change_recurring_run(self, verb: str, recurring_run: str) -> None:
        """`delete`, `disable` or `enable` a recurring run; one that is gone already is deleted."""
        try:
            self._call("recurring_runs", f"recurring_run_service_{verb}_recurring_run", recurring_run)
        except NotFound:
            if verb != "delete":
                raise

    def _namespace(self) -> dict[str, str]:
        return {"namespace": self.namespace} if self.namespace else {}

    def _find(self, api: str, kind: str, name: str, **more: str) -> Any:
        predicate = {"operation": EQUALS, "key": "display_name", "stringValue": name}
        service = "experiment" if kind == "experiment" else "pipeline"
        result = self._pages(
            api, f"{service}_service_list_{kind}s", f"{kind}s",
            filter=json.dumps({"predicates": [predicate]}), **more,
        )  # fmt: skip
        return next((each for each in result if each.display_name == name), None)

    def _get_or_create(self, find: Callable[[], Any], create: Callable[[], Any]) -> Any:
        existing = find()
        if existing is not None:
            return existing
        try:
            return create()
        except AlreadyExists:
            existing = find()  # somebody was faster
            if existing is None:
                raise
            return existing

    def _pages(self, api: str, method: str, field: str, **more: Any) -> Iterator[Any]:
        token = ""
        while True:
            page = self._call(api, method, page_token=token, page_size=PAGE, **more)
            yield from getattr(page, field) or ()
            token = page.next_page_token
            if not token:
                return

    def _call(self, api: str, method: str, *arguments: Any, **more: Any) -> Any:
        with _translate_errors(self.host):
            return getattr(getattr(self._client, api), method)(*arguments, **more, _request_timeout=TIMEOUT)


class NotFound(PreflightError):
    """The server has no such thing."""


class AlreadyExists(RetryableError):
    """The server has such a thing already."""


def _connect(host: str | None, namespace: str | None) -> Client:
    path = Path(os.environ.get(TOKEN_VARIABLE, TOKEN_PATH))
    credentials: Any = ServiceAccountTokenVolumeCredentials(str(path)) if path.is_file() else None
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        # About servers before 2.0, and hosts without https; kfp prints what it has to say.
        warnings.simplefilter("ignore")
        return Client(host=host, namespace=namespace or "kubeflow", credentials=credentials)


@contextlib.contextmanager
def _translate_errors(host: str) -> Iterator[None]:
    try:
        yield
    except kfp_server_api.ApiException as error:
        raise _error_of(host, error) from None
    except urllib3.exceptions.HTTPError as error:
        reason = str(getattr(error, "reason", error)).split(">: ")[-1]
        if "resolve" in reason:
            remedy = f"give --host, or set {HOST_VARIABLE}, to the address of ml-pipeline"
            raise PreflightError(f"{host}: {reason}; {remedy}") from None
        raise RetryableError(
            f"{host}: Kubeflow Pipelines does not answer ({reason}); give --host the address of the service "
            "ml-pipeline, such as that of kubectl port-forward -n kubeflow svc/ml-pipeline 8888, or try again"
        ) from None


def _error_of(host: str, error: Any) -> AnadilError:
    # The message of the server: gRPC's JSON, or the beginning of whatever else.
    text = str(error.body or error.reason or "")
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(text)
        text = str(answer.get("message") or answer.get("error_message") or answer.get("error") or text)
    said = masked(" ".join(text.split())[:400])
    if error.status in (0, None):
        return PreflightError(f"{host}: no secure connection ({said}); check its certificate and https")
    if error.status == 429 or error.status >= 500:
        return RetryableError(f"{host}: failed for now ({error.status}: {said}); run the same command again")
    if error.status == 401:
        return PreflightError(f"{host}: does not know who asks ({said}); {LOGIN_HINT}")
    if error.status == 403:
        return PreflightError(
            f"{host}: forbids it ({said}); ask the administrator for the role kubeflow-pipelines-edit in the "
            "namespace, or give --namespace"
        )
    if error.status == 404:
        return NotFound(f"{host}: has no such thing ({said}); check --host, --namespace and --experiment")
    if error.status == 409:
        return AlreadyExists(f"{host}: has it already ({said}); run the same command again")
    return PreflightError(f"{host}: refuses what was sent ({error.status}: {said})")


def follow(
    server: Kubeflow, recipe: Recipe, run: str, *, retrains: bool = False, poll_s: float = POLL_S
) -> int:
    """Wait for the end of a run, telling what its steps do; return the exit code of the step that failed.

    A retraining whose result the gate refused has the gate's, as `anadil retrain` has.
    """
    names = [*([RETRAIN] if retrains else []), *(step.name for step in flow_of(recipe))]
    last_states: dict[str, str] = {}
    failures = 0
    while True:
        try:
            current = server.get_run(run)
        except RetryableError as error:
            failures += 1
            if failures >= MAX_FAILED_POLLS:
                raise
            log.warning("%s", error)
        else:
            failures = 0
            for task in (current.run_details and current.run_details.task_details) or ():
                name, state = task.display_name, task.state
                if name in (*names, "finish") and state and last_states.get(name) != state:
                    last_states[name] = state
                    log.info("%s: %s", name, state.lower())
            if current.state in FINAL_STATES:
                return _exit_code(server, recipe, current, names)
        time.sleep(poll_s)


def _exit_code(server: Kubeflow, recipe: Recipe, run: Any, names: Sequence[str]) -> int:
    if run.state == "CANCELED":
        log.error("run %s was cancelled; submit the recipe again to go on", run.run_id)
        return errors.Stopped.exit_code
    retrains = RETRAIN in names
    if run.state == "SUCCEEDED" and not retrains:
        log.info("run %s succeeded", run.run_id)
        return 0
    try:
        statuses = read_steps(str(recipe.storage.root), str(run.run_id), names)
    except AnadilError as error:
        statuses = []
        log.warning("how its steps ended cannot be read: %s", error)
    if run.state == "SUCCEEDED":
        return _outcome(str(run.run_id), {status.stage: status for status in statuses})
    for status in statuses:
        if status.exit_code:
            log.error("%s: %s", status.stage, status.message)
            return status.exit_code
    reason = run.error.message if run.error else "no step left a word: evicted, or its pod never started"
    page = server.link(f"runs/details/{run.run_id}")
    raise PreflightError(f"run {run.run_id} failed ({reason}); see {page}")


def _outcome(run: str, statuses: Mapping[str, StepRecord]) -> int:
    if RETRAIN in statuses and statuses[RETRAIN].figures.get("state") == "nothing":
        log.info("run %s succeeded: no new text since the champion", run)
        return 0
    outcome = statuses["release"].figures.get("outcome") if "release" in statuses else "not known from here"
    refused = outcome == "refused"
    log.log(logging.ERROR if refused else logging.INFO, "run %s succeeded; its model: %s", run, outcome)
    return errors.GateError.exit_code if refused else 0
