"""The steps that the image `tools` runs in a pipeline: launch a job and follow it, the exit handler, begin a retraining.

A retraining's first step claims the champion for the run, finds what came since, and writes the recipe of the other
steps. The exit handler gives the champion free.
"""

import argparse
import logging
from collections.abc import Sequence

from anadil.core import errors
from anadil.core import log as logs
from anadil.core.errors import BY_EXIT_CODE, AnadilError, DataError, RecipeError
from anadil.core.format import human_seconds
from anadil.core.stages import LAUNCHABLE, STAGES
from anadil.launch.job import FINAL, JOB_KINDS
from anadil.launch.kubernetes.backend import stop_run
from anadil.launch.launcher import LaunchRequest, backend_for, launch_job, target_of, training_job
from anadil.preflight.memory import refuse_dear
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.exclusive import claim, free
from anadil.retrain.lineage import champion_name
from anadil.retrain.resolve import Resolution, resolve
from anadil.runtime import kfp, run_record
from anadil.runtime.alerts import Event, notify
from anadil.runtime.flow import RETRAIN, flow_of
from anadil.runtime.job import kind_of
from anadil.runtime.kfp import DERIVED, METRICS, STATE, Scalar, ToolInput, write_results
from anadil.runtime.lookup import reusable
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.runtime.termination import exit_code_of, is_deterministic
from anadil.runtime.tracking_spool import send_left

log = logging.getLogger(__name__)

STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
"""How a run ended -> MLflow's word for it."""
RESUME = "submit the recipe again: finished steps are reused, training resumes from its checkpoint"


def begin_retraining(call: ToolInput) -> int:
    """Claim the champion, derive the recipe of the run, and tell Kubeflow whether there is anything to do."""
    recipe, run = call.recipe, call.run
    with run_record.record_step(recipe, run, RETRAIN) as record:
        root = recipe.storage.root
        if not root:
            raise RecipeError("storage.root: not set; steps on a cluster need one that all of them reach")
        # Before the registry is asked: another retraining may be about to move the champion.
        claim(root, champion_name(recipe)[0], run)
        resolution = resolve(recipe)
        for line in resolution.lines:
            log.info("%s", line)
        if resolution.state == "new":
            refuse_dear(resolution.recipe)
        place = run_record.write_recipe(root, run, resolution.recipe)
        record.uri = place
        record.figures = {"state": resolution.state, "new_files": resolution.num_files}
        values = {DERIVED: place, STATE: resolution.state}
        write_results(call.outputs, values, _cards(resolution), {})
    if resolution.state == "nothing":
        # No other step will say so.
        run_record.end_run(root, run, 0, "no new text")
    return 0


