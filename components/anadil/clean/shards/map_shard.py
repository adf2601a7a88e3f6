"""Clean one shard: write its kept documents sorted, a row for each record, and counts."""

import itertools
import json
import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from anadil.clean.dedup.sorted_documents import DocumentWriter
from anadil.clean.filters.clean_stats import CleanStats
from anadil.clean.filters.figures import Lateness
from anadil.clean.filters.judge_record import (
    ExtractedDocument,
    FilterResult,
    Settings,
    judge_prepared,
    judge_record,
    prepare_record,
)
from anadil.clean.filters.user_filters import refuse_many_reasons
from anadil.clean.read.read_stats import ReadStats, is_fault_of_document, skip_failed_document
from anadil.clean.read.readers import RawRecord, read_records
from anadil.clean.read.text_cut import txt_document_of
from anadil.clean.shards.shards import InputRange, Shard
from anadil.clean.shards.shared_sentences import SentenceWriter
from anadil.clean.write.shard_output import FACTS, RowWriter, kept_documents
from anadil.core.files import write_atomic
from anadil.core.json_text import read_json, write_json
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import FolderTask
from anadil.runtime.executors import process_limits
from anadil.text.language import load_language

MAX_DEATHS = 3
"""Deaths of processes at a record that harms nobody alone: then it is skipped all the same."""
NOTE = struct.Struct("<IQB")
ONE_BY_ONE = "one by one"
BATCH_RECORDS, BATCH_CHARS = 128, 1 << 18
"""Documents judged at a time: a call costs as much as a short text, and a character some 100 bytes of memory."""


class Phase(IntEnum):
    """Work on a record."""

    NONE = 0
    READ = 1
    JUDGE = 2
    BATCH = 3
    """Several records are judged at a time: which of them is to blame is not known."""


class Place(NamedTuple):
    """A record of a shard."""

    range_index: int
    record: int


class CrashGuard:
    """Skipped records of a shard, and the note of the one that is worked on."""

    def __init__(self, folder: Path, dies_alone: Callable[[Place, Phase], str]) -> None:
        """Look at the note of an earlier process.

        Args:
            folder: Folder of the shard's output; the notes lie beside it.
            dies_alone: Tries a record in a process of its own and says how that died; empty if it did not.
        """
        self._note_path, self._verdict_path = _files(folder)
        self._verdicts: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            self._verdicts = read_json(self._verdict_path)
        with suppress(OSError, struct.error):
            *place, phase = NOTE.unpack(self._note_path.read_bytes()[: NOTE.size])
            if phase == Phase.BATCH:
                self._verdicts[ONE_BY_ONE] = {}
                self._write()
            elif phase:
                self._suspect(Place(*place), Phase(phase), dies_alone)

    @property
    def is_one_by_one(self) -> bool:
        """True if a process died at a batch: then each record is judged by itself, so that its note names it."""
        return ONE_BY_ONE in self._verdicts

    def why_skipped(self, place: Place, phase: Phase) -> str:
        """Return the reason why a record must not be read or judged; empty where it may."""
        if not self._verdicts:
            return ""
        return str(self._verdicts.get(_key(place, phase), {}).get("why", ""))

    def __enter__(self) -> Self:
        self._note_path.parent.mkdir(parents=True, exist_ok=True)
        self._note_path.write_bytes(bytes(NOTE.size))
        with self._note_path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), NOTE.size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the note: an error has not killed the process, unless its memory was at its limit."""
        if not isinstance(error, MemoryError):
            self.begin(Place(0, 0), Phase.NONE)
        self._note.close()

    def begin(self, place: Place, phase: Phase) -> None:
        """Note which record is worked on, and give it its share of CPU time."""
        NOTE.pack_into(self._note, 0, *place, phase)
        process_limits.allow_one_more_record()

    def _suspect(self, place: Place, phase: Phase, dies_alone: Callable[[Place, Phase], str]) -> None:
        verdict = self._verdicts.setdefault(_key(place, phase), {"deaths": 0})
        verdict["deaths"] += 1
        if how := dies_alone(place, phase):
            verdict["why"] = f"kills the process that works on it ({how})"
        elif verdict["deaths"] >= MAX_DEATHS:
            verdict["why"] = f"{MAX_DEATHS} processes died at it"
        self._write()

    def _write(self) -> None:
        write_atomic(self._verdict_path, json.dumps(self._verdicts))


def remove_notes(folder: Path) -> None:
    """Remove the notes of a shard whose ranges have changed."""
    for path in _files(folder):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> tuple[Path, Path]:
    return folder.with_suffix(".place"), folder.with_suffix(".suspects.json")


def _key(place: Place, phase: Phase) -> str:
    return f"{place.range_index} {place.record} {phase.name}"


Batch = list[tuple[Place, int, ExtractedDocument]]
"""Records that are judged together: place, number within the shard, text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTask(FolderTask):
    """Everything that a process needs to work on one shard."""

    shard: Shard
    recipe: Recipe
    lists: Path | None

    @property
    def name(self) -> str:
        """For messages."""
        return f"shard {self.shard.number}"


