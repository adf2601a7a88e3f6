"""`anadil launch`, `status`, `logs` and `stop`: training jobs from the command line."""

import argparse
import json
import sys
from typing import Any

from anadil.doctor import missing_packages
from anadil.entry import add_recipe_options
from anadil.errors import PreflightError, RecipeError
from anadil.flow import STAGES
from anadil.launch.backend import Backend, Status
from anadil.launch.job import LAUNCHABLE
from anadil.launch.launching import BACKENDS, Launch, backend_for, backend_of, job_to_show, launch
from anadil.make import Outcome
from anadil.recipe import load_recipe
from anadil.units import human_seconds

NEEDS = {"pytorchjob": "launch", "trainjob": "launch", "sagemaker": "launch"}
"""Backend -> extra that holds its client."""


def add_launch(commands: Any) -> None:
    """`anadil launch STAGE`."""
    text = "start one training stage on a cluster and follow it to its end"
    told = f"{text}; prints the URI of the artifact, and starts nothing where that is there already"
    command = commands.add_parser("launch", help=text, description=told)
    command.add_argument("stage", choices=LAUNCHABLE, metavar="STAGE", help=" or ".join(LAUNCHABLE))
    add_recipe_options(command)
    words = {word: [name for name in LAUNCHABLE if word in STAGES[name].reads] for word in _words()}
    for word, names in words.items():
        command.add_argument(f"--{word}", metavar="URI", help=f"{word} artifact to read ({', '.join(names)})")
    text = "files of chats instead of the recipe's (finetune)"
    command.add_argument("--chats", metavar="URI", nargs="+", default=[], help=text)
    command.add_argument("--out", metavar="URI", help="where to write; left out, a place under storage.root")
    text = "how to run it (default: cluster.backend of the recipe)"
    command.add_argument("--backend", choices=BACKENDS, help=text)
    text = "name of the run that the job belongs to; another name makes another job of the same work"
    command.add_argument("--run", default="", metavar="ID", help=text)
    command.add_argument("--detach", action="store_true", help="return once it is started; prints its name")
    text = "print the exact manifest or request, and start nothing"
    command.add_argument("--dry-run", action="store_true", help=text)
    command.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml", help="of --dry-run")
    command.set_defaults(command=_launch)


def add_status(commands: Any) -> None:
    """`anadil status`, `anadil logs` and `anadil stop`, each with the NAME of a job."""
    status = commands.add_parser("status", help="where a launched job stands")
    _add_job(status)
    status.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="default: %(default)s"
    )
    status.set_defaults(command=_status)
    logs = commands.add_parser("logs", help="the log of a launched job's first machine")
    _add_job(logs)
    logs.add_argument("--follow", action="store_true", help="go on until the job ends")
    logs.set_defaults(command=_logs)
    stop = commands.add_parser("stop", help="end a launched job; what it saved stays")
    _add_job(stop)
    stop.set_defaults(command=_stop)


def _words() -> list[str]:
    return list(dict.fromkeys(word for name in LAUNCHABLE for word in STAGES[name].reads))


def _add_job(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="JOB", help="name that `anadil launch` printed")
    command.add_argument("--backend", choices=BACKENDS, default="pytorchjob", help="default: %(default)s")
    command.add_argument("--namespace", metavar="NAME", help="of a Kubernetes job; default: your context's")
    command.add_argument("--region", metavar="NAME", help="of a SageMaker job; default: your environment's")


def _launch(options: argparse.Namespace) -> int:
    recipe = load_recipe(options.recipe, options.set)
    stage = STAGES[options.stage]
    asked = Launch(
        stage=options.stage,
        recipe=recipe,
        inputs={word: uri for word in stage.reads if (uri := getattr(options, word))},
        files=options.chats if stage.files_flag == "chats" else [],
        out=options.out,
        run=options.run,
    )
    backend = backend_for(recipe, options.backend)
    if options.dry_run:
        _show(backend.render(job_to_show(asked)), options.output)
        return 0
    _need(options.backend or recipe.cluster.backend)
    made = launch(asked, backend, detach=options.detach)
    print(made.uri if isinstance(made, Outcome) else made)
    return 0


def _show(rendered: dict[str, Any], output: str) -> None:
    if output == "json":
        print(json.dumps(rendered, ensure_ascii=False, indent=2))
        return
    import yaml

    sys.stdout.write(yaml.safe_dump(rendered, sort_keys=False, allow_unicode=True, width=10_000))


def _need(backend: str) -> None:
    extra = NEEDS.get(backend)
    absent = missing_packages(extra) if extra else []
    if absent:
        raise PreflightError(f"not installed: {', '.join(absent)}; run pip install 'anadil[{extra}]'")


def _backend(options: argparse.Namespace) -> Backend:
    if options.namespace and options.backend in ("local", "sagemaker"):
        raise RecipeError(f"--namespace: a job of the backend {options.backend} has none; leave it out")
    _need(options.backend)
    return backend_of(options.backend, options.namespace, options.region)


def _status(options: argparse.Namespace) -> int:
    status = _backend(options).status(options.name)
    if options.output == "json":
        print(json.dumps(status.as_dict(), ensure_ascii=False, indent=2))
    else:
        print("\n".join(_lines(status)))
    return 0


def _lines(status: Status) -> list[str]:
    rows = {
        "job": status.name,
        "state": f"{status.state} ({status.reason})" if status.reason else status.state,
        "says": status.message,
        "machines": f"{status.running} of {status.nodes} run" if status.nodes else "",
        "restarts": str(status.restarts) if status.restarts else "",
        "since": f"{human_seconds(status.seconds)}" if status.seconds is not None else "",
        "exit code": str(status.exit_code) if status.exit_code is not None else "",
        "artifact": status.artifact,
    }
    return [f"{name:<9}  {value}" for name, value in rows.items() if value]


def _logs(options: argparse.Namespace) -> int:
    for line in _backend(options).logs(options.name, follow=options.follow):
        print(line, flush=options.follow)
    return 0


def _stop(options: argparse.Namespace) -> int:
    _backend(options).stop(options.name)
    print(f"{options.name}: stopped")
    return 0
