"""The command line: `anadil COMMAND`, verbs in the order of the flow.

Nothing heavy is imported before a command needs it. stdout carries results, stderr messages.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anadil import __version__
from anadil.cli.output import add_output_option, print_json
from anadil.core.stages import BUILT_IN, FLOW, STAGES

if TYPE_CHECKING:
    from anadil.cli.doctor.local import Check

log = logging.getLogger(__name__)

DESCRIPTION = """Teach a foundation model a language: raw text in, an adapted model and a report out.

  raw -clean-> corpus -tokenizer-> tokenizer -pretrain-> model -finetune-> adapter
      -evaluate-> scores -report-> report"""

EPILOG = """exit codes: 0 done, 2 recipe or usage, 3 data rejected, 4 environment, 5 integrity,
6 quality gate, 7 budget reached, 70 bug, 130 interrupted, 138 try again, 143 stopped after saving

start here: `anadil run` runs everything on built-in data, on this machine, in minutes"""


class Command(NamedTuple):
    """A command; those of stages parse their own options and have no module here."""

    help: str
    module: str
    add: str
    """Function of the module that adds the command with its options; called as `add(name, commands, help)`."""


STAGE_COMMANDS = {stage.name: Command(f"one stage: {stage.says}", "", "") for stage in FLOW}
JOBS = ("anadil.cli.launch", "add_job_command")
PIPELINES = ("anadil_pipelines.commands", "add_pipeline_command")
COMMANDS = {
    "run": Command("run the whole pipeline on this machine", "anadil.cli.run", "add_run"),
    **STAGE_COMMANDS,
    "recipe": Command("list, copy, show and check recipes", "anadil.cli.recipe", "add_recipe"),
    "plan": Command(
        "memory, speed, time and cost of a training run, before a machine is rented",
        "anadil.cli.main",
        "add_plan",
    ),
    "compile": Command("the pipeline for Kubeflow Pipelines, as a file", "anadil.cli.compile", "add_compile"),
    "submit": Command("start a run on Kubeflow Pipelines", *PIPELINES),
    "schedule": Command("start a run again and again, by the clock", *PIPELINES),
    "launch": Command("start one training stage on a cluster and follow it", *JOBS),
    "status": Command("where a launched job stands", *JOBS),
    "logs": Command("the log of a launched job's first machine", *JOBS),
    "stop": Command("end a launched job; what it saved stays", *JOBS),
    "export": Command("a checkpoint of pretrain as a model directory", "anadil.cli.export", "add_export"),
    "remove": Command(
        "take away an artifact that is damaged or not needed", "anadil.cli.remove", "add_remove"
    ),
    "promote": Command(
        "move the registry's alias to a model that passed its gate", "anadil.cli.promote", "add_promote"
    ),
    "cluster": Command("create, describe or delete a HyperPod cluster", "anadil.cli.hyperpod", "add_cluster"),
    "doctor": Command("check what a run needs, each line with its remedy", "anadil.cli.main", "add_doctor"),
}
"""The whole command line, in the order of the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = next((i for i, word in enumerate(arguments) if word not in ("-v", "--verbose")), 0)
    if arguments[first:] and arguments[first] in STAGES:
        from anadil.runtime.entry_point import main as run_stage

        name = arguments[first]
        return run_stage(name, arguments[first + 1 :], prog=f"anadil {name}", verbose=first > 0)
    options = parser(arguments[first] if arguments[first:] else "").parse_args(arguments)
    from anadil.core import log as logs
    from anadil.runtime.termination import exit_code_of
    from anadil.runtime.threads import wait_asleep

    wait_asleep()
    logs.set_up(verbose=options.verbose)
    command: Callable[[argparse.Namespace], int] = options.command
    return exit_code_of(lambda: command(options))