def map_shard(task: MapTask) -> None:
    """Fill the folder of a shard, unless it is done."""
    if task.is_done():
        return
    guard = CrashGuard(
        task.folder, lambda place, phase: process_limits.death_alone(_work_on_one, task, place, phase)
    )
    with task.draft() as draft, guard:
        _ShardRun(task, guard, draft).run()


def read_range(part: InputRange, recipe: Recipe, read_stats: ReadStats) -> Iterator[RawRecord]:
    """Read the records of a range of the inputs, in order."""
    language = load_language(recipe.language)
    return read_records(
        part.uri, part.name, recipe.clean.text_field, read_stats, start=part.start, end=part.end, is_exact=part.is_exact,
        version=part.version, language=language.code, sides=language.sides, txt_document=txt_document_of(recipe),
    )  # fmt: skip


def _work_on_one(task: MapTask, place: Place, phase: Phase) -> None:
    """Read a range up to one record, and judge that one."""
    settings = Settings(recipe=task.recipe, lists_folder=task.lists)
    raws = read_range(task.shard.ranges[place.range_index], task.recipe, ReadStats())
    for _ in range(place.record + 1):
        process_limits.allow_one_more_record()
        raw = next(raws)
    if phase == Phase.JUDGE:
        kept_documents([judge_record(raw, settings)], [0], settings)


