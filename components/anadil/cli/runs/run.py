"""`anadil run`: the whole pipeline on this machine, and what it came to."""

import argparse
import json
import logging
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.cli import options as cli_options
from anadil.cli.output import print_table
from anadil.cli.runs.watch import watching
from anadil.core.candidates import BY_NAME, CANDIDATES
from anadil.core.errors import AnadilError
from anadil.core.format import DASH, human_figure, human_percent, number, one_line
from anadil.core.log import masked
from anadil.core.stage import ANSWERS, Stage
from anadil.core.stages import AWAITED, STAGES
from anadil.core.table import Table
from anadil.page.values import Json, candidates_of, field, list_of, table_of
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import TENSORBOARD, WANDB, tensorboard_folder, tracker
from anadil.report.verdict import gate_verdict, released_name, use_of
from anadil.runtime.entry_point import add_remake_option
from anadil.runtime.job import is_kept
from anadil.runtime.run_record import STOPPED, read_record, recipe_name, record_uri
from anadil.runtime.trackers import STATE
from anadil.runtime.tracking_spool import tracker_address

if TYPE_CHECKING:
    from anadil_pipelines.laptop import StepResults

log = logging.getLogger(__name__)


def add_run(command: argparse.ArgumentParser) -> None:
    """Add `anadil run`."""
    command.description = f"{command.description}; finished artifacts are reused"
    cli_options.add_recipe_argument(command, built_in=True)
    cli_options.add_work_option(command)
    cli_options.add_set_option(command)
    cli_options.add_runner_option(command)
    cli_options.add_until_option(command, "last stage to run (default: %(default)s)")
    add_remake_option(command)
    command.add_argument("--watch", action="store_true", help="show the run as a page in a browser meanwhile")
    cli_options.add_output_option(command)
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if options.remake:
        from anadil.runtime.lookup import allow_remake

        allow_remake()
    recipe = with_root(load_recipe(options.recipe, options.set), work_of(options))
    with watching(work_of(options)) if options.watch else nullcontext():
        return run_recipe(recipe, options).exit_code


def work_of(options: argparse.Namespace) -> Path:
    """The work directory that a command line names."""
    return Path(os.path.realpath(options.work))


def with_root(recipe: Recipe, work: Path) -> Recipe:
    """The recipe with the work directory as `storage.root`, where it names none."""
    if recipe.storage.root is not None:
        return recipe
    return recipe.model_copy(update={"storage": recipe.storage.model_copy(update={"root": str(work)})})


def run_recipe(recipe: Recipe, options: argparse.Namespace) -> "StepResults":
    """Check a recipe whose `storage.root` is set, run it on this machine, print its artifacts and what they come to."""
    work, stages = work_of(options), cli_options.stages_until(options.until)
    _check(recipe, stages, work, options)
    work.mkdir(parents=True, exist_ok=True)
    from anadil.plan.plan import plan_as_file
    from anadil.preflight.text_size import text_of
    from anadil.runtime.flow import flow_of
    from anadil_pipelines.laptop import run_here

    name = recipe_name(options.recipe)
    trains = STAGES["pretrain"] in stages and not is_kept(STAGES["pretrain"], recipe)
    files = plan_as_file(recipe, name, here=True, text=text_of(recipe)) if trains else {}
    steps = run_here(recipe, work, options.runner, options.until, name, files)
    if steps.exit_code in STOPPED:
        return steps  # the step has said so; nothing is to be corrected
    if steps.exit_code:
        log.error("%s", after_failure(str(recipe.storage.root), steps.run))
        return steps
    # Steps that wait for nothing, such as those of sources, run in no order of their own.
    words = [step.writes for step in flow_of(recipe, options.until)]
    result = {word: steps.uris[word] for word in words if word in steps.uris}
    if "report" in result:
        result["report"] = f"{result['report']}/report.html"
    print_table(result, options.output)
    sys.stdout.flush()  # so that the summary comes last on a terminal
    for line in summary_lines(recipe, steps.uris, f"sqlite:///{work}/mlflow.db", steps.spool):
        log.info("%s", line)
    return steps


def after_failure(root: str, run: str) -> str:
    """Return what to do after a step that failed."""
    if failure_of(root, run)[0] in AWAITED:
        # The same command would end as this one did.
        return "the champion stays as it is; the next retraining reads these files again, with those that came by then"
    return "a step failed; correct the cause and run the same command again to resume from there"


def failure_of(root: str, run: str) -> tuple[str, str]:
    """Return the step of a run that failed, and why; empty where its record does not say."""
    with suppress(AnadilError, OSError):
        steps = read_record(record_uri(root, run)).steps
        failed = [(name, step.message) for name, step in steps.items() if step.exit_code]
        return failed[-1] if failed else ("", "")
    return "", ""


def _check(recipe: Recipe, stages: Sequence[Stage], work: Path, options: argparse.Namespace) -> None:
    """Refuse in the first second what would fail after hours of training."""
    from anadil.preflight.checks import refuse
    from anadil.runtime.check import RUN, PlannedRun
    from anadil.runtime.flow import is_skipped

    runs = []
    for stage in stages:
        if is_kept(stage, recipe):
            continue
        if is_skipped(stage, recipe, options.until):
            if stage.per_source and (stage.compares or stage.per_source.key):
                # One body of text has nothing to be compared with, and nobody asked the base to write: no news.
                continue
            why = f"{stage.files.key} names no {stage.files.flag}"
            log.info(
                "%s: skipped, because %s", stage.name, f"{stage.only_if} is not set" if stage.only_if else why
            )
        else:
            runs.append(stage)
    extra = "pipelines" if options.runner == "docker" else "laptop"
    then = [stage.name for stage in stages]
    refuse(PlannedRun(by=RUN, recipe=recipe, stages=runs, then=then, work=work, extra=extra))


