"""The command line: `anadil COMMAND`, verbs in the order of the flow.

Nothing heavy is imported before a command needs it. stdout carries results, stderr messages.
"""

import argparse
import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil import __version__
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

LATER = {
    "submit": ("anadil_pipelines.commands", "start a run on Kubeflow Pipelines"),
    "schedule": ("anadil_pipelines.commands", "start a run again and again, by the clock"),
    "launch": ("anadil.cli.launch", "start one training stage on a cluster and follow it"),
    "status": ("anadil.cli.launch", "where a launched job stands"),
    "logs": ("anadil.cli.launch", "the log of a launched job's first machine"),
    "stop": ("anadil.cli.launch", "end a launched job; what it saved stays"),
    "export": ("anadil.cli.export", "a checkpoint of pretrain as a model directory"),
    "remove": ("anadil.cli.remove", "take away an artifact that is damaged or not needed"),
    "promote": ("anadil.cli.promote", "move the registry's alias to a model that passed its gate"),
    "cluster": ("anadil.cli.hyperpod", "create, describe or delete a HyperPod cluster"),
}
"""Command -> the module that knows its options, and its help line."""

WORK = "anadil-work"
"""Default directory of `anadil run`."""


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
    from anadil.runtime import entry_point
    from anadil.runtime.threads import wait_asleep

    wait_asleep()
    logs.set_up(verbose=options.verbose)
    command: Callable[[argparse.Namespace], int] = options.command
    return entry_point.guarded(lambda: command(options))


def parser(asked: str = "") -> argparse.ArgumentParser:
    """The whole command line; stages parse their own options (`anadil clean --help`).

    Args:
        asked: The command whose options are needed; those of `LATER` are loaded for it alone.
    """
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="anadil", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"anadil {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="say more")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    for stage in FLOW:
        commands.add_parser(stage.name, help=f"one stage: {stage.summary}", add_help=False)
    _add_recipe(commands)
    _add_plan(commands)
    _add_compile(commands)
    for name, (module, text) in LATER.items():
        if name == asked:
            importlib.import_module(module).add(name, commands, text)
        else:
            commands.add_parser(name, help=text, add_help=False)
    _add_doctor(commands)
    return top


def _add_run(commands: Any) -> None:
    text = "run the whole pipeline on this machine"
    run = commands.add_parser("run", help=text, description=f"{text}; what is made already is reused")
    run.add_argument("recipe", nargs="?", default=BUILT_IN, metavar="RECIPE", help=f"default: {BUILT_IN}")
    run.add_argument(
        "--work", default=WORK, metavar="DIR", help="where everything is written (default: %(default)s)"
    )
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the recipe"
    )
    text = "steps as processes of this Python, or in their images (default: %(default)s)"
    run.add_argument("--runner", choices=["process", "docker"], default="process", help=text)
    run.add_argument(
        "--until", choices=list(STAGES), default="report", metavar="STAGE", help="last stage to run"
    )
    text = "train again, though a model of the same recipe and inputs is there that another program made"
    run.add_argument("--remake", action="store_true", help=text)
    _add_output(run)
    run.set_defaults(command=_run)


def _add_recipe(commands: Any) -> None:
    recipe = commands.add_parser("recipe", help="list, copy, show and check recipes")
    verbs = recipe.add_subparsers(metavar="VERB", required=True)
    listed = verbs.add_parser("list", help="the shipped recipes")
    _add_output(listed)
    listed.set_defaults(command=_recipe_list)
    copy = verbs.add_parser("copy", help="a shipped recipe as a file of your own")
    copy.add_argument("name", metavar="NAME")
    copy.add_argument("file", metavar="FILE", type=Path)
    copy.set_defaults(command=_recipe_copy)
    show = verbs.add_parser("show", help="a recipe with every default filled in")
    show.add_argument("recipe", metavar="RECIPE")
    show.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    show.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml")
    show.set_defaults(command=_recipe_show)
    check = verbs.add_parser("check", help="every mistake of a recipe, with line and remedy")
    check.add_argument("recipe", metavar="RECIPE")
    check.set_defaults(command=_recipe_check)
    schema = verbs.add_parser("schema", help="JSON Schema of a recipe, for editors")
    schema.set_defaults(command=_recipe_schema)


def _add_plan(commands: Any) -> None:
    text = "memory, speed, time and cost of a training run, before a machine is rented"
    plan = commands.add_parser("plan", help=text, description=text)
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
    _add_output(plan)
    plan.set_defaults(command=_plan)


def _positive(text: str) -> int:
    """A count as people write it: 2500000000 or 2.5e9."""
    number = float(text)
    if not 1 <= number < 1e18 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is no positive whole number")
    return int(number)


def _add_compile(commands: Any) -> None:
    compiled = commands.add_parser("compile", help="the pipeline for Kubeflow Pipelines, as a file")
    compiled.add_argument("recipe", metavar="RECIPE")
    compiled.add_argument(
        "-f", "--file", required=True, type=Path, metavar="FILE", help="such as pipeline.yaml"
    )
    compiled.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    compiled.set_defaults(command=_compile)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check what a run needs, each line with its remedy")
    doctor.add_argument("recipe", nargs="?", default=BUILT_IN, metavar="RECIPE", help=f"default: {BUILT_IN}")
    text = "look at the cluster of your Kubernetes context too (or of the pod that this runs in)"
    doctor.add_argument("--cluster", action="store_true", help=text)
    text = "Kubeflow Pipelines' API (default: KF_PIPELINES_ENDPOINT)"
    doctor.add_argument("--kubeflow-host", metavar="URL", help=text)
    doctor.add_argument("--work", default=WORK, metavar="DIR", help="default: %(default)s")
    doctor.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    _add_output(doctor)
    doctor.set_defaults(command=_doctor)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="default: %(default)s"
    )


