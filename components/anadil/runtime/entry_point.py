"""Start of a stage: command line, input of Kubeflow Pipelines, exit code."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from anadil import __version__
from anadil.core import log as logs
from anadil.core.imports import load_module
from anadil.core.stage import Stage
from anadil.core.stages import BUILT_IN, PER_SOURCE, STAGES
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import kfp, sagemaker
from anadil.runtime.command_line import Parser
from anadil.runtime.environment import in_group
from anadil.runtime.execute import execute, find_for_group
from anadil.runtime.flow import Step, named_inputs, recipe_of_step, refuse_missing
from anadil.runtime.job import Engines, most_processes
from anadil.runtime.lookup import allow_remake
from anadil.runtime.run_record import record_step
from anadil.runtime.signals import Stop, die_with_parent
from anadil.runtime.termination import exit_code_of, repeat_end
from anadil.runtime.threads import wait_asleep
from anadil.runtime.tracking_spool import PIPELINE_RUN

log = logging.getLogger(__name__)


def main(
    name: str, argv: Sequence[str] | None = None, prog: str = "", *, verbose: bool = False, verbs: str = "",
    engines: Engines | None = None,
) -> int:  # fmt: skip
    """Run one stage from its command line and return the exit code.

    Args:
        argv: Its options; left out, those of this process.
        prog: What the help calls the program; left out, this is a container.
        verbs: What the help says of commands beside the stage.
        engines: Engines of `clean` that need more rooms than the stage may know.
    """
    stage = STAGES[name]
    arguments = list(sys.argv[1:] if argv is None else argv)
    wait_asleep()
    # The image clean-ray starts `clean` by a module of its own.
    module = f"python -m anadil.launch.{name}" if engines else ""
    options = stage_parser(stage, prog or module, verbs).parse_args(arguments)
    logs.set_up(name, container=not prog, verbose=verbose)
    return exit_code_of(lambda: _start(stage, options, arguments, engines))


def stage_parser(stage: Stage, prog: str = "", verbs: str = "") -> argparse.ArgumentParser:
    """The command line of a stage: a recipe, a URI for each input, one for the output."""
    built = Parser(
        prog=prog or f"python -m anadil.{stage.name}",
        description=f"{stage.name}: {stage.summary}",
        epilog="Prints the URI of the artifact. A finished artifact is reused." + verbs,
    )
    add_recipe_options(built)
    for word in stage.words:
        text = f"{word} artifact to read{' (optional)' if stage.may_lack(word) else ''}"
        add_input_option(built, word, text)
    if stage.per_source:
        add_source_option(built)
    if stage.files.flag:
        text = f"files, globs, s3:// or hf:// URIs to read; left out, the recipe's {stage.files.key}"
        built.add_argument(f"--{stage.files.flag}", metavar="URI", nargs="+", default=[], help=text)
    text = "where to write the artifact; left out, a place under storage.root"
    built.add_argument("--out", metavar="URI", help=text)
    if stage.costly:
        add_remake_option(built)
    text = "what Kubeflow Pipelines passes instead of the options above"
    built.add_argument("--executor-input", metavar="JSON", help=text)
    text = "load everything that the stage needs, say so and exit"
    built.add_argument("--self-test", action="store_true", help=text)
    return built


def add_input_option(built: argparse.ArgumentParser, word: str, text: str) -> None:
    """Option of an artifact to read, which names one for each source where a recipe has `sources`."""
    many = word in PER_SOURCE
    text = f"{text}; SOURCE=URI for each, where the recipe has sources" if many else text
    built.add_argument(
        f"--{word}", metavar="[SOURCE=]URI" if many else "URI", action="append", default=[], help=text
    )


def add_source_option(built: argparse.ArgumentParser) -> None:
    """`--source`, of which the stage of a recipe with sources works on one."""
    text = "source of the recipe that the stage works on, where the recipe has `sources`"
    # `anadil clean explain` has a positional SOURCE.
    built.add_argument("--source", dest="of_source", metavar="NAME", default="", help=text)


def add_recipe_options(built: argparse.ArgumentParser) -> None:
    """`--recipe` and `--set`, the same in every command."""
    text = f"recipe file, or the name of a shipped recipe (default: {BUILT_IN})"
    built.add_argument("--recipe", default=BUILT_IN, metavar="RECIPE", help=text)
    text = "override one key of the recipe, such as pretrain.batch_size=8"
    built.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_remake_option(built: argparse.ArgumentParser) -> None:
    """`--remake`, the same in every command that may train."""
    text = "train again, although another version of the program has made this model"
    built.add_argument("--remake", action="store_true", help=text)


def _start(stage: Stage, options: argparse.Namespace, arguments: list[str], engines: Engines | None) -> int:
    if options.self_test:
        load_module(f"anadil.{stage.name}.run")
        print(f"anadil {__version__} {stage.name}: ready")
        return 0
    ended = repeat_end()
    if ended is not None:
        return ended
    # From here on, so that process 1 of a container, which has no default, also stops while it loads.
    Stop().listen()
    die_with_parent()
    if stage.costly and options.remake:
        allow_remake()
    if options.executor_input:
        return _from_pipeline(stage, options.executor_input, arguments, engines)
    # The words of inputs follow from the whole recipe, which the step does not see.
    whole = load_recipe(options.recipe, options.set)
    files = getattr(options, stage.files.flag) if stage.files.flag else []
    recipe, source = recipe_of_step(stage, whole, options.of_source if stage.per_source else "", files)
    logs.name_speaker(Step(stage=stage, source=source).name)
    inputs = named_inputs(stage, whole, {word: getattr(options, word) for word in stage.words}, source)
    processes = _num_processes(stage, recipe)
    made = None
    has_rendezvous = _has_rendezvous(stage)
    if processes > 1 and not has_rendezvous:
        made = find_for_group(stage, recipe, inputs, files, options.out)
    # Several nodes look after they have met: one that came late would find what another run has just made and end,
    # while the others wait for it.
    if made is None and (processes > 1 or has_rendezvous):
        return _under_torchrun(stage, arguments, processes)
    made = made or execute(stage, recipe, inputs, files, options.out, engines)
    if int(os.environ.get("RANK", "0")) == 0:
        print(made.uri)
    return 0


def _num_processes(stage: Stage, recipe: Recipe) -> int:
    if not stage.training or in_group():
        return 1
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        num_gpus = min(num_gpus, sum(name.strip() not in ("", "-1") for name in visible.split(",")))
    count = recipe.cluster.processes_per_node or max(1, num_gpus)
    return min(count, most_processes(stage, recipe))


def _has_rendezvous(stage: Stage) -> bool:
    """Return whether the platform names the meeting point of a job's nodes, in torchrun's own variables."""
    if not stage.training or in_group():
        return False
    os.environ.update(sagemaker.rendezvous())
    return "PET_RDZV_ENDPOINT" in os.environ or "PET_MASTER_ADDR" in os.environ


def _under_torchrun(stage: Stage, arguments: list[str], processes: int) -> int:
    from anadil.runtime.torchrun import launch_group  # loads torch

    return launch_group(f"anadil.{stage.name}", arguments, processes)


def _from_pipeline(stage: Stage, text: str, arguments: list[str], engines: Engines | None) -> int:
    call = kfp.parse_executor_input(stage, text)
    whole = load_recipe(call.recipe)
    recipe, source = recipe_of_step(stage, whole, call.source)
    logs.name_speaker(Step(stage=stage, source=source).name)
    if call.run:
        os.environ[PIPELINE_RUN] = call.run
    is_first = int(os.environ.get("RANK", "0")) == 0
    with record_step(whole, call.run if is_first else "", call.step) as record:
        refuse_missing(stage, whole, call.inputs, source)
        processes = _num_processes(stage, recipe)
        made = find_for_group(stage, recipe, call.inputs, (), None) if processes > 1 else None
        if processes > 1 and made is None:
            record.exit_code = _under_torchrun(stage, arguments, processes)
            return record.exit_code
        made = made or execute(stage, recipe, call.inputs, (), None, engines)
        record.uri, record.figures = made.uri, made.manifest.figures
        if is_first:
            kfp.write_outputs(stage, call.outputs, made.uri, made.manifest)
    return 0