def parser(asked: str = "") -> argparse.ArgumentParser:
    """The whole command line; stages parse their own options (`anadil clean --help`).

    Args:
        asked: The command whose options are needed; no other's are loaded.
    """
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="anadil", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"anadil {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="say more")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if name == asked and command.module:
            getattr(importlib.import_module(command.module), command.add)(name, commands, command.help)
        else:
            commands.add_parser(name, help=command.help, add_help=False)
    return top


def add_plan(name: str, commands: Any, text: str) -> None:
    """Add `anadil plan`."""
    plan = commands.add_parser(name, help=text, description=text)
    plan.add_argument("recipe", metavar="RECIPE")
    plan.add_argument(
        "--instance", metavar="TYPE", help="such as p5.48xlarge (default: cluster.instance, or this machine)"
    )
    plan.add_argument("--nodes", type=_positive, metavar="N", help="machines (default: cluster.nodes)")
    plan.add_argument(
        "--tokens", type=_positive, metavar="N", help="tokens of the corpus, for epochs and hours per epoch"
    )
    plan.add_argument(
        "--prices", type=Path, metavar="FILE", help="YAML over the table of machines and prices"
    )
    plan.add_argument(
        "--exact", action="store_true", help="also run the real model on fake tensors (needs torch, no GPU)"
    )
    plan.add_argument("--write", action="store_true", help="put the fastest layout that fits into RECIPE")
    plan.add_argument("--page", type=Path, metavar="FILE", help="write the plan as an HTML page too")
    text = "correct the speed by short runs of the best layouts on this machine"
    plan.add_argument("--measure", action="store_true", help=text)
    text = "write such runs as PyTorchJobs for a cluster instead"
    plan.add_argument("--jobs", type=Path, metavar="DIR", help=text)
    plan.add_argument(
        "--measured", type=Path, nargs="+", default=[], metavar="LOG", help="take in what such jobs printed"
    )
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_output_option(plan)
    plan.set_defaults(command=_plan)


def _positive(text: str) -> int:
    """A count as people write it: 2500000000 or 2.5e9."""
    number = float(text)
    if not 1 <= number < 1e18 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is no positive whole number")
    return int(number)


def add_doctor(name: str, commands: Any, text: str) -> None:
    """Add `anadil doctor`."""
    from anadil.cli.run import WORK

    doctor = commands.add_parser(name, help=text)
    doctor.add_argument("recipe", nargs="?", default=BUILT_IN, metavar="RECIPE", help=f"default: {BUILT_IN}")
    text = "look at the cluster of your Kubernetes context too (or of the pod that this runs in)"
    doctor.add_argument("--cluster", action="store_true", help=text)
    text = "Kubeflow Pipelines' API (default: KF_PIPELINES_ENDPOINT)"
    doctor.add_argument("--kubeflow-host", metavar="URL", help=text)
    doctor.add_argument("--work", default=WORK, metavar="DIR", help="default: %(default)s")
    doctor.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_output_option(doctor)
    doctor.set_defaults(command=_doctor)


def _plan(options: argparse.Namespace) -> int:
    from anadil.cli.plan import run_plan

    return run_plan(options)


def _doctor(options: argparse.Namespace) -> int:
    from anadil.cli.doctor.local import run_checks
    from anadil.core.errors import PreflightError

    if options.cluster:
        checks = _cluster_checks(options)
    else:
        checks = run_checks(options.recipe, options.set, Path(os.path.realpath(options.work)))
    if options.output == "json":
        print_json([check.as_dict() for check in checks])
    else:
        for check in checks:
            print(check.as_text())
    return PreflightError.exit_code if any(check.status == "failed" for check in checks) else 0


def _cluster_checks(options: argparse.Namespace) -> "list[Check]":
    from anadil.cli.doctor.cluster import run_cluster_checks
    from anadil.recipe.load import load_recipe

    return run_cluster_checks(load_recipe(options.recipe, options.set), kubeflow_host=options.kubeflow_host)


if __name__ == "__main__":
    sys.exit(main())
