"""Try the user's filters on some records before the shards, in two processes of other hash seeds.

The second process takes the records from last to first. So a filter that draws lots, asks the clock, iterates over a set
or remembers earlier texts answers otherwise, and is refused before it makes a corpus that nobody can make again. A record
that ends such a process is left to the shards, which skip it and name it.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from anadil.clean.check import KEY
from anadil.clean.filters.judge_record import Settings, judge_record
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.shards.map_shard import MapTask, read_range
from anadil.core.errors import DataError, RecipeError
from anadil.runtime.executors import process_limits
from anadil.runtime.executors.processes import can_fork

NUM_SHARDS, NUM_RECORDS = 4, 32
"""Shards, and records of the first range of each, that are tried."""
TRIAL_S = 60.0
"""Time after which a process tries no further record: a filter that hangs takes its whole limit for each. Our choice."""


def try_filters(tasks: Sequence[MapTask]) -> None:
    """Refuse filters that answer otherwise the second time, or that fail on all documents."""
    tried = tasks[:: -(-len(tasks) // NUM_SHARDS)]
    with tempfile.TemporaryDirectory(prefix="anadil-") as place:
        files = {step: Path(place) / f"{step}.json" for step in (1, -1)}
        for step, file in files.items():
            # A forked process hashes as this one does, and needs no second of imports.
            process_limits.death_alone(_answer, tried, file, step, fork=step > 0 and can_fork())
        first, second = (json.loads(file.read_text()) if file.exists() else {} for file in files.values())
    for number in filter(second.__contains__, first):
        (source, *answer), (_, *other) = first[number], second[number]
        (reason, name, error), (other_reason, other_name, other_error) = answer, other
        if not (error or other_error) and answer != other:
            raise RecipeError(
                f"{KEY}: {name or other_name} is not deterministic: {source} is {reason or 'kept'} once, and {other_reason or 'kept'} in "
                "another process that takes the documents in another order. Let its answer follow from the text and the statistics alone"
            )
    if first and all(error for *_, error in first.values()):
        source, *_, error = next(iter(first.values()))
        raise DataError(
            f"{KEY}: failed on all {len(first)} documents of a trial, such as {source}: {error}. Correct the function"
        )


def _answer(tasks: Sequence[MapTask], answers: Path, step: int) -> None:
    """Ask about the records forwards or backwards. Write sources, reasons, filters and errors."""
    settings, rows = Settings(recipe=tasks[0].recipe, lists_folder=tasks[0].lists), {}
    ranges = (read_range(task.shard.ranges[0], task.recipe, ReadStats()) for task in tasks)
    raws = [raw for each in ranges for raw in itertools.islice(each, NUM_RECORDS)]
    end = time.monotonic() + TRIAL_S
    for number, raw in [*enumerate(raws)][::step]:
        process_limits.allow_one_more_record()
        with suppress(Exception):  # The shards meet the record, too.
            result = judge_record(raw, settings)
            if result.is_filtered:
                source = result.extracted.document.source
                rows[number] = source, result.reason, result.sample.get("filter", ""), result.error
        if time.monotonic() > end:
            break
    answers.write_text(json.dumps(rows), encoding="utf-8")
