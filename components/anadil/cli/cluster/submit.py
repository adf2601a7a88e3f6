"""`anadil submit` and `anadil schedule`, which load kfp only when they run."""

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.cli.options import add_output_option, add_recipe_argument, add_retrain_option, add_set_option
from anadil.cli.output import print_table
from anadil.core.errors import RecipeError
from anadil.core.stages import FLOW
from anadil.preflight.checks import refuse
from anadil.preflight.this_machine import require_packages
from anadil.recipe.load import load_recipe
from anadil.runtime.check import COMPILE, PlannedRun
from anadil.runtime.entry_point import add_remake_option
from anadil.runtime.job import is_left_out
from anadil.runtime.lookup import allow_remake

if TYPE_CHECKING:
    from anadil_pipelines.server import Kubeflow
    from anadil_pipelines.submit import Requests, Submission
log = logging.getLogger(__name__)
EXPERIMENT = "anadil"


def add_compile(command: argparse.ArgumentParser) -> None:
    """Add `anadil compile`."""
    add_recipe_argument(command)
    command.add_argument(
        "-f", "--file", required=True, type=Path, metavar="FILE", help="file to write, such as pipeline.yaml"
    )
    add_set_option(command)
    add_retrain_option(command)
    command.set_defaults(command=_compile)


def _compile(options: argparse.Namespace) -> int:
    recipe = load_recipe(options.recipe, options.set)
    require_packages("pipelines")
    from anadil_pipelines.adapt import write_pipeline
    from anadil_pipelines.steps import with_clean_workers
    from anadil_pipelines.submit import with_retrain

    recipe = with_retrain(recipe) if options.retrain else recipe
    stages = [stage for stage in FLOW if not is_left_out(stage, recipe)]
    refuse(PlannedRun(by=COMPILE, recipe=recipe, stages=stages, here=False))
    write_pipeline(with_clean_workers(recipe), options.file, retrains=options.retrain)
    if recipe.storage.root is None:
        log.warning("storage.root is not set; a cluster needs one that every step reaches, such as s3://...")
    print(options.file)
    return 0


def add_submit(parser: argparse.ArgumentParser) -> None:
    """Add the options of `anadil submit`."""
    _add_common(parser)
    text = "name of the run (default: that of the recipe, and the time)"
    parser.add_argument("--name", metavar="NAME", help=text)
    text = "start a run even if the same one is still running"
    parser.add_argument("--again", action="store_true", help=text)
    add_remake_option(parser)
    text = "upload a version of the pipeline for the pages of Kubeflow, and start nothing"
    parser.add_argument("--upload-only", action="store_true", help=text)
    text = "follow the run to its end, print the states of its steps, and exit with the code of a failed one"
    parser.add_argument("--follow", action="store_true", help=text)
    parser.set_defaults(command=submit_command)


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Add the options of `anadil schedule`."""
    _add_common(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the recurring run (default: the recipe's)")
    what = parser.add_mutually_exclusive_group(required=True)
    text = "minute hour day month weekday, such as '0 3 * * 0'; in UTC, unless the server is set otherwise"
    what.add_argument("--cron", metavar="CRON", help=text)
    what.add_argument("--disable", action="store_true", help="start no more runs, but keep the schedule")
    what.add_argument("--enable", action="store_true", help="start runs again")
    what.add_argument("--remove", action="store_true", help="delete the schedule")
    parser.set_defaults(command=schedule_command)


def submit_command(options: argparse.Namespace) -> int:
    """Run `anadil submit`; return its exit code."""
    require_packages("pipelines")
    from anadil_pipelines import submit
    from anadil_pipelines.server import follow

    if options.remake:
        allow_remake()
    submission = _prepare(options, options.name or submit.new_name(Path(options.recipe).stem))
    if options.dry_run:
        return _show(submission, submit.requests_of_run(submission), options.output)
    server = _server(options)
    if options.upload_only:
        submit.upload(server, submission)
        print_table({"version": submission.version}, options.output)
        return 0
    run = submit.submit(server, submission, again=options.again)
    print_table({"run": run, "page": server.link(f"runs/details/{run}")}, options.output)
    if options.follow:
        sys.stdout.flush()
        return follow(server, submission.recipe, run, retrains=options.retrain)
    return 0


def schedule_command(options: argparse.Namespace) -> int:
    """Run `anadil schedule`; return its exit code."""
    require_packages("pipelines")
    from anadil_pipelines import submit

    name = options.name or Path(options.recipe).stem
    if options.cron is None:
        return _change(options, name)
    cron = submit.kubeflow_cron(options.cron)
    submission = _prepare(options, name)
    if options.dry_run:
        return _show(submission, submit.requests_of_schedule(submission, cron), options.output)
    server = _server(options)
    made = submit.schedule(server, submission, cron)
    log.info("cron %s (seconds first), in UTC unless the server's CRON_SCHEDULE_TIMEZONE differs", cron)
    page = server.link(f"recurringrun/details/{made}")
    print_table({"recurring_run": made, "version": submission.version, "page": page}, options.output)
    return 0


def _show(submission: "Submission", requests: "Requests", output: str) -> int:
    from anadil_pipelines import submit

    if output == "yaml":
        sys.stdout.write(submit.render_requests(requests, submission.pipeline))
    else:
        print_table(submit.summary(submission, requests), output)
    return 0


def _change(options: argparse.Namespace, name: str) -> int:
    from anadil_pipelines import submit

    verb = "disable" if options.disable else "enable" if options.enable else "delete"
    if options.dry_run:
        sys.stdout.write(submit.dry_run_change(name, verb))
        return 0
    changed = submit.change(_server(options), options.experiment, name, verb)
    print_table({"recurring_run": " ".join(changed), "done": f"{verb}d"}, options.output)
    return 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_recipe_argument(parser)
    add_set_option(parser)
    text = "print what would be sent, and send nothing; -o yaml prints the requests and the pipeline whole"
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = (
        "address of Kubeflow Pipelines (default: KF_PIPELINES_ENDPOINT, the pod's cluster, or the kubeconfig)"
    )
    parser.add_argument("--host", metavar="URL", help=text)
    text = "namespace of the runs, on a server for several users"
    parser.add_argument("--namespace", metavar="NAME", help=text)
    text = "experiment that holds the runs (default: %(default)s)"
    parser.add_argument("--experiment", default=EXPERIMENT, metavar="NAME", help=text)
    text = "ServiceAccount of the steps, whose AWS role reads and writes storage.root (default: the server's)"
    parser.add_argument("--service-account", metavar="NAME", help=text)
    add_retrain_option(parser)
    add_output_option(
        parser,
        "table",
        "json",
        "yaml",
        text="format of the output, yaml of --dry-run alone (default: %(default)s)",
    )


def _prepare(options: argparse.Namespace, name: str) -> "Submission":
    from anadil_pipelines.submit import SubmitOptions, prepare

    submit_options = SubmitOptions(
        name=name, experiment=options.experiment, namespace=options.namespace,
        service_account=options.service_account, retrains=options.retrain,
    )  # fmt: skip
    if options.output == "yaml" and not options.dry_run:
        raise RecipeError("-o yaml: prints what --dry-run would send; add --dry-run, or give -o json")
    return prepare(load_recipe(options.recipe, options.set), submit_options, dry=options.dry_run)


def _server(options: argparse.Namespace) -> "Kubeflow":
    from anadil_pipelines.server import Kubeflow

    return Kubeflow(options.host, options.namespace)
