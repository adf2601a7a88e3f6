"""Lines of `anadil doctor --cluster`, by name and status."""

from anadil.cli.doctor.cluster import run_cluster_checks
from anadil.cli.doctor.local import Check
from anadil.recipe.sections import Recipe


def line(recipe: Recipe, name: str) -> Check:
    [found] = [check for check in run_cluster_checks(recipe) if check.name == name]
    return found


def names(checks: list[Check], status: str) -> set[str]:
    return {check.name for check in checks if check.status == status}
