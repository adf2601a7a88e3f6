"""The command line: `anadil COMMAND`, verbs in the order of the flow.

Nothing heavy is imported before a command needs it. stdout carries results, stderr messages.
"""

import argparse
import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anadil.core.errors import RecipeError
from anadil.core.stages import FLOW, STAGES
from anadil.runtime.command_line import Parser

DESCRIPTION = (
    "Adapt a foundation model to a low-resource language: raw text in, an adapted model and a report out.\n\n"
)
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
    module: str = ""  # Module below `anadil.cli` with the command.
    add: str = ""
    """Function of the module that gives the parser of the command its options and its function."""

    def add_to(self, commands: Any, name: str) -> None:
        """Load the command and add it with its options."""
        module = importlib.import_module(f"anadil.cli.{self.module}")
        getattr(module, self.add)(commands.add_parser(name, help=self.help, description=self.help))


COMMANDS = {
    "run": Command("run the whole pipeline on this machine", "runs.run", "add_run"),
    **{stage.name: Command(f"one stage: {stage.summary}") for stage in FLOW},
    "retrain": Command("teach the champion the text and chats that came since", "runs.retrain", "add_retrain"),
    "watch": Command("show runs as pages in a browser, while they run and after", "runs.watch", "add_watch"),
    "list": Command("list the runs of a work directory and of a store", "runs.finished", "add_list"),
    "compare": Command("compare two runs: recipes and scores, with paired intervals", "runs.finished", "add_compare"),
    "recipe": Command("list, copy, show and check recipes", "runs.recipe", "add_recipe"),
    "corpus": Command("import a corpus that is clean already", "stages.clean_verbs", "add_corpus"),
    "language": Command("learn a language pack from text", "stages.language", "add_language"),
    "judge": Command("compare two candidates by people who do not see which is which", "stages.judge_verbs", "add_judge"),
    "bases": Command("compare candidates for the base on the recipe's text", "runs.bases", "add_bases"),
    "plan": Command("estimate memory, speed, time and cost of a training run", "runs.plan", "add_plan"),
    "compile": Command("compile the pipeline to a file for Kubeflow Pipelines", "cluster.submit", "add_compile"),
    "submit": Command("start a run on Kubeflow Pipelines", "cluster.submit", "add_submit"),
    "schedule": Command("start runs on a cron schedule", "cluster.submit", "add_schedule"),
    "launch": Command("start one training stage on a cluster and follow it", "cluster.launch", "add_launch"),
    "status": Command("show the state of a launched job", "cluster.launch", "add_status"),
    "logs": Command("show the log of a launched job's first worker", "cluster.launch", "add_logs"),
    "stop": Command("stop a launched job; its checkpoints stay", "cluster.launch", "add_stop"),
    "chat": Command("talk to a finished model, in the terminal or through a pipe", "models.chat", "add_chat"),
    "export": Command("write a model, adapter or checkpoint as files that servers load", "models.export", "add_export"),
    "trace": Command("trace a model back to every file that it was trained on", "runs.finished", "add_trace"),
    "remove": Command("remove a damaged or unneeded artifact", "runs.finished", "add_remove"),
    "promote": Command("move the registry's alias to a model that passed its gate", "models.promote", "add_promote"),
    "rollback": Command("make the version `previous` the registry's champion again", "models.promote", "add_rollback"),
    "doctor": Command("check what a run needs, each line with its remedy", "cluster.doctor", "add_doctor"),
}  # fmt: skip
"""The whole command line, in the order of the help."""
STAGE_VERBS = {
    "clean": {
        "plan": Command("estimate shards, memory, disk and CPU hours of a run", "stages.clean_verbs", "add_clean_plan"),
        "explain": Command("trace one input document through every step, to the rule that decided", "stages.clean_verbs", "add_explain"),
        "diff": Command("compare two corpora, by rule and document", "stages.clean_verbs", "add_diff"),
        "teach": Command("learn a classifier of good text from labels", "stages.teach_verb", "add_teach"),
        "verify": Command("verify a corpus against its manifest: digests, order, counts", "stages.clean_verbs", "add_verify"),
    },
    "tokenizer": {
        "inspect": Command("show how tokenizers cut a text, side by side", "stages.tokenizer_verbs", "add_inspect"),
    },
    "tasks": {
        "list": Command("list the benchmarks that a language has, with what each measures", "stages.task_verbs", "add_list"),
        "fetch": Command("fetch the data of a recipe's tasks, for machines without network", "stages.task_verbs", "add_fetch"),
    },
}  # fmt: skip
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
    name, verb = arguments[first], next(iter(arguments[first + 1 :]), "")
    _refuse_slip("anadil", name, [*COMMANDS, "help", "version"])
    if name.startswith("-"):  # ends here: the imports of `_run` would double the time of --help
        command_parser(name).parse_args(arguments)
    if name not in STAGES:
        return _run(lambda: command_parser(name).parse_args(arguments), verbose=first > 0)
    verbs = STAGE_VERBS.get(name, {})
    _refuse_slip(f"anadil {name}", verb, [*verbs])
    if verb in verbs:
        return _run(lambda: verb_parser(name, verb).parse_args(arguments[first + 1 :]), verbose=first > 0)
    from anadil.runtime.entry_point import main as run_stage

    also = f" Beside it: anadil {name} {'|'.join(verbs)}, each with --help." if verbs else ""
    more: dict[str, Any] = {}
    if name == "clean":  # which alone has engines that drive pods
        from anadil.launch.clean import CLUSTER_ENGINES

        more["engines"] = CLUSTER_ENGINES
    return run_stage(
        name, arguments[first + 1 :], prog=f"anadil {name}", verbose=first > 0, verbs=also, **more
    )


def _refuse_slip(prog: str, word: str, words: Sequence[str]) -> None:
    """End with the nearest of some words for one that is not among them; options are left alone."""
    if word in words or not word or word.startswith("-"):
        return
    from anadil.recipe.fields import did_you_mean

    if hint := did_you_mean(word, words):
        Parser(prog=prog).error(f"{word!r} is not a command{hint}")


def _run(parsed: Callable[[], argparse.Namespace], *, verbose: bool) -> int:
    from anadil.core import log as logs
    from anadil.core.install import require_packages
    from anadil.runtime.termination import exit_code_of
    from anadil.runtime.threads import wait_asleep

    wait_asleep()
    logs.set_up(verbose=verbose)

    def work() -> int:
        options = parsed()
        require_packages(getattr(options, "needs", ""))
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)

    return exit_code_of(work)


def verb_parser(stage: str, asked: str) -> argparse.ArgumentParser:
    """The verbs of a stage, with the options of one."""
    top = Parser(prog=f"anadil {stage}")
    STAGE_VERBS[stage][asked].add_to(top.add_subparsers(metavar="VERB", required=True), asked)
    return top


def command_parser(asked: str = "") -> argparse.ArgumentParser:
    """The whole command line with the options of one command; stages parse their own (`anadil clean --help`)."""
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="anadil", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    top.add_argument("--version", action=_Version, nargs=0, help="show version, commit and digest")
    top.add_argument("-v", "--verbose", action="store_true", help="log more")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if name == asked and command.module:
            command.add_to(commands, name)
        else:
            commands.add_parser(name, help=command.help, add_help=False)
    return top


class _Version(argparse.Action):
    """Prints a line that takes git and the digest of all sources, so it is made when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from anadil.core.build import version_line

        print(version_line())
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
