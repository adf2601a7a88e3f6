"""Start of a run of a recipe on Kubeflow Pipelines: check, compile, upload, run.

A pipeline version is named after its content, so that the same recipe and program upload
nothing twice, and a recurring run can be pinned to one.
"""

import hashlib
import logging
import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from anadil import __version__
from anadil.core.errors import AnadilError, DataError, RecipeError
from anadil.core.format import amount, counted
from anadil.core.log import masked
from anadil.core.stages import FLOW
from anadil.preflight.checks import refuse
from anadil.recipe.retrain import Retrain
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import tracker
from anadil.runtime.check import SUBMIT, PlannedRun
from anadil.runtime.flow import flow_of
from anadil.runtime.job import is_left_out
from anadil.runtime.kfp import varied_values
from anadil_pipelines.adapt import NAME, describe, pipeline_yaml
from anadil_pipelines.server import Kubeflow
from anadil_pipelines.steps import pod_requests, with_clean_workers

log = logging.getLogger(__name__)

NUM_RECENT_RUNS = 100  # Runs that are searched for one that is under way.
REGISTRY = "MLFLOW_TRACKING_URI"
OF_ONE_MACHINE = "sqlite:"  # Begin of a registry's address that no other machine reaches.
ACTIVE_STATES = ("PENDING", "RUNNING", "PAUSED", "CANCELING")
PIPELINE = "anadil: raw text to an adapted model and a report"
"""Description of the pipeline, of which every recipe is a version."""
EXPERIMENT_ID, PIPELINE_ID, VERSION_ID = "<experiment_id>", "<pipeline_id>", "<pipeline_version_id>"
MACROS = {
    "@hourly": "0 0 * * * *",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@weekly": "0 0 0 * * 0",
    "@monthly": "0 0 0 1 * *",
    "@yearly": "0 0 0 1 1 *",
}
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of the month", 1, 31, []),
    ("month", 1, 12, MONTHS),
    ("day of the week", 0, 6, DAYS),
)
"""Field, smallest, largest, names. Source: github.com/robfig/cron v1, which Kubeflow Pipelines reads cron with."""


Requests = list[dict[str, Any]]
"""Method and path, condition and body of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Options of the command line beside the recipe."""

    name: str  # Name of the run, or of the recurring run.
    experiment: str = "anadil"
    namespace: str | None = None  # Namespace of the runs, where the server serves several users.
    service_account: str | None = None  # ServiceAccount of the steps; left out, the server's default.
    retrains: bool = False  # Each run teaches the registry's champion what came since.


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A recipe as it is sent."""

    recipe: Recipe
    options: SubmitOptions
    pipeline: str  # The compiled pipeline.

    @property
    def version(self) -> str:
        """Name of the pipeline version: the pipeline's, the program's, the content's."""
        digest = hashlib.sha256(self.pipeline.encode()).hexdigest()[:12]
        # In Kubernetes' own store it is the name of an object: RFC 1123, DNS subdomain.
        return re.sub(r"[^a-z0-9.-]", "-", f"{NAME}-{__version__}-{digest}".lower())

    @property
    def description(self) -> str:
        """One line beside the version."""
        return f"{describe(self.recipe, retrains=self.options.retrains)}, anadil {__version__}"

    def run(self, experiment: str, pipeline: str, version: str) -> dict[str, Any]:
        """Return the body of a run, for these ids."""
        parameters = {"recipe": self.recipe.model_dump_json()} | varied_values(self.recipe)
        body: dict[str, Any] = {
            "experiment_id": experiment,
            "display_name": self.options.name,
            "pipeline_version_reference": {"pipeline_id": pipeline, "pipeline_version_id": version},
            # Beside the recipe, what people vary: the page of a run shows it, and runs are compared by it.
            "runtime_config": {"parameters": parameters},
        }
        account = self.options.service_account
        return body | ({"service_account": account} if account else {})


def prepare(recipe: Recipe, options: SubmitOptions, *, dry: bool = False) -> Submission:
    """Check and compile a recipe; nothing is sent. If `dry`, what a check finds is a warning."""
    if options.retrains:
        recipe = with_retrain(recipe)
        check_registry(recipe, dry=dry)
    recipe = with_clean_workers(recipe)
    pod = pod_requests("clean", recipe)
    planned = PlannedRun(
        by=SUBMIT, recipe=recipe, stages=[stage for stage in FLOW if not is_left_out(stage, recipe)], here=False,
        memory_bytes=int(amount(pod.memory)), cpus=max(1, int(amount(pod.cpu))),
    )  # fmt: skip
    refuse(planned, dry=dry)
    pipeline = pipeline_yaml(recipe, retrains=options.retrains)
    return Submission(recipe=recipe, options=options, pipeline=pipeline)