def _cards(resolution: Resolution) -> dict[str, dict[str, Scalar]]:
    champion = resolution.champion
    made = resolution.lineage.made if resolution.lineage else {}
    corpora = {word: each for word, each in made.items() if kind_of(word) == "corpus"}
    rows = sum(sum(manifest.records.values()) for _, manifest in corpora.values())
    model: dict[str, Scalar] = {"name": champion.name, "version": champion.version, "uri": champion.uri}
    earlier: dict[str, Scalar] = {"rows": rows}
    return {
        "champion_artifact": model | {"sha256": champion.manifest.digest, "key": champion.manifest.key},
        "earlier_artifact": earlier | {word: uri for word, (uri, _) in corpora.items()},
        METRICS: {"new_files": resolution.num_files},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the steps and return its exit code."""
    top = argparse.ArgumentParser(
        prog="python -m anadil.launch", description="steps of a pipeline on a cluster"
    )
    steps = top.add_subparsers(dest="step", metavar="STEP", required=True)
    helps = {name: f"launch {name} as a job of its own and follow it" for name in LAUNCHABLE}
    helps |= {RETRAIN: "find what came since the champion", "finish": "exit handler: clean up and notify"}
    for name, text in helps.items():
        steps.add_parser(name, help=text).add_argument("--executor-input", required=True, metavar="JSON")
    options = top.parse_args(argv)
    logs.set_up(f"launch {options.step}", container=True)
    tools = {RETRAIN: begin_retraining, "finish": _finish}
    if options.step in tools:
        return exit_code_of(lambda: tools[options.step](kfp.parse_tool_input(options.executor_input)))
    return exit_code_of(lambda: _launch(options.step, options.executor_input))


def _launch(name: str, text: str) -> int:
    stage = STAGES[name]
    call = kfp.parse_executor_input(stage, text)
    recipe = load_recipe(call.recipe)
    request = LaunchRequest(stage=name, recipe=recipe, inputs=call.inputs, run=call.run)
    refuse_deterministic_retry(request, call.step)  # outside the record, which would write over what it reads
    with run_record.record_step(recipe, call.run, call.step) as record:
        result = launch_job(request)
        assert isinstance(result, MadeArtifact)
        record.uri, record.figures = result.uri, result.manifest.figures
        kfp.write_outputs(stage, call.outputs, result.uri, result.manifest)
    return 0


def _finish(call: kfp.ToolInput) -> int:
    finish(call.recipe, call.run, str(call.values.get("first", "")))
    return 0


def refuse_deterministic_retry(request: LaunchRequest, step: str) -> None:
    """Raise the deterministic failure of an earlier try of a step again; tries that may resume are left alone."""
    # Kubeflow Pipelines tries a step again whatever its exit code was. Each try of a launcher would start its
    # machines again, with a deadline and restarts of their own.
    root = request.recipe.storage.root
    try:
        earlier = (
            next(iter(run_record.read_steps(root, request.run, [step])), None)
            if root and request.run
            else None
        )
    except DataError as error:
        log.warning("how an earlier try ended is not known: %s", error)
        return
    if not earlier or earlier.status != "failed" or not is_deterministic(earlier.exit_code, earlier.message):
        return
    if _goes_on(request):
        log.info("an earlier try has failed (%s), but its work is still running", earlier.message)
        return
    uri = run_record.step_uri(str(root), request.run, step)
    failure = BY_EXIT_CODE.get(earlier.exit_code, AnadilError)(
        f"{earlier.message}; so ended an earlier try of this step, and another would: no machine was started. Start a "
        f"new run, or remove {uri} to try it again in this one"
    )
    failure.exit_code = earlier.exit_code
    raise failure


def _goes_on(request: LaunchRequest) -> bool:
    planned = target_of(request)
    if reusable(planned):
        return True
    try:
        status = backend_for(request.recipe).status(training_job(request, planned.target).name)
    except DataError:
        return False  # no such job
    return status.state not in FINAL


def finish(recipe: Recipe, run: str, first: str = "") -> None:
    """Stop the jobs that a pipeline run has left behind, and tell how it ended; `first` is a step before the flow's."""
    if recipe.cluster.backend in JOB_KINDS:
        try:
            for name in stop_run(run, kind=recipe.cluster.backend, namespace=recipe.cluster.namespace):
                log.info("stopped %s, which the run had left", name)
        except AnadilError as error:  # the handler of a run never fails it
            log.warning("jobs of run %s cannot be stopped: %s", run, error)
    event = _run_event(recipe, run, first)
    log.info("%s: %s", event.kind, event.message)
    send_left(recipe, run, STATUS[event.kind])
    if event.kind != "completed":
        run_record.end_left_run(str(recipe.storage.root), run, event.message)
    if first == RETRAIN:
        root = str(recipe.storage.root)
        with run_record.no_failure(run_record.record_uri(root, run)):
            free(root, champion_name(recipe)[0], run)
    notify(event)


def _run_event(recipe: Recipe, run: str, first: str) -> Event:
    stages = [*([first] if first else []), *(step.name for step in flow_of(recipe))]
    try:
        steps = run_record.read_steps(str(recipe.storage.root), run, stages)
    except AnadilError as error:
        text = f"how the steps ended cannot be read: {error}"
        return Event(kind="failed", run=run, message=text, resume=RESUME)
    if bad := next((each for each in steps if each.status != "finished"), None):
        stopped = bad.exit_code in (errors.INTERRUPTED, errors.Stopped.exit_code)
        message = bad.message or f"exit code {bad.exit_code}"
        return Event(
            kind="stopped" if stopped else "failed", run=run, stage=bad.stage, message=message, resume=RESUME
        )
    if first and steps and steps[0].figures.get("state") == "nothing":
        return Event(kind="completed", run=run, message="no new text since the champion")
    if len(steps) < len(stages):
        missing = next(name for name in stages if name not in {each.stage for each in steps})
        message = "the step left no word: it was cancelled, evicted, or its pod never started"
        return Event(kind="failed", run=run, stage=missing, message=message, resume=RESUME)
    seconds = human_seconds(sum(each.seconds for each in steps))
    message = f"all {len(steps)} steps finished, {seconds} of work"
    page = next(each.uri for each in steps if each.stage == "report")
    return Event(kind="completed", run=run, message=message, artifact=f"{page}/report.html")