WIDTH = 100
PORT = 5000  # MLflow's own.
FIGURES: tuple[tuple[str, str, Callable[[float | int | None], str]], ...] = (
    ("bits_per_byte", "bits per byte", human_figure),
    ("fertility", "tokens per word", human_figure),
    ("questions.bits_per_byte", "unseen questions: answer, bits per byte", human_figure),
    ("questions.exact", "unseen questions: answered word for word", human_percent),
    ("seen_questions.exact", "trained questions: answered word for word", human_percent),
)
"""Path in a candidate's scores, label of the row, format of its cells."""


def summary_lines(
    recipe: Recipe, uris: Mapping[str, str], default_tracking: str, spool: Path | None = None
) -> Iterator[str]:
    """The last lines of a run with some artifacts, by kind; its sender notes the runs that it has made in the spool."""
    if "scores" in uris:
        place = join(uris["scores"], "scores.json")
        scores = table_of(json.loads(storage.store(place).read(place)))
        yield from figure_lines(scores)
        yield from textwrap.wrap(gate_verdict(scores), WIDTH)
        yield from _chat_lines(scores, uris)
    if "report" in uris:
        yield f"report: {uris['report']}/report.html"
    tracking = tracker_address(recipe, default=default_tracking)
    if tracking and tracker(tracking) == WANDB:
        yield from _wandb_lines(spool)
    elif tracking and tracker(tracking) == TENSORBOARD:
        yield f"tracking: tensorboard --logdir {shlex.quote(tensorboard_folder(tracking))}"
    elif tracking:
        yield from _tracking_lines(tracking, _page(spool))


def _chat_lines(scores: Json, uris: Mapping[str, str]) -> Iterator[str]:
    """A sample of the released model, and the command that asks each model; the last line is the released one's."""
    released = released_name(scores)
    named = [each.name for each in CANDIDATES if each.name in candidates_of(scores) and each.kind in uris]
    for name in sorted(named, key=lambda name: name == released):
        answers = use_of(scores, name) == ANSWERS
        if name == released:
            yield from _sample_lines(candidates_of(scores).get(name, {}), answers=answers)
        passed = field(scores, f"gate.verdicts.{BY_NAME[name].kind}.passed") is True
        head = "try it" if name == released else f"the {name} model{'' if passed else ', not released'}"
        # An adapted model continues texts, and most bases know no chats.
        yield f"{head}: anadil chat {shlex.quote(uris[BY_NAME[name].kind])}{'' if answers else ' --complete'}"


def _sample_lines(candidate: Json, *, answers: bool) -> Iterator[str]:
    from anadil.report.generations_view import sample_of  # needs Jinja2, which a bare install lacks

    if sample := sample_of(candidate, answers=answers):
        first, second = ("question", "answer") if answers else ("beginning", "continued")
        width = WIDTH - len(first) - 2
        yield f"{first}: {one_line(str(sample.get('prompt')), width)}"
        yield f"{second}: {one_line(str(sample.get('text')), width)}"


def _wandb_lines(spool: Path | None) -> Iterator[str]:
    """The run's page in W&B; of a run that was tracked offline, the command that sends it."""
    try:
        state = table_of(json.loads((spool / STATE).read_text(encoding="utf-8")) if spool else {})
    except (OSError, ValueError):
        return
    if state.get("page"):
        yield f"tracking: {state['page']}"
    elif state.get("files"):
        yield f"tracking: wandb sync {shlex.quote(str(state['files']))}"


def _tracking_lines(uri: str, page: str) -> Iterator[str]:
    if uri.startswith("arn:"):
        yield f"tracking: {uri}, which opens from the console of SageMaker{f', at {page}' if page else ''}"
    elif uri.startswith(("http://", "https://")):
        yield f"tracking: {masked(uri).rstrip('/')}{page}"
    else:
        # That of an environment which is not active by its path.
        beside = Path(sys.executable).with_name("mlflow")
        is_found = shutil.which("mlflow") == str(beside) or not beside.exists()
        command = "mlflow" if is_found else shlex.quote(str(beside))
        yield f"tracking: {command} ui --port {PORT} --backend-store-uri {shlex.quote(masked(uri))}"
        if page:
            yield f"  and then: http://127.0.0.1:{PORT}{page}"


def _page(spool: Path | None) -> str:
    """Path of the run's page; empty where the sender has made none."""
    try:
        sent = json.loads((spool / "sent.json").read_text(encoding="utf-8")) if spool else {}
    except (OSError, ValueError):
        return ""
    if not sent.get("parent") or not sent.get("experiment"):
        return ""
    # Without the last part the pages of MLflow 3 open as those of chat applications.
    return f"/#/experiments/{sent['experiment']}/runs/{sent['parent']}?workflowType=machine_learning"


def figure_lines(scores: Json) -> Iterator[str]:
    """A row for each figure that any candidate has, a column for each candidate."""
    candidates = candidates_of(scores)
    rows = []
    for path, label, say in FIGURES:
        values = [number(field(item, path)) for item in candidates.values()]
        if any(value is not None for value in values):
            rows.append((label, *(DASH if value is None else say(value) for value in values)))
        if path.endswith(".exact"):
            tables = [table_of(field(item, f"{path}_by_file")) for item in candidates.values()]
            files = sorted({file for each in tables for file in each})
            for file in files if len(files) > 1 else ():
                counts = (list_of(each.get(file)) for each in tables)
                rows.append((f"  of {file}", *(" of ".join(map(str, each)) or DASH for each in counts)))
    yield from Table("Scores", ("", *candidates), rows).lines()
