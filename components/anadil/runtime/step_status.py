"""The status of each step of a pipeline run, beside the artifacts, for whoever follows the whole run.

Kubeflow Pipelines tells its exit handler nothing about the steps, and their logs go with the
pods; so each step writes `<storage.root>/runs/<run>/<stage>.json`.
"""

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core import errors
from anadil.core.errors import AnadilError, DataError
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.runtime.run_record import STOPPED, NotedStep, no_failure, note_step, record_uri

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """The end of one step."""

    stage: str
    status: Literal["finished", "failed", "stopped"]
    exit_code: int = 0
    message: str = ""
    """Why it failed."""
    uri: str = ""
    """The artifact."""
    seconds: float = 0


@dataclass(slots=True)
class StepRecord:
    """What a step fills in while it runs."""

    uri: str = ""
    """The artifact, if this process has made it."""
    exit_code: int = 0
    """Of processes whose error is not known here."""
    figures: dict[str, bool | float | int | str] = field(default_factory=dict)
    """The stage's line of figures, for the record of the run."""


def step_status_uri(root: str, run: str, stage: str) -> str:
    """Where the status of a step is written."""
    return join(root, "runs", run, f"{stage}.json")


@contextlib.contextmanager
def record_step_status(recipe: Recipe, run: str, stage: str) -> Iterator[StepRecord]:
    """Write that the block runs and how it ended; nothing without a run or a `storage.root`.

    Args:
        recipe: Of the run.
        run: Id of the pipeline run.
        stage: Name of the stage.
    """
    record, started, root = StepRecord(), time.monotonic(), recipe.storage.root
    if not root or not run:
        yield record
        return
    note_step(recipe, run, stage, NotedStep(status="running"))

    def end(code: int, message: str = "") -> None:
        status = StepStatus(
            stage=stage,
            status="finished" if not code else "stopped" if code in STOPPED else "failed",
            exit_code=code,
            message=masked(message)[:MAX_MESSAGE_CHARS],
            uri=record.uri,
            seconds=round(time.monotonic() - started, 1),
        )
        _write(root, run, status)
        noted = {name: value for name, value in asdict(status).items() if name != "stage"}
        note_step(recipe, run, stage, NotedStep(**noted, figures=record.figures))

    try:
        yield record
    except AnadilError as error:
        end(error.exit_code, str(error))
        raise
    except KeyboardInterrupt:
        end(errors.INTERRUPTED, "interrupted")
        raise
    except Exception as error:
        end(errors.BUG, f"bug: {type(error).__name__}: {error}")
        raise
    # What the processes of a group have said themselves, with the artifact's URI or the error, stays.
    if record.uri:
        end(0)
    elif record.exit_code and not _has_failed(root, run, stage):
        end(record.exit_code)


def step_statuses(root: str, run: str, stages: list[str]) -> list[StepStatus]:
    """The statuses that the steps of a run have written, in this order.

    Raises:
        AnadilError: Storage cannot be read.
    """
    found = []
    for stage in stages:
        uri = step_status_uri(root, run, stage)
        if not storage.store(uri).exists(uri):
            continue
        try:
            found.append(StepStatus(**json.loads(storage.store(uri).read(uri))))
        except (ValueError, TypeError) as error:
            raise DataError(f"{uri}: not the status of a step ({error}); remove it") from None
    return found


def _has_failed(root: str, run: str, stage: str) -> bool:
    with contextlib.suppress(AnadilError):
        return any(each.exit_code for each in step_statuses(root, run, [stage]))
    return False


def _write(root: str, run: str, status: StepStatus) -> None:
    uri = step_status_uri(root, run, status.stage)
    # The step itself has ended as it has; only the page about the run knows less.
    with no_failure(record_uri(root, run), uri):
        storage.store(uri).write(uri, json.dumps(asdict(status), ensure_ascii=False).encode())
