"""Check before `clean` starts: the user's filters. Their code is read and not run."""

import ast
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Iterator

from anadil.artifacts import storage
from anadil.core.errors import PreflightError, RecipeError
from anadil.core.imports import required_imports
from anadil.recipe.fields import did_you_mean
from anadil.runtime.check import (
    COMPILE,
    EVERY,
    RECIPE,
    Check,
    CheckResult,
    PlannedRun,
    claims_of,
    inspect_where_visible,
    passed,
)
from anadil.runtime.job import recipes_of

KEY = "clean.filters"
IMAGE_MODULES = frozenset((
    "anadil", "babel", "fasttext", "lxml", "numba", "numpy", "py3langid", "pyarrow", "pycld2", "pydantic", "regex", "resiliparse",
    "xxhash", "yaml", "zstandard",
))  # fmt: skip
"""Those that a filter may import in the image of `clean`. A test compares them with its lock."""


def _filters(planned: PlannedRun) -> Iterator[CheckResult]:
    for stage in planned.stages:
        if stage.name == "clean":
            named = [each for recipe in recipes_of(stage, planned.recipe) for each in recipe.clean.filters]
            for value in dict.fromkeys(named):
                yield _inspect(value, planned)


def _inspect(value: str, planned: PlannedRun) -> CheckResult:
    file, _, function = value.rpartition(":")
    # Who checks a recipe may be about to run it on this machine.
    here = planned.here or planned.by == RECIPE
    if (
        not here
        and "://" not in file
        and not any(each.holds(file) for each in planned.recipe.cluster.volumes)
    ):
        raise RecipeError(
            f"{KEY}: no step on the cluster would see {file}\n  put it on s3://, or on a claim of cluster.volumes"
        )

    def inspect() -> CheckResult:
        (uri,) = storage.expand((file,), KEY)
        with storage.local_copy(uri) as path:
            content = path.read_bytes()
        needs = _modules(content, file, function) - (set() if here else IMAGE_MODULES)
        if lacks := sorted(each for each in needs if not here or not importlib.util.find_spec(each)):
            who, remedy = ("this machine", "install it") if here else ("the image of clean", "use anadil run")
            raise (PreflightError if here else RecipeError)(
                f"{KEY}: {file} imports {', '.join(lacks)}, which {who} does not hold. A filter is one file beside installed packages\n  "
                f"do without, or {remedy}"
            )
        return passed(KEY, f"runs {function} of {file}, SHA-256 {hashlib.sha256(content).hexdigest()}")

    return inspect_where_visible(
        KEY, inspect, here=here, hidden=claims_of([file], planned.recipe, here=planned.here)
    )


def _modules(content: bytes, file: str, function: str) -> set[str]:
    """Return the modules of others that a file imports. Refuse a file without the function."""
    try:
        tree = ast.parse(content, file)
    except (SyntaxError, ValueError) as error:
        raise RecipeError(
            f"{KEY}: {file}, line {getattr(error, 'lineno', 1)}: {error}\n  correct it"
        ) from None
    names = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    others = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} | {
        (alias.asname or alias.name) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) for alias in each.names
    }  # fmt: skip
    if function not in names and function not in others:
        raise RecipeError(
            f"{KEY}: {file} has no {function}, but {', '.join(names) or 'no function at all'}{did_you_mean(function, names)}\n  "
            "name one of its functions"
        )
    roots = {
        name.partition(".")[0]
        for node in required_imports(tree)
        for name in (
            [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
    }
    return roots - sys.stdlib_module_names - {""}


CHECKS = (Check(name=KEY, by=(*EVERY, RECIPE, COMPILE), function=_filters, level=logging.INFO),)
