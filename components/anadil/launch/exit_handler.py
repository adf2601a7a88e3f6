"""The end of a pipeline run: nothing of it keeps running, and an alert says how it ended."""

import logging

from anadil.core import errors
from anadil.core.errors import AnadilError
from anadil.core.format import human_seconds
from anadil.core.stages import FLOW
from anadil.launch.kubernetes.jobs.backend import stop_run
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import Event, notify
from anadil.runtime.job import is_left_out
from anadil.runtime.run_record import StepRecord, end_left_run, read_steps

log = logging.getLogger(__name__)

RESUME = "submit the recipe again: finished steps are reused, training resumes from its checkpoint"


def finish(recipe: Recipe, run: str) -> None:
    """Stop what a run has left behind and tell how it ended; a step of its own never fails a run.

    Args:
        recipe: Of the run.
        run: Id of the pipeline run.
    """
    if recipe.cluster.backend in ("pytorchjob", "trainjob"):
        try:
            for name in stop_run(run, kind=recipe.cluster.backend, namespace=recipe.cluster.namespace):
                log.info("stopped %s, which the run had left", name)
        except AnadilError as error:
            log.warning("jobs of run %s cannot be stopped: %s", run, error)
    event = run_event(recipe, run)
    log.info("%s: %s", event.kind, event.message)
    if event.kind != "completed":
        end_left_run(str(recipe.storage.root), run, event.message)
    notify(event)


def run_event(recipe: Recipe, run: str) -> Event:
    """The event of a run's end, from the outcomes that its steps have left."""
    stages = [stage.name for stage in FLOW if not is_left_out(stage, recipe)]
    try:
        steps = read_steps(str(recipe.storage.root), run, stages)
    except AnadilError as error:
        return Event(
            kind="failed", run=run, message=f"how the steps ended cannot be read: {error}", resume=RESUME
        )
    bad = [each for each in steps if each.status != "finished"]
    if bad:
        return _failure(run, bad[0])
    if len(steps) < len(stages):
        missing = next(name for name in stages if name not in {each.stage for each in steps})
        message = "the step left no word: it was cancelled, evicted, or its pod never started"
        return Event(kind="failed", run=run, stage=missing, message=message, resume=RESUME)
    report = steps[-1].uri
    took = human_seconds(sum(each.seconds for each in steps))
    message = f"all {len(steps)} steps finished, {took} of work"
    return Event(kind="completed", run=run, message=message, artifact=f"{report}/report.html")


def _failure(run: str, outcome: StepRecord) -> Event:
    stopped = outcome.exit_code in (errors.INTERRUPTED, errors.Stopped.exit_code)
    return Event(
        kind="stopped" if stopped else "failed",
        run=run,
        stage=outcome.stage,
        message=outcome.message or f"exit code {outcome.exit_code}",
        resume=RESUME,
    )
