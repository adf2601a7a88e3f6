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

from anadil.clean.filters.judge_record import ExtractedDocument, Settings, judge_prepared, prepare_record
from anadil.clean.filters.lists import FILTERS
from anadil.clean.filters.user_filters import KEY, answer_backwards, statistics_of
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
    tried, lists = tasks[:: -(-len(tasks) // NUM_SHARDS)], tasks[0].lists
    assert lists is not None, "filters are compiled into it"
    with tempfile.TemporaryDirectory(prefix="anadil-") as place:
        files = [Path(place) / f"{name}.json" for name in ("sources", "asked", "first", "second")]
        sources_file, asked, first_file, second_file = files
        # A copy of this process has the compiled rules. The other one loads the filters alone.
        process_limits.death_alone(_answer, tried, sources_file, asked, first_file, fork=can_fork())
        if first_file.exists():
            with _hash_seed():
                process_limits.death_alone(answer_backwards, lists / FILTERS, asked, second_file)
        # A process that died, or a file that cannot be read: the shards meet the record and name it.
        sources, _, first, second = (json.loads(each.read_text()) if each.exists() else [] for each in files)
    for source, (reason, name, error), (other_reason, other_name, other_error) in zip(
        sources, first, second, strict=False
    ):
        if not (error or other_error) and (reason, name) != (other_reason, other_name):
            raise RecipeError(
                f"{KEY}: {name or other_name} is not deterministic: {source} is {reason or 'kept'} once, and {other_reason or 'kept'} in "
                "another process that takes the documents in another order. Let its answer follow from the text and the statistics alone"
            )
    faults = [(source, error) for source, (_, _, error) in zip(sources, first, strict=True) if error]
    if faults and len(faults) == len(first):
        source, error = faults[0]
        raise DataError(
            f"{KEY}: failed on all {len(faults)} documents of a trial, such as {source}: {error}. Correct the function"
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


def _answer(tasks: Sequence[MapTask], sources: Path, asked: Path, answers: Path) -> None:
    """Write the documents that filters are asked about, and the answers."""
    settings = Settings(recipe=tasks[0].recipe, lists_folder=tasks[0].lists)
    results = []
    for each in (each for task in tasks for each in _extracted(task, settings)):
        process_limits.allow_one_more_record()
        results += [result for result in judge_prepared([each], settings) if result.is_filtered]
    tables = {
        sources: [each.extracted.document.source for each in results],
        asked: [
            (each.extracted.text, statistics_of(each.statistics))
            for each in results
            if each.statistics is not None
        ],
        answers: [
            (None if each.error else each.reason, each.sample.get("filter", ""), each.error)
            for each in results
        ],
    }
    for path, rows in tables.items():
        path.write_text(json.dumps(rows), encoding="utf-8")


def _extracted(task: MapTask, settings: Settings) -> Iterator[ExtractedDocument]:
    for raw in itertools.islice(read_range(task.shard.ranges[0], task.recipe, ReadStats()), NUM_RECORDS):
        process_limits.allow_one_more_record()
        try:
            yield prepare_record(raw, settings)
        except BaseException as error:
            if not is_fault_of_document(error):
                raise
