"""The command line: `anadil COMMAND`, verbs in the order of the flow.

Nothing heavy is imported before a command needs it. stdout carries results, stderr messages.
"""

import argparse
import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.core.stages import FLOW, STAGES
from anadil.runtime.command_line import Parser

if TYPE_CHECKING:
    from anadil.runtime.job import Engines

DESCRIPTION = "Teach a foundation model a language: raw text in, an adapted model and a report out.\n\n"
DESCRIPTION += textwrap.fill(
    f"raw {' '.join(f'-{stage.name}-> {stage.writes}' for stage in FLOW)}",
    width=84,
    initial_indent="  ",
    subsequent_indent="      ",
    break_on_hyphens=False,
)

EPILOG = """exit codes: 0 done, 2 recipe or usage, 3 data rejected, 4 environment, 5 integrity,
6 quality gate, 7 budget reached, 70 bug, 130 interrupted, 138 try again, 143 stopped after saving

start here: `anadil run` runs everything on built-in data, on this machine, in minutes"""


class Command(NamedTuple):
    """A command; those of stages parse their own options and have no module here."""

    help: str
    module: str
    add: str
    """Function of the module that adds the command with its options; called as `add(name, commands, help)`."""


STAGE_COMMANDS = {stage.name: Command(f"one stage: {stage.summary}", "", "") for stage in FLOW}
JOBS = ("anadil.cli.cluster.launch", "add_job_command")
PIPELINES = ("anadil.cli.cluster.submit", "add_pipeline_command")
COMMANDS = {
    "run": Command("run the whole pipeline on this machine", "anadil.cli.runs.run", "add_run"),
    **STAGE_COMMANDS,
    "list": Command("runs of this work directory and of a store", "anadil.cli.runs.list", "add_list"),
    "compare": Command(
        "two runs side by side: recipes, scores, curves, answers, cost",
        "anadil.cli.runs.compare",
        "add_compare",
    ),
    "recipe": Command("list, copy, show and check recipes", "anadil.cli.runs.recipe", "add_recipe"),
    "language": Command("learn a language pack from text", "anadil.cli.stages.language", "add_language"),
    "plan": Command(
        "memory, speed, time and cost of a training run, before a machine is rented",
        "anadil.cli.runs.plan",
        "add_plan",
    ),
    "compile": Command(
        "compile the pipeline to a file for Kubeflow Pipelines", "anadil.cli.cluster.compile", "add_compile"
    ),
    "submit": Command("start a run on Kubeflow Pipelines", *PIPELINES),
    "schedule": Command("start runs on a cron schedule", *PIPELINES),
    "launch": Command("start one training stage on a cluster and follow it", *JOBS),
    "status": Command("show the state of a launched job", *JOBS),
    "logs": Command("show the log of a launched job's first worker", *JOBS),
    "stop": Command("stop a launched job; its checkpoints stay", *JOBS),
    "chat": Command(
        "talk to a finished model, in the terminal or through a pipe", "anadil.cli.models.chat", "add_chat"
    ),
    "export": Command(
        "write a model, adapter or checkpoint as files that servers load",
        "anadil.cli.models.export",
        "add_export",
    ),
    "serve-manifest": Command(
        "the Kubernetes objects that serve a model, by vLLM or KServe",
        "anadil.cli.models.serve_manifest",
        "add_serve_manifest",
    ),
    "trace": Command(
        "trace a model back to every file that it was trained on", "anadil.cli.runs.trace", "add_trace"
    ),
    "remove": Command("remove a damaged or unneeded artifact", "anadil.cli.runs.remove", "add_remove"),
    "promote": Command(
        "move the registry's alias to a model that passed its gate",
        "anadil.cli.models.promote",
        "add_promote",
    ),
    "cluster": Command(
        "create, describe or delete a HyperPod cluster", "anadil.cli.cluster.hyperpod", "add_cluster"
    ),
    "doctor": Command(
        "check what a run needs, each line with its remedy", "anadil.cli.cluster.doctor", "add_doctor"
    ),
}
"""The whole command line, in the order of the help."""
CLEAN_VERBS = ("anadil.cli.stages.clean_verbs", "add_clean_verb")
JUDGE_VERBS = ("anadil.cli.stages.judge_verbs", "add_judge_verb")
STAGE_VERBS = {
    "clean": {
        "plan": Command(
            "estimate shards, memory, disk and CPU hours of a run",
            "anadil.cli.stages.clean_plan",
            "add_clean_plan",
        ),
        "explain": Command(
            "trace one input document through every step, to the rule that decided", *CLEAN_VERBS
        ),
        "diff": Command("what differs between two corpora, by rule and document", *CLEAN_VERBS),
        "verify": Command("verify a corpus against its manifest: digests, order, counts", *CLEAN_VERBS),
    },
    "tokenizer": {
        "inspect": Command(
            "how tokenizers cut a text, side by side", "anadil.cli.stages.tokenizer_verbs", "add_inspect"
        ),
    },
    "evaluate": {
        "judge-export": Command("pairs of answers for a judge, blind and in both orders", *JUDGE_VERBS),
        "judge-import": Command("what a judge's verdicts on those pairs say", *JUDGE_VERBS),
    },
}
"""Verbs of a stage's command, such as `anadil clean explain`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = next((i for i, word in enumerate(arguments) if word not in ("-v", "--verbose")), 0)
    if arguments[first:] in (["version"], ["help"]):
        arguments[first] = f"--{arguments[first]}"
    elif arguments[first : first + 1] == ["help"]:
        arguments = [*arguments[:first], *arguments[first + 1 :], "--help"]
    if not arguments[first:]:
        command_parser().print_help(sys.stderr)
        sys.exit(RecipeError.exit_code)
    verb = next(iter(arguments[first + 1 :]), "")
    _refuse_slip("anadil", arguments[first], [*COMMANDS, "help", "version"])
    if arguments[first] in STAGES:
        _refuse_slip(f"anadil {arguments[first]}", verb, [*STAGE_VERBS.get(arguments[first], {})])
    if arguments[first:] and verb in STAGE_VERBS.get(arguments[first], {}):
        options = verb_parser(arguments[first], verb).parse_args(arguments[first + 1 :])
        options.verbose = first > 0
        return _run(options)
    if arguments[first:] and arguments[first] in STAGES:
        from anadil.runtime.entry_point import main as run_stage

        name = arguments[first]
        verbs = "|".join(STAGE_VERBS.get(name, {}))
        also = f" Beside it: anadil {name} {verbs}, each with --help." if verbs else ""
        return run_stage(
            name, arguments[first + 1 :], prog=f"anadil {name}", verbose=first > 0, verbs=also,
            engines=_engines(name),
        )  # fmt: skip
    return _run(command_parser(arguments[first] if arguments[first:] else "").parse_args(arguments))


def _engines(stage: str) -> "Engines | None":
    """Engines of `clean` that drive pods; the other stages have none."""
    if stage != "clean":
        return None
    from anadil.launch.kubernetes.executors.engines import CLUSTER_ENGINES

    return CLUSTER_ENGINES


def _refuse_slip(prog: str, word: str, words: Sequence[str]) -> None:
    """End with the nearest of some words for one that is not among them; options are left alone."""
    if word in words or not word or word.startswith("-"):
        return
    from anadil.recipe.fields import did_you_mean

    if hint := did_you_mean(word, words):
        Parser(prog=prog).error(f"{word!r} is no command{hint}")


def _run(options: argparse.Namespace) -> int:
    from anadil.core import log as logs
    from anadil.runtime.termination import exit_code_of
    from anadil.runtime.threads import wait_asleep

    wait_asleep()
    logs.set_up(verbose=options.verbose)
    command: Callable[[argparse.Namespace], int] = options.command
    return exit_code_of(lambda: command(options))


def verb_parser(stage: str, asked: str) -> argparse.ArgumentParser:
    """The verbs of a stage, with the options of one."""
    top = Parser(prog=f"anadil {stage}")
    commands = top.add_subparsers(metavar="VERB", required=True)
    command = STAGE_VERBS[stage][asked]
    getattr(importlib.import_module(command.module), command.add)(asked, commands, command.help)
    return top


def command_parser(asked: str = "") -> argparse.ArgumentParser:
    """The whole command line; stages parse their own options (`anadil clean --help`).

    Args:
        asked: The command whose options are needed; no other's are loaded.
    """
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="anadil", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"anadil {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="log more")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if name == asked and command.module:
            getattr(importlib.import_module(command.module), command.add)(name, commands, command.help)
        else:
            commands.add_parser(name, help=command.help, add_help=False)
    return top


if __name__ == "__main__":
    sys.exit(main())
