from collections.abc import Callable, Iterable
from pathlib import Path

from anadil.launch.kubernetes.checks import run_cluster_checks
from anadil.preflight.checks import report
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.check import DOCTOR, Check, CheckResult, PlannedRun, in_time


def line(recipe: Recipe, name: str) -> CheckResult:
    [found] = [check for check in run_cluster_checks(recipe) if check.name == name]
    return found


def names(checks: list[CheckResult], status: str) -> set[str]:
    return {check.name for check in checks if check.status == status}


def run_checks(recipe: str, overrides: list[str], work: Path) -> list[CheckResult]:
    return report(PlannedRun(by=DOCTOR, recipe=load_recipe(recipe, overrides), work=work))


def with_timeout(
    name: str, function: Callable[[], Iterable[CheckResult]], seconds: float
) -> list[CheckResult]:
    check: Check[None] = Check(name=name, function=lambda _: function(), seconds=seconds)
    return in_time(check, None, seconds)
