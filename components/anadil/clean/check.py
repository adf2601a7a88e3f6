"""Check before `clean` starts: the user's filters. Their code is read and not run."""

import ast
import hashlib
import importlib.util
import logging
import symtable
import sys
from collections.abc import Iterator
from functools import partial

from anadil.artifacts import storage
from anadil.core.errors import PreflightError, RecipeError
from anadil.core.imports import required_imports
from anadil.recipe.fields import did_you_mean
from anadil.runtime.check import EVERYWHERE, Check, CheckResult, PlannedRun, inspect_named, passed
from anadil.runtime.job import recipes_of

KEY = "clean.filters"
IMAGE_MODULES = frozenset((
    "anadil", "babel", "fasttext", "lxml", "numba", "numpy", "py3langid", "pyarrow", "pycld2", "pydantic", "regex", "resiliparse",
    "xxhash", "yaml", "zstandard",
))  # fmt: skip
"""Those that a filter may import in the image of `clean`. A test compares them with its lock."""


def _filters(planned: PlannedRun) -> Iterator[CheckResult]:
    here, volumes = planned.reads_here, planned.recipe.cluster.volumes
    for stage in (each for each in planned.stages if each.name == "clean"):
        named = (each for recipe in recipes_of(stage, planned.recipe) for each in recipe.clean.filters)
        for value in dict.fromkeys(named):
            file = value.rpartition(":")[0]
            if not (here or "://" in file or any(each.holds(file) for each in volumes)):
                raise RecipeError(
                    f"{KEY}: no step on the cluster would see {file}\n  put it on s3://, or on a claim of cluster.volumes"
                )
            yield inspect_named(KEY, [file], planned, partial(_inspect, value, here))


def _inspect(value: str, here: bool) -> CheckResult:
    return passed(KEY, read_filter(value, here=here)[1])


def read_filter(value: str, *, here: bool = True) -> tuple[str, str]:
    """Return the source of a filter, and which code will run. Refuse code that cannot, `here` or in the image."""
    file, _, function = value.rpartition(":")
    (uri,) = storage.expand((file,), KEY)
    with storage.local_copy(uri) as path:
        content = path.read_bytes()
    try:
        source = importlib.util.decode_source(content)
        tree, symbols = ast.parse(source, file), symtable.symtable(source, file, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise RecipeError(
            f"{KEY}: {file}, line {getattr(error, 'lineno', 0) or 1}: {error}\n  correct it"
        ) from None
    if function not in (each.get_name() for each in symbols if each.is_assigned() or each.is_imported()):
        names = [each.get_name() for each in symbols if each.is_namespace()]
        raise RecipeError(
            f"{KEY}: {file} has no {function}, but {', '.join(names) or 'no function at all'}{did_you_mean(function, names)}\n  "
            "name one of its functions"
        )
    imports = (
        each.name if isinstance(node, ast.Import) else node.module or ""
        for node in required_imports(tree)
        for each in node.names
    )
    lacks = (
        {each.partition(".")[0] for each in imports}
        - sys.stdlib_module_names
        - {""}
        - (set() if here else IMAGE_MODULES)
    )
    if lacks := {each for each in lacks if not (here and importlib.util.find_spec(each))}:
        who, remedy = ("this machine", "install it") if here else ("the image of clean", "use anadil run")
        raise (PreflightError if here else RecipeError)(
            f"{KEY}: {file} imports {', '.join(sorted(lacks))}, which {who} does not hold. A filter is one file beside installed "
            f"packages\n  do without, or {remedy}"
        )
    return source, f"runs {function} of {file}, SHA-256 {hashlib.sha256(content).hexdigest()}"


CHECKS = (Check(name=KEY, by=EVERYWHERE, function=_filters, level=logging.INFO),)