def with_retrain(recipe: Recipe) -> Recipe:
    """Return the recipe with the section `retrain`, of defaults where it has none."""
    return recipe.model_copy(update={"retrain": recipe.retrain or Retrain()})


def check_registry(recipe: Recipe, *, dry: bool) -> None:
    """Refuse a retraining whose pods would know no registry, or warn if `dry`."""
    # Beside W&B or TensorBoard the registry is the one that the variable names.
    uri = recipe.tracking.uri if tracker(recipe.tracking.uri or "") == "mlflow" else None
    given = any(REGISTRY in keys for keys in recipe.cluster.secrets.values())
    if (uri is None and given) or (uri not in (None, "off") and not str(uri).startswith(OF_ONE_MACHINE)):
        return
    fault = RecipeError(
        f"tracking.uri: {masked(recipe.tracking.uri or 'not set')}: the steps of a retraining ask MLflow's registry for the "
        f"champion; name a server that pods reach, such as http://mlflow:5000, or give {REGISTRY} by a Secret of cluster.secrets"
    )
    if not dry:
        raise fault
    log.warning("%s", fault)


def new_name(stem: str) -> str:
    """Return a name for a run: the recipe's, and the time."""
    return f"{stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def render_requests(requests: Requests, pipeline: str) -> str:
    """Return requests as YAML, then the file that is uploaded."""
    text = yaml.safe_dump({"requests": requests}, sort_keys=False, allow_unicode=True, width=110)
    return f"{text}---\n{pipeline}"


def requests_before_run(submission: Submission) -> Requests:
    """Return the requests before a run or a recurring run; ids are the server's to give."""
    options = submission.options
    namespace = {"namespace": options.namespace} if options.namespace else {}
    experiment = {"display_name": options.experiment} | namespace
    pipeline = {"name": NAME, "display_name": NAME, "description": PIPELINE} | namespace
    query = {"name": submission.version, "pipelineid": PIPELINE_ID, "description": submission.description}
    place = "/apis/v2beta1/pipelines"
    return [
        {"POST": "/apis/v2beta1/experiments", "if": "not there", "body": experiment},
        {"POST": place, "if": "not there", "body": pipeline},
        {
            "POST": f"{place}/upload_version", "if": "not there", "query": query, "uploadfile": "the documents below",
        },
    ]  # fmt: skip


def requests_of_run(submission: Submission) -> Requests:
    """Return the requests that `submit` would send."""
    run = {"POST": "/apis/v2beta1/runs", "body": submission.run(EXPERIMENT_ID, PIPELINE_ID, VERSION_ID)}
    return [*requests_before_run(submission), run]


def summary(submission: Submission, requests: Requests) -> dict[str, str]:
    """Return what requests come to, for people."""
    options = submission.options
    sent = [
        f"{verb} {each[verb]}" + (f" (if {each['if']})" if "if" in each else "")
        for each in requests
        for verb in ("POST", "DELETE")
        if verb in each
    ]
    return {
        "name": options.name, "experiment": options.experiment, "namespace": options.namespace or "the server's",
        "service_account": options.service_account or "the server's", "version": submission.version,
        "steps": ", ".join(step.name for step in flow_of(submission.recipe)),
        "requests": ", ".join(sent), "objects": "add -o yaml",
    }  # fmt: skip


def upload(server: Kubeflow, submission: Submission) -> tuple[str, str, str]:
    """Return the ids of the experiment, the pipeline and the version; missing ones are created."""
    experiment = server.experiment(submission.options.experiment)
    pipeline = server.pipeline(NAME, PIPELINE)
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        file = Path(folder) / "pipeline.yaml"
        file.write_text(submission.pipeline, encoding="utf-8")
        version = server.version(pipeline, submission.version, file, submission.description)
    log.info("pipeline %s, version %s", NAME, submission.version)
    return experiment, pipeline, version


def submit(server: Kubeflow, submission: Submission, *, again: bool = False) -> str:
    """Return the id of a run of the recipe: of one that is under way, unless `again`, else of a new one."""
    experiment, pipeline, version = upload(server, submission)
    if not again:
        for run in islice(server.runs(experiment), NUM_RECENT_RUNS):
            reference = run.pipeline_version_reference
            if reference and reference.pipeline_version_id == version and run.state in ACTIVE_STATES:
                log.warning("run %s of the same recipe is under way; --again starts another", run.run_id)
                return str(run.run_id)
    return str(server.create_run(submission.run(experiment, pipeline, version)).run_id)


