"""Checks before `evaluate` starts: files of measures are read, since a mistake in one would end it after hours of training."""

from collections.abc import Iterator
from functools import partial

from anadil.artifacts import storage
from anadil.core.measures import MEASURES, Measure
from anadil.core.stage import SideFiles
from anadil.evaluate.stage import STAGE
from anadil.runtime import check
from anadil.runtime.job import named_side_files

OFFLINE = (check.RECIPE, check.COMPILE, check.PLAN)
"""Commands that ask no storage."""


def _files(measure: Measure, files: SideFiles, planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    key, names = files.key, named_side_files(STAGE, planned.recipe).get(files.key, ())
    names = tuple(each for each in names if planned.by not in OFFLINE or "://" not in each)
    if names and STAGE.name in planned.names:
        yield check.inspect_named(
            key, names, planned,
            lambda: check.passed(key, measure.describe_files(storage.expand(names, key))),
        )  # fmt: skip


CHECKS = tuple(
    check.Check(
        name=each.files.key, by=(*check.EVERYWHERE, check.PLAN), function=partial(_files, each, each.files)
    )
    for each in MEASURES
    if each.files
)