def _run(options: argparse.Namespace) -> int:
    from anadil.artifacts.storage import check_directory
    from anadil.cli.doctor.local import missing_packages
    from anadil.core.errors import INTERRUPTED, PreflightError, Stopped
    from anadil.plan.instances import ram_bytes
    from anadil.preflight.inputs import look_at_base, look_at_clean_memory, look_at_files
    from anadil.recipe.load import load_recipe
    from anadil.runtime.job import is_left_out
    from anadil.runtime.remake import allow_remake

    if options.remake:
        allow_remake()
    recipe = load_recipe(options.recipe, options.set)
    work = Path(os.path.realpath(options.work))
    check_directory(work, "--work")
    if recipe.storage.root and "://" not in recipe.storage.root:
        check_directory(Path(recipe.storage.root), "storage.root")
    names = list(STAGES)
    stages = [STAGES[name] for name in names[: names.index(options.until) + 1]]
    for stage in stages:
        if options.until != "finetune" and is_left_out(stage, recipe):
            log.info("finetune: left out, because finetune.inputs names no chats")
            continue
        if stage.files:  # what is wrong with it should be told now, not after hours of training
            look_at_files(stage, recipe).say()
    look_at_clean_memory(recipe, ram_bytes()).say(logging.INFO)
    if any("base" in stage.sections for stage in stages):
        look_at_base(recipe).say()
    if STAGES["pretrain"] in stages:
        from anadil.plan.preflight import check_fits

        log.debug("%s", check_fits(recipe, here=True, finetunes=STAGES["finetune"] in stages))
    absent = missing_packages("pipelines" if options.runner == "docker" else "laptop")
    if absent:
        raise PreflightError(f"not installed: {', '.join(absent)}; run pip install 'anadil[laptop]'")
    if recipe.storage.root is None:
        storage = recipe.storage.model_copy(update={"root": str(work)})
        recipe = recipe.model_copy(update={"storage": storage})
    work.mkdir(parents=True, exist_ok=True)
    from anadil_pipelines.laptop import run_here

    steps = run_here(recipe, work, options.runner, options.until)
    if steps.exit_code in (INTERRUPTED, Stopped.exit_code):
        return steps.exit_code  # the step has said so; nothing is to be corrected
    if steps.exit_code:
        log.error("stopped at a failed step; correct it and run the same command again to go on from there")
        return steps.exit_code
    result = dict(steps.uris)
    if "report" in result:
        result["report"] = f"{result['report']}/report.html"
    _print_table(result, options.output)
    return 0


def _recipe_list(options: argparse.Namespace) -> int:
    from anadil.recipe.load import shipped

    recipes = {path.stem: _first_line(path) for path in shipped()}
    _print_table(recipes, options.output)
    return 0


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def _recipe_copy(options: argparse.Namespace) -> int:
    from anadil.core.errors import RecipeError
    from anadil.recipe.load import find

    source = find(options.name)
    if options.file.exists():
        raise RecipeError(f"{options.file}: exists already; choose another name or remove it")
    options.file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, options.file)
    log.info("%s written; edit it, then run: anadil recipe check %s", options.file, options.file)
    print(options.file)
    return 0


def _recipe_show(options: argparse.Namespace) -> int:
    import yaml

    from anadil.recipe.load import load_recipe

    data = load_recipe(options.recipe, options.set).model_dump(mode="json")
    if options.output == "json":
        print(json.dumps(data, ensure_ascii=False, indent=2))
    else:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return 0


def _recipe_check(options: argparse.Namespace) -> int:
    from anadil.recipe.load import load_recipe

    load_recipe(options.recipe)
    print(f"{options.recipe}: no mistakes")
    return 0


def _recipe_schema(options: argparse.Namespace) -> int:  # noqa: ARG001  every command takes its options
    from anadil.recipe.sections import Recipe

    print(json.dumps(Recipe.model_json_schema(), ensure_ascii=False, indent=2))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from anadil.cli.plan import plan

    return plan(options)


def _compile(options: argparse.Namespace) -> int:
    from anadil.cli.doctor.local import missing_packages
    from anadil.core.errors import PreflightError
    from anadil.recipe.load import load_recipe

    recipe = load_recipe(options.recipe, options.set)
    absent = missing_packages("pipelines")
    if absent:
        raise PreflightError(f"not installed: {', '.join(absent)}; run pip install 'anadil[pipelines]'")
    from anadil_pipelines.adapt import write_pipeline
    from anadil_pipelines.resources import with_clean_memory

    write_pipeline(with_clean_memory(recipe), options.file)
    if recipe.storage.root is None:
        log.warning("storage.root is not set; a cluster needs one that every step reaches, such as s3://...")
    print(options.file)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from anadil.cli.doctor.local import examine
    from anadil.core.errors import PreflightError

    if options.cluster:
        checks = _examine_cluster(options)
    else:
        checks = examine(options.recipe, options.set, Path(os.path.realpath(options.work)))
    if options.output == "json":
        print(json.dumps([check.as_dict() for check in checks], ensure_ascii=False, indent=2))
    else:
        for check in checks:
            print(check.as_text())
    return PreflightError.exit_code if any(check.status == "failed" for check in checks) else 0


def _examine_cluster(options: argparse.Namespace) -> "list[Check]":
    from anadil.cli.doctor.cluster import examine_cluster
    from anadil.recipe.load import load_recipe

    return examine_cluster(load_recipe(options.recipe, options.set), kubeflow_host=options.kubeflow_host)


def _print_table(rows: dict[str, str], output: str) -> None:
    if output == "json":
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    width = max(map(len, rows), default=0)
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    sys.exit(main())
