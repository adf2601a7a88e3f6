"""shard -> its kept documents, sorted, with what dedup compares, a row for each record, and counts."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from anadil.clean import markers, process_limits
from anadil.clean.clean_stats import CleanStats
from anadil.clean.guard import skip_failed_document
from anadil.clean.judge_record import Judged, Settings, judge_record
from anadil.clean.readers import RawRecord, ReadStats, read_records
from anadil.clean.rows import RowWriter
from anadil.clean.shards import InputRange, Shard
from anadil.clean.sorted_documents import DocumentWriter, KeptDocument
from anadil.clean.suspects import Phase, Place, Suspects, death_alone
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language

FACTS = "facts.json"
"""Counts and samples of a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTask:
    """What a process needs to work on one shard."""

    shard: Shard
    recipe: Recipe
    lists: Path | None
    """Folder of the compiled lists."""
    folder: Path
    """Where its output belongs."""
    key: str
    """Hash of what decides its output."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"shard {self.shard.number}"


def map_shard(task: MapTask) -> None:
    """Fill the folder of a shard, unless it is done.

    Raises:
        IntegrityError: An input is not the one that was planned for.
    """
    if markers.is_done(task.folder, task.key):
        return
    suspects = Suspects(task.folder, lambda place, phase: death_alone(_work_on_one, task, place, phase))
    with markers.written_whole(task.folder, task.key) as draft, suspects:
        _ShardRun(task, suspects, draft).run()


def read_range(part: InputRange, recipe: Recipe, read_stats: ReadStats) -> Iterator[RawRecord]:
    """The records of a range of the inputs, in order."""
    return read_records(
        part.uri,
        part.name,
        recipe.clean.text_field,
        read_stats,
        start=part.start,
        end=part.end,
        is_exact=part.is_exact,
        version=part.version,
        language=load_language(recipe.language).code,
    )


def _work_on_one(task: MapTask, place: Place, phase: Phase) -> None:
    """Read a range up to one record, and judge that one."""
    settings = Settings(recipe=task.recipe, lists_folder=task.lists)
    raws = read_range(task.shard.ranges[place.range_index], task.recipe, ReadStats())
    for _ in range(place.record + 1):
        process_limits.allow_one_more_record()
        raw = next(raws)
    if phase == Phase.JUDGE:
        judged = judge_record(raw, settings)
        settings.minhash.band_keys(judged.document.text)


class _ShardRun:
    """One pass over the records of a shard."""

    def __init__(self, task: MapTask, suspects: Suspects, draft: Path) -> None:
        self._task = task
        self._suspects = suspects
        self._settings = Settings(recipe=task.recipe, lists_folder=task.lists)
        self._draft = draft
        self._writer = DocumentWriter(draft, self._settings.minhash.bands)
        self._clean_stats = CleanStats()
        self._rows = RowWriter(draft)
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
        self._suspects.begin(Place(0, 0), Phase.NONE)
        num_kept = self._writer.finish()
        self._clean_stats.seconds.update(self._settings.timer.seconds)
        facts = {
            "kept": num_kept,
            "files": [part.name for part in self._task.shard.ranges],
            "read": list(map(asdict, read)),
            "clean": self._clean_stats.as_json(),
        }
        markers.write_json(self._draft / FACTS, facts)

    def _work_on(self, index: int, read_stats: ReadStats) -> None:
        """Judge all records of a range."""
        file = self._task.shard.ranges[index].name
        for place, raw in self._records(index, read_stats):
            if why := self._suspects.why_left_out(place, Phase.JUDGE):
                read_stats.records -= 1
                read_stats.refuse(raw.source, why)
                continue
            self._suspects.begin(place, Phase.JUDGE)
            with skip_failed_document(read_stats, raw.source):
                self._take(file, raw, judge_record(raw, self._settings), read_stats)

    def _records(self, index: int, read_stats: ReadStats) -> Iterator[tuple[Place, RawRecord]]:
        """The records of a range, up to one that kills its reader."""
        part = self._task.shard.ranges[index]
        raws = read_range(part, self._task.recipe, read_stats)
        last = part.name
        for number in itertools.count():
            place = Place(index, number)
            if why := self._suspects.why_left_out(place, Phase.READ):
                read_stats.refuse(last, f"what follows is left out: {why}")
                return
            self._suspects.begin(place, Phase.READ)
            with self._settings.timer.timed("read"):
                raw = next(raws, None)
            if raw is None:
                return
            yield place, raw
            last = raw.source
            self._num_records += 1

    def _take(self, file: str, raw: RawRecord, judged: Judged, read_stats: ReadStats) -> None:
        """Count a document, and write it if it is kept."""
        kept = None if judged.reason else self._kept(judged)
        read_stats.recoded += judged.is_recoded
        self._clean_stats.normalized += judged.is_normalized
        self._clean_stats.retried += judged.is_retried
        self._clean_stats.foreign_lines += judged.foreign_lines
        self._clean_stats.documents_in += 1
        self._rows.add(self._num_records, file, raw, judged)
        if judged.reason:
            self._clean_stats.drop(judged.reason, judged.sample_row())
        else:
            self._clean_stats.personal_data.update(judged.personal_data)
        if kept is not None:
            self._writer.add(kept)

    def _kept(self, judged: Judged) -> KeptDocument:
        document, language, timer = judged.document, self._settings.language, self._settings.timer
        with timer.timed("exact_duplicates"):
            exact = self._settings.minhash.exact_key(document.text)
        with timer.timed("near_duplicates"):
            band_keys = self._settings.minhash.band_keys(document.text)
        return KeptDocument(
            id=document.id, line=json.dumps(document.as_row(), ensure_ascii=False).encode() + b"\n",
            exact_key=exact, band_keys=band_keys, num_chars=len(document.text),
            num_bytes=len(document.text.encode()), num_words=len(language.words(document.text)),
            record=self._num_records,
        )  # fmt: skip
