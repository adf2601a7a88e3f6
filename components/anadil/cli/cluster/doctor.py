"""`anadil doctor`: check what a run needs, each line with its remedy."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from anadil.cli.options import add_output_option, add_recipe_argument, add_set_option, add_work_option
from anadil.cli.output import print_result
from anadil.core.errors import AnadilError, PreflightError
from anadil.preflight.checks import report, report_machine
from anadil.recipe.load import load_recipe
from anadil.runtime.check import DOCTOR, CheckResult, PlannedRun, failed_by, passed


def add_doctor(command: argparse.ArgumentParser) -> None:
    """Add `anadil doctor`."""
    add_recipe_argument(command, built_in=True)
    text = "check the cluster of your Kubernetes context, or of this pod, instead of this machine"
    command.add_argument("--cluster", action="store_true", help=text)
    text = "address of Kubeflow Pipelines (default: KF_PIPELINES_ENDPOINT)"
    command.add_argument("--kubeflow-host", metavar="URL", help=text)
    add_work_option(command)
    add_set_option(command)
    add_output_option(command)
    command.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.cluster:
        from anadil.launch.kubernetes.checks import run_cluster_checks

        recipe = load_recipe(options.recipe, options.set)
        results = run_cluster_checks(recipe, kubeflow_host=options.kubeflow_host)
    else:
        results = _results_here(options)
    lines = (line for result in results for line in result.as_lines())
    print_result([asdict(result) for result in results], lines, options.output)
    return PreflightError.exit_code if any(result.status == "failed" for result in results) else 0


def _results_here(options: argparse.Namespace) -> list[CheckResult]:
    work = Path(os.path.realpath(options.work))
    try:
        recipe = load_recipe(options.recipe, options.set)
    except AnadilError as error:
        return [failed_by("recipe", error, "edit the recipe, or --set"), *report_machine(work)]
    # A recipe of a cluster may name places that its pods alone see.
    here = not recipe.cluster.volumes
    return [
        passed("recipe", options.recipe),
        *report(PlannedRun(by=DOCTOR, recipe=recipe, here=here, work=work)),
    ]
