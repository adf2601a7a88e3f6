"""Lines of `anadil doctor --cluster`, by name and status."""

from anadil.cli.doctor.cluster import run_cluster_checks
from anadil.cli.doctor.local import CheckResult
from anadil.recipe.sections import Recipe


def line(recipe: Recipe, name: str) -> CheckResult:
    [found] = [check for check in run_cluster_checks(recipe) if check.name == name]
    return found


def names(checks: list[CheckResult], status: str) -> set[str]:
    return {check.name for check in checks if check.status == status}