def kubeflow_cron(cron: str) -> str:
    """Return a cron expression as Kubeflow Pipelines reads it: seconds first.

    It would read the usual five fields as second, minute, hour, day and month, and say nothing.
    """
    fields = MACROS.get(cron.strip().lower(), cron).split()
    if len(fields) == 5:
        fields = ["0", *fields]
    if len(fields) != 6:
        raise RecipeError(
            f"--cron {cron!r}: has {counted(len(fields), 'field')}; write minute, hour, day of the month, month, day of the "
            "week, such as '0 3 * * 0' for Sundays at 3:00"
        )
    for text, field in zip(fields, FIELDS, strict=True):
        _check_field(cron, text, *field)
    return " ".join(fields)


def _check_field(cron: str, text: str, name: str, smallest: int, largest: int, names: list[str]) -> None:
    hint = " (Sunday is 0)" if name == "day of the week" else ""
    for part in text.split(","):
        match = re.fullmatch(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/([1-9]\d*))?", part)
        values = [_number(word, smallest, names) for word in (match.group(1, 2) if match else ()) if word]
        if (
            not match
            or any(value is None or not smallest <= value <= largest for value in values)
            or values != sorted(values, key=lambda value: value or 0)
        ):
            raise RecipeError(f"--cron {cron!r}: {part!r} is no {name}; give {smallest} to {largest}{hint}")


def _number(word: str, smallest: int, names: list[str]) -> int | None:
    if word.isdecimal():
        return int(word)
    return names.index(word.lower()) + smallest if word.lower() in names else None


def recurring_run_body(
    submission: Submission, cron: str, experiment: str, pipeline: str, version: str
) -> dict[str, Any]:
    """Return the body of a recurring run, for these ids."""
    return submission.run(experiment, pipeline, version) | {
        "description": submission.description,
        "trigger": {"cron_schedule": {"cron": kubeflow_cron(cron)}},
        "mode": "ENABLE",
        # Two runs would train the same artifact beside each other.
        "max_concurrency": "1",
        # One run sees all data that has come; runs for the times that were missed would find nothing to do.
        "no_catchup": True,
    }


def requests_of_schedule(submission: Submission, cron: str) -> Requests:
    """Return the requests that `schedule` would send."""
    place = "/apis/v2beta1/recurringruns"
    body = recurring_run_body(submission, cron, EXPERIMENT_ID, PIPELINE_ID, VERSION_ID)
    return [
        *requests_before_run(submission),
        {"DELETE": f"{place}/<recurring_run_id>", "if": f"named {submission.options.name}"},
        {"POST": place, "body": body},
    ]


def dry_run_change(name: str, verb: str) -> str:
    """Return the requests that `change` would send, as YAML."""
    place = "/apis/v2beta1/recurringruns/<recurring_run_id>"
    request = {"DELETE": place} if verb == "delete" else {"POST": f"{place}:{verb}"}
    return yaml.safe_dump({"requests": [request | {"if": f"named {name}"}]}, sort_keys=False)


def schedule(server: Kubeflow, submission: Submission, cron: str) -> str:
    """Create the recurring run of a name, in place of those that have it; return its id."""
    kubeflow_cron(cron)
    experiment, pipeline, version = upload(server, submission)
    old = server.recurring_runs(experiment, submission.options.name)
    for each in old:
        # The old one goes first, so that there are never two; Kubeflow Pipelines cannot change one.
        server.change_recurring_run("delete", each.recurring_run_id)
        log.info("removed the recurring run %s", each.recurring_run_id)
    body = recurring_run_body(submission, cron, experiment, pipeline, version)
    try:
        created = server.create_recurring_run(body)
    except AnadilError:
        if old:
            name = submission.options.name
            log.warning("%s: the old schedule was deleted, and the new one was refused", name)
        raise
    return str(created.recurring_run_id)


def change(server: Kubeflow, experiment: str, name: str, verb: str) -> list[str]:
    """`disable`, `enable` or `delete` the recurring runs of a name; return their ids."""
    existing = server.recurring_runs(server.experiment(experiment), name)
    if not existing:
        where = f"experiment {experiment}; check --name and --experiment"
        raise DataError(f"{name}: no such recurring run in {where}")
    for each in existing:
        server.change_recurring_run(verb, each.recurring_run_id)
    return [str(each.recurring_run_id) for each in existing]
