"""`anadil launch`, `status`, `logs` and `stop`: training jobs from the command line."""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

from anadil.cli.options import add_output_option
from anadil.cli.output import print_data, print_result
from anadil.core.errors import AnadilError, RecipeError, Stopped
from anadil.core.format import human_seconds
from anadil.core.stages import LAUNCHABLE, STAGES
from anadil.launch import launcher
from anadil.launch.job import JobBackend
from anadil.preflight.this_machine import require_packages
from anadil.recipe.load import load_recipe
from anadil.runtime.alerts import Event, notify
from anadil.runtime.entry_point import add_input_option, add_recipe_options, add_remake_option
from anadil.runtime.flow import named_inputs
from anadil.runtime.lookup import allow_remake
from anadil.runtime.planned_artifact import MadeArtifact


def add_status(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil status`."""
    _add_job(command, _status)
    add_output_option(command)


def add_logs(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil logs`."""
    _add_job(command, _logs)
    command.add_argument("--follow", action="store_true", help="follow the log until the job ends")


def add_stop(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil stop`."""
    _add_job(command, _stop)


def _add_job(command: argparse.ArgumentParser, function: Callable[[argparse.Namespace], int]) -> None:
    command.add_argument("name", metavar="JOB", help="name that `anadil launch` printed")
    help_text = "backend that runs the job (default: %(default)s)"
    command.add_argument("--backend", choices=launcher.BACKENDS, default="pytorchjob", help=help_text)
    help_text = "namespace of a Kubernetes job (default: that of your context)"
    command.add_argument("--namespace", metavar="NAME", help=help_text)
    help_text = "AWS region of a SageMaker job (default: that of your environment)"
    command.add_argument("--region", metavar="NAME", help=help_text)
    command.set_defaults(command=function)


def add_launch(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil launch`."""
    command.description = f"{command.description} to its end; prints the URI of the artifact; starts nothing if the artifact exists"
    help_text = f"stage to launch: {', '.join(LAUNCHABLE)}"
    command.add_argument("stage", choices=LAUNCHABLE, metavar="STAGE", help=help_text)
    add_recipe_options(command)
    for word in dict.fromkeys(word for stage in LAUNCHABLE for word in STAGES[stage].words):
        readers = ", ".join(stage for stage in LAUNCHABLE if word in STAGES[stage].words)
        add_input_option(command, word, f"{word} artifact to read ({readers})")
    help_text = "files of chats instead of the recipe's (finetune)"
    command.add_argument("--chats", metavar="URI", nargs="+", default=[], help=help_text)
    help_text = "URI of the artifact to write (default: a place under storage.root)"
    command.add_argument("--out", metavar="URI", help=help_text)
    help_text = "backend that runs the job (default: cluster.backend of the recipe)"
    command.add_argument("--backend", choices=launcher.BACKENDS, help=help_text)
    help_text = "run that the job belongs to; another ID makes another job of the same work"
    command.add_argument("--run", default="", metavar="ID", help=help_text)
    add_remake_option(command)
    help_text = "print the name of the job once it has started, and leave it running"
    command.add_argument("--detach", action="store_true", help=help_text)
    help_text = "print the exact manifest or request, and start nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    add_output_option(command, "yaml", "json", text="format of --dry-run (default: %(default)s)")
    command.set_defaults(command=_launch)


def _launch(options: argparse.Namespace) -> int:
    if options.remake:
        allow_remake()
    recipe = load_recipe(options.recipe, options.set)
    stage = STAGES[options.stage]
    request = launcher.LaunchRequest(
        stage=options.stage, recipe=recipe,
        inputs=named_inputs(stage, recipe, {word: getattr(options, word) for word in stage.words}),
        files=options.chats if stage.files.flag == "chats" else [], out=options.out, run=options.run,
    )  # fmt: skip
    if options.dry_run:
        job = launcher.job_for_dry_run(request, options.backend)
        print_data(launcher.backend_for(recipe, options.backend).render(job), options.output)
        return 0
    if (options.backend or recipe.cluster.backend) != "local":
        require_packages("launch")
    result = _launch_and_notify(request, options)
    print(result.uri if isinstance(result, MadeArtifact) else result)
    return 0


def _launch_and_notify(request: launcher.LaunchRequest, options: argparse.Namespace) -> MadeArtifact | str:
    again = f"anadil {shlex.join(sys.argv[1:])}"
    try:
        result = launcher.launch_job(request, options.backend, detach=options.detach)
    except (AnadilError, KeyboardInterrupt) as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        kind: Literal["stopped", "failed"] = "stopped" if stopped else "failed"
        notify(Event(kind=kind, run=options.run, stage=request.stage, message=str(error), resume=again))
        raise
    if isinstance(result, MadeArtifact):
        figures = {name: each for name, each in result.manifest.figures.items() if not isinstance(each, bool)}
        notify(Event(
            kind="completed", run=options.run, stage=request.stage, message="the artifact is there",
            artifact=result.uri, figures=figures,
        ))  # fmt: skip
    return result


def _backend(options: argparse.Namespace) -> JobBackend:
    if options.namespace and options.backend in ("local", "sagemaker"):
        raise RecipeError(f"--namespace: a job of the backend {options.backend} has none; leave it out")
    if options.backend != "local":
        require_packages("launch")
    return launcher.backend_of(options.backend, options.namespace, options.region)


def _status(options: argparse.Namespace) -> int:
    status = _backend(options).status(options.name)
    rows = {
        "job": status.name, "state": f"{status.state} ({status.reason})" if status.reason else status.state,
        "says": status.message, "nodes": f"{status.running} of {status.nodes} run" if status.nodes else "",
        "restarts": str(status.restarts) if status.restarts else "",
        "since": human_seconds(status.seconds) if status.seconds is not None else "",
        "exit code": str(status.exit_code) if status.exit_code is not None else "",
        "artifact": status.artifact,
    }  # fmt: skip
    lines = [f"{name:<9}  {value}" for name, value in rows.items() if value]
    print_result(asdict(status), lines, options.output)
    return 0


def _logs(options: argparse.Namespace) -> int:
    for line in _backend(options).logs(options.name, follow=options.follow):
        print(line, flush=options.follow)
    return 0


def _stop(options: argparse.Namespace) -> int:
    ran = _backend(options).stop(options.name)
    print(f"{options.name}: {'stopped' if ran else 'had ended before'}")
    return 0