class _ShardRun:
    """One pass over the records of a shard."""

    def __init__(self, task: MapTask, guard: CrashGuard, draft: Path) -> None:
        self._task = task
        self._guard = guard
        self._settings = Settings(recipe=task.recipe, lists_folder=task.lists)
        self._draft = draft
        self._rows = RowWriter(draft)
        self._documents = DocumentWriter(draft, self._settings.minhash.bands)
        self._sentences = SentenceWriter(self._settings.language) if self._settings.drops_shared else None
        self._stats = CleanStats()
        self._num_records = 0

    def run(self) -> None:
        """Read, judge, write."""
        read: list[ReadStats] = []
        with self._rows:
            for index, part in enumerate(self._task.shard.ranges):
                part.check_unchanged()
                read.append(ReadStats())
                self._work_on(index, read[-1])
                part.check_unchanged()
        self._guard.begin(Place(0, 0), Phase.NONE)
        self._documents.finish()
        if self._sentences:
            self._sentences.finish(self._draft)
        self._stats.seconds.update(self._settings.timer.seconds)
        facts = {
            "files": [part.name for part in self._task.shard.ranges],
            "read": list(map(asdict, read)),
            "clean": self._stats.as_json(),
        }
        write_json(self._draft / FACTS, facts)

    def _work_on(self, index: int, read_stats: ReadStats) -> None:
        """Judge all records of a range, so many at a time that each costs little."""
        most = 1 if self._guard.is_one_by_one else BATCH_RECORDS
        lateness, file = Lateness(), self._task.shard.ranges[index].name
        batch: Batch = []
        num_chars = 0
        for place, raw in self._records(index, read_stats):
            self._num_records += 1
            if why := self._guard.why_skipped(place, Phase.JUDGE):
                read_stats.records -= 1
                read_stats.refuse(raw.source, why)
                continue
            self._guard.begin(place, Phase.JUDGE)
            with skip_failed_document(read_stats, raw.source):
                extracted = prepare_record(raw, self._settings)
                batch.append((place, self._num_records - 1, extracted))
                num_chars += len(extracted.document.text)
                if raw.sides:
                    lateness.add(raw.sides)
            if len(batch) >= most or num_chars >= BATCH_CHARS:
                self._judge(batch, index, read_stats)
                batch, num_chars = [], 0
        self._judge(batch, index, read_stats)
        self._stats.lateness.update({f"{file}\t{key}": value for key, value in lateness.counts.items()})

    def _judge(self, batch: Batch, index: int, read_stats: ReadStats) -> None:
        """Judge records, and write them; where that fails, each by itself."""
        if not batch:
            return
        numbers = [number for _, number, _ in batch]
        documents = [document for _, _, document in batch]
        file = self._task.shard.ranges[index].name
        self._guard.begin(batch[0][0], Phase.BATCH if len(batch) > 1 else Phase.JUDGE)
        try:
            results = judge_prepared(documents, self._settings)
            documents_to_write = kept_documents(results, numbers, self._settings)
            if self._sentences:
                self._sentences.add(
                    file,
                    [
                        (number, each.extracted.document.url, each.extracted.document.text)
                        for number, each in zip(numbers, results, strict=True)
                        if not each.reason
                    ],
                )
        except BaseException as error:
            if len(batch) > 1 and is_fault_of_document(error):
                for each in batch:
                    self._judge([each], index, read_stats)
                return
            with skip_failed_document(read_stats, documents[0].document.source):
                raise
            return
        for number, result in zip(numbers, results, strict=True):
            if result.error:
                read_stats.refuse_by_filter(result.extracted.document.source, result.error)
                continue
            read_stats.recoded += "recoded" in result.extracted.marks
            self._rows.add(number, file, result)
            self._count(result)
        for document in documents_to_write:
            self._documents.add(document)

    def _count(self, result: FilterResult) -> None:
        extracted, stats = result.extracted, self._stats
        stats.counts["documents_in"] += 1
        stats.counts["filtered"] += result.is_filtered
        stats.counts["foreign_lines"] += extracted.foreign_lines
        for mark in extracted.marks:
            stats.counts[mark] += 1
        if (identified := extracted.identified) is not None:
            stats.counts["retried"] += identified.retried
            if identified.sibling:
                stats.counts.update(siblings=1, siblings_kept=result.reason is None)
        for counter, counts in (
            (stats.extraction, extracted.prose), (stats.formats, extracted.formats), (stats.sides, extracted.sides)
        ):  # fmt: skip
            if counts:
                counter.update(counts)
        if result.reason:
            stats.drop(result.reason, {**extracted.document.as_row(), **result.sample})
            if result.is_filtered:
                refuse_many_reasons(stats.dropped)
        elif extracted.personal_data:
            stats.personal_data.update(extracted.personal_data)

    def _records(self, index: int, read_stats: ReadStats) -> Iterator[tuple[Place, RawRecord]]:
        """The records of a range, up to one that kills its reader."""
        part, timer = self._task.shard.ranges[index], self._settings.timer
        raws = read_range(part, self._task.recipe, read_stats)
        last = part.name
        for number in itertools.count():
            place = Place(index, number)
            if why := self._guard.why_skipped(place, Phase.READ):
                read_stats.refuse(last, f"the rest is skipped: {why}")
                return
            self._guard.begin(place, Phase.READ)
            timer.start()
            raw = next(raws, None)
            timer.lap("read")
            if raw is None:
                return
            yield place, raw
            last = raw.source
