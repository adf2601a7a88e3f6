"""shard -> its kept documents, sorted, with what dedup compares, a row for each record, and counts."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from anadil.clean import markers
from anadil.clean.clean_stats import CleanStats
from anadil.clean.dedup import exact_key
from anadil.clean.guard import skip_failed_document
from anadil.clean.judge_record import Judged, Settings, judge_record
from anadil.clean.readers import RawRecord, ReadStats, read_records
from anadil.clean.shards import Shard
from anadil.clean.sorted_documents import DocumentWriter, KeptDocument
from anadil.recipe.sections import Recipe

FACTS = "facts.json"
"""Counts and samples of a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTask:
    """What a process needs to work on one shard."""

    shard: Shard
    recipe: Recipe
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
    settings = Settings(recipe=task.recipe)
    with markers.written_whole(task.folder, task.key) as draft:
        _ShardRun(task, settings, draft).run()


class _ShardRun:
    """One pass over the records of a shard."""

    def __init__(self, task: MapTask, settings: Settings, draft: Path) -> None:
        self._task = task
        self._settings = settings
        self._draft = draft
        self._writer = DocumentWriter(draft, settings.minhash.bands)
        self._clean_stats = CleanStats()
        self._num_records = 0

    def run(self) -> None:
        """Read, judge, write."""
        read: list[ReadStats] = []
        for part in self._task.shard.ranges:
            part.check_unchanged()
            read.append(ReadStats())
            raws = read_records(
                part.uri, part.name, self._task.recipe.clean.text_field, read[-1], start=part.start, end=part.end
            )  # fmt: skip
            for raw in self._timed(raws):
                with skip_failed_document(read[-1], raw.source):
                    self._take(judge_record(raw, self._settings), read[-1])
                    self._clean_stats.documents_in += 1
                self._num_records += 1
            part.check_unchanged()
        num_kept = self._writer.finish()
        self._clean_stats.seconds.update(self._settings.timer.seconds)
        facts = {"kept": num_kept, "read": list(map(asdict, read)), "clean": self._clean_stats.as_json()}
        markers.write_json(self._draft / FACTS, facts)

    def _timed(self, raws: Iterator[RawRecord]) -> Iterator[RawRecord]:
        while True:
            with self._settings.timer.timed("read"):
                raw = next(raws, None)
            if raw is None:
                return
            yield raw

    def _take(self, judged: Judged, read_stats: ReadStats) -> None:
        """Count a document, and write it if it is kept."""
        kept = None if judged.reason else self._kept(judged)
        read_stats.recoded += judged.is_recoded
        self._clean_stats.normalized += judged.is_normalized
        self._clean_stats.retried += judged.is_retried
        if judged.reason:
            self._clean_stats.drop(judged.reason, judged.sample_row())
        if kept is not None:
            self._writer.add(kept)

    def _kept(self, judged: Judged) -> KeptDocument:
        document, language, timer = judged.document, self._settings.language, self._settings.timer
        with timer.timed("exact_duplicates"):
            exact = exact_key(document.text, language)
        with timer.timed("near_duplicates"):
            band_keys = self._settings.minhash.band_keys(document.text)
        return KeptDocument(
            id=document.id, line=json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n",
            exact_key=exact, band_keys=band_keys, num_chars=len(document.text),
            num_bytes=len(document.text.encode()), num_words=len(language.words(document.text)),
            record=self._num_records,
        )  # fmt: skip
