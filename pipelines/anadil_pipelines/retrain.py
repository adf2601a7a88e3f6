"""Training again on a schedule: a recurring run that is pinned to one pipeline version.

Each run expands the globs of the recipe again. A retraining teaches the champion the files that came since. Any other
run finds every artifact by its content where the data is the same; where files came, clean and all that follows run.
"""

import logging
import re
from typing import Any

import yaml

from anadil.core.errors import AnadilError, DataError, RecipeError
from anadil.core.format import counted
from anadil_pipelines.server import Kubeflow
from anadil_pipelines.submit import (
    EXPERIMENT_ID,
    PIPELINE_ID,
    VERSION_ID,
    Submission,
    render_requests,
    requests_before_run,
    upload,
)

log = logging.getLogger(__name__)

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


def dry_run_schedule(submission: Submission, cron: str) -> str:
    """Return the requests that `schedule` would send, as YAML."""
    place = "/apis/v2beta1/recurringruns"
    body = recurring_run_body(submission, cron, EXPERIMENT_ID, PIPELINE_ID, VERSION_ID)
    requests = [
        *requests_before_run(submission),
        {"DELETE": f"{place}/<recurring_run_id>", "if": f"named {submission.options.name}"},
        {"POST": place, "body": body},
    ]
    return render_requests(requests, submission.pipeline)


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
            log.warning(
                "%s: the old schedule was deleted, and the new one was refused", submission.options.name
            )
        raise
    return str(created.recurring_run_id)


def change(server: Kubeflow, experiment: str, name: str, verb: str) -> list[str]:
    """`disable`, `enable` or `delete` the recurring runs of a name; return their ids."""
    existing = server.recurring_runs(server.experiment(experiment), name)
    if not existing:
        raise DataError(
            f"{name}: no such recurring run in experiment {experiment}; check --name and --experiment"
        )
    for each in existing:
        server.change_recurring_run(verb, each.recurring_run_id)
    return [str(each.recurring_run_id) for each in existing]
