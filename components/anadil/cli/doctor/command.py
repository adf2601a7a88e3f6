"""`anadil doctor`: check what a run needs, each line with its remedy."""

import argparse
import os
from pathlib import Path
from typing import Any

from anadil.cli.doctor.local import run_checks
from anadil.cli.output import add_output_option, place, print_json, print_lines
from anadil.cli.runs.run import WORK
from anadil.core.errors import PreflightError
from anadil.core.stages import BUILT_IN
from anadil.recipe.load import load_recipe


def add_doctor(name: str, commands: Any, text: str) -> None:
    """Add `anadil doctor`."""
    doctor = commands.add_parser(name, help=text)
    doctor.add_argument("recipe", nargs="?", default=BUILT_IN, metavar="RECIPE", help=f"default: {BUILT_IN}")
    text = "check the cluster of your Kubernetes context too (or of the pod that this runs in)"
    doctor.add_argument("--cluster", action="store_true", help=text)
    text = "Kubeflow Pipelines' API (default: KF_PIPELINES_ENDPOINT)"
    doctor.add_argument("--kubeflow-host", metavar="URL", help=text)
    doctor.add_argument("--work", type=place, default=WORK, metavar="DIR", help="default: %(default)s")
    doctor.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_output_option(doctor)
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.cluster:
        from anadil.cli.doctor.cluster import run_cluster_checks

        recipe = load_recipe(options.recipe, options.set)
        checks = run_cluster_checks(recipe, kubeflow_host=options.kubeflow_host)
    else:
        checks = run_checks(options.recipe, options.set, Path(os.path.realpath(options.work)))
    if options.output == "json":
        print_json([check.as_dict() for check in checks])
    else:
        print_lines(line for check in checks for line in check.as_lines())
    return PreflightError.exit_code if any(check.status == "failed" for check in checks) else 0
