"""The entry points of `python -m anadil.launch`."""

import argparse
import json
from collections.abc import Sequence

from anadil.core import log as logs
from anadil.core.errors import RecipeError
from anadil.core.stages import LAUNCHABLE, STAGES
from anadil.launch.launcher import LaunchRequest, launch_job
from anadil.launch.retry_guard import refuse_deterministic_retry
from anadil.recipe.load import load_recipe
from anadil.runtime import kfp
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.runtime.run_record import record_step
from anadil.runtime.termination import exit_code_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the steps and return its exit code."""
    options = _parser().parse_args(argv)
    logs.set_up(f"launch {options.step}", container=True)
    if options.step == "finish":
        return exit_code_of(lambda: _finish(options.executor_input))
    return exit_code_of(lambda: _launch(options.step, options.executor_input))


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m anadil.launch", description="steps of a pipeline on a cluster"
    )
    steps = top.add_subparsers(dest="step", metavar="STEP", required=True)
    for name in LAUNCHABLE:
        step = steps.add_parser(name, help=f"launch {name} as a job of its own and follow it")
        step.add_argument("--executor-input", required=True, metavar="JSON")
    finish = steps.add_parser("finish", help="exit handler: clean up and notify")
    finish.add_argument("--executor-input", required=True, metavar="JSON")
    return top


def _launch(name: str, text: str) -> int:
    stage = STAGES[name]
    call = kfp.parse_executor_input(stage, text)
    recipe = load_recipe(call.recipe)
    request = LaunchRequest(stage=name, recipe=recipe, inputs=call.inputs, run=call.run)
    refuse_deterministic_retry(request, call.step)  # outside the record, which would write over what it reads
    with record_step(recipe, call.run, call.step) as record:
        result = launch_job(request)
        assert isinstance(result, MadeArtifact)
        record.uri, record.figures = result.uri, result.manifest.figures
        kfp.write_outputs(stage, call.outputs, result.uri, result.manifest)
    return 0


def _finish(text: str) -> int:
    from anadil.launch.exit_handler import finish

    try:
        values = json.loads(text)["inputs"]["parameterValues"]
        recipe, run = kfp.varied_recipe(values), str(values["run"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecipeError(f"--executor-input: not what Kubeflow Pipelines passes ({error!r})") from None
    finish(load_recipe(recipe), run)
    return 0
