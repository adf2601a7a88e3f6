"""Try the user's filters on some records before the shards: twice, in processes of other hash seeds.

The second process takes the records from last to first. So a filter that draws lots, asks the clock, iterates over a set
or remembers earlier texts answers otherwise, and is refused before it makes a corpus that nobody can make again.
"""

import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anadil.clean.check import KEY
from anadil.clean.filters.judge_record import ExtractedDocument, Settings, judge_prepared, prepare_record
from anadil.clean.read.read_stats import ReadStats, is_fault_of_document
from anadil.clean.shards.map_shard import MapTask, read_range
from anadil.core.errors import DataError, RecipeError
from anadil.runtime.executors import process_limits
from anadil.runtime.executors.processes import can_fork

SEED_VARIABLE = "PYTHONHASHSEED"
NUM_SHARDS, NUM_RECORDS = 4, 32
"""Shards, and records of the first range of each, that are tried."""


def try_filters(tasks: Sequence[MapTask]) -> None:
    """Refuse filters that answer otherwise the second time, or that fail on all documents."""
    tried = tasks[:: -(-len(tasks) // NUM_SHARDS)]
    with tempfile.TemporaryDirectory(prefix="anadil-") as place:
        files = [Path(place) / f"{number}.json" for number in range(2)]
        process_limits.death_alone(_answer, tried, files[0], 1, fork=can_fork())
        with _hash_seed():
            process_limits.death_alone(_answer, tried, files[1], -1)
        # A process that died, or a file that cannot be read: the shards meet the record and name it.
        first, second = (json.loads(each.read_text()) if each.exists() else [] for each in files)
    for (source, *answer), (_, *other) in zip(first, second, strict=False):
        (reason, name, error), (other_reason, other_name, other_error) = answer, other
        if not (error or other_error) and answer != other:
            raise RecipeError(
                f"{KEY}: {name or other_name} is not deterministic: {source} is {reason or 'kept'} once, and {other_reason or 'kept'} in "
                "another process that takes the documents in another order. Let its answer follow from the text and the statistics alone"
            )
    if first and all(error for *_, error in first):
        source, *_, error = first[0]
        raise DataError(
            f"{KEY}: failed on all {len(first)} documents of a trial, such as {source}: {error}. Correct the function"
        )


@contextmanager
def _hash_seed() -> Iterator[None]:
    """Let a process that starts hash otherwise than any before: each takes a seed by lot, or that of the environment."""
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = "1" if before != "1" else "2"
    try:
        yield
    finally:
        del os.environ[SEED_VARIABLE]
        if before is not None:
            os.environ[SEED_VARIABLE] = before


def _answer(tasks: Sequence[MapTask], answers: Path, step: int) -> None:
    """Ask about the records forwards or backwards. Write sources, reasons, filters and errors."""
    settings, rows = Settings(recipe=tasks[0].recipe, lists_folder=tasks[0].lists), []
    for each in [each for task in tasks for each in _extracted(task, settings)][::step]:
        process_limits.allow_one_more_record()
        (result,) = judge_prepared([each], settings)
        if result.is_filtered:
            rows.append((each.document.source, result.reason, result.sample.get("filter", ""), result.error))
    answers.write_text(json.dumps(rows[::step]), encoding="utf-8")


def _extracted(task: MapTask, settings: Settings) -> Iterator[ExtractedDocument]:
    for raw in itertools.islice(read_range(task.shard.ranges[0], task.recipe, ReadStats()), NUM_RECORDS):
        process_limits.allow_one_more_record()
        try:
            yield prepare_record(raw, settings)
        except BaseException as error:
            if not is_fault_of_document(error):
                raise
