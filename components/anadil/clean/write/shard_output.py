"""Output of a shard: its kept documents, a row for each record, and counts."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from anadil.clean.dedup.sorted_documents import DocumentWriter, KeptDocument
from anadil.clean.filters.clean_stats import CleanStats
from anadil.clean.filters.judge_record import FilterResult, Settings
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.statistics import MAX_BATCH_CHARS
from anadil.clean.write.rows import RowWriter
from anadil.text.corpus import line_of


class ShardOutput:
    """Takes what became of records, in their order."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Begin the files of a shard.

        Args:
            folder: Of the shard.
            settings: In force.
        """
        self.rows = RowWriter(folder)
        """To be closed behind the last record."""
        self.clean_stats = CleanStats()
        self._settings = settings
        self._writer = DocumentWriter(folder, settings.minhash.bands)

    def add(self, record: int, file: str, licence: str, bytes_in: int, judged: FilterResult) -> None:
        """Count a record.

        Args:
            record: Its number within the shard.
            file: Name of the input that it is in.
            licence: As the record names it; empty where it does not.
            bytes_in: Of the page or text as it came.
            judged: What became of it.
        """
        self.rows.add(record, file, licence, bytes_in, judged)
        stats = self.clean_stats
        stats.normalized += judged.is_normalized
        stats.unescaped += judged.is_unescaped
        stats.escaped += judged.has_escapes
        stats.retried += judged.is_retried
        stats.foreign_lines += judged.foreign_lines
        stats.documents_in += 1
        stats.extraction.update(judged.prose)
        if judged.reason:
            stats.drop(judged.reason, judged.sample_row())
        elif judged.personal_data:
            stats.personal_data.update(judged.personal_data)

    def write(self, documents: Iterable[KeptDocument]) -> None:
        """Take documents that no rule has dropped."""
        for document in documents:
            self._writer.add(document)

    def finish(self) -> int:
        """Write what is left; how many documents there are."""
        num_kept = self._writer.finish()
        self.clean_stats.seconds.update(self._settings.timer.seconds)
        return num_kept


def kept_documents(
    judged: Sequence[FilterResult], records: Sequence[int], settings: Settings
) -> list[KeptDocument]:
    """Those that no rule drops, with what dedup compares.

    Args:
        judged: Documents.
        records: Number of the record of each within the shard.
        settings: In force.
    """
    kept = [(record, each) for record, each in zip(records, judged, strict=True) if not each.reason]
    texts = [each.document.text for _, each in kept]
    timer = settings.timer
    timer.start()
    exact = settings.minhash.exact_keys_of(texts).tolist()
    timer.lap("exact_duplicates")
    bands = settings.minhash.band_keys_of(texts)
    timer.lap("near_duplicates")
    return [
        KeptDocument(
            id=each.document.id, line=line_of(each.document), exact_key=high << 64 | low, band_keys=keys,
            weight=weight_of(each.document.text), num_bytes=each.num_bytes,
            num_words=_num_words(each, settings), record=record,
        )
        for (record, each), (high, low), keys in zip(kept, exact, bands, strict=True)
    ]  # fmt: skip


def weight_of(text: str) -> int:
    """Bytes of a text's words, less the white space between them.

    Copies differ in accents, quotation marks and spaces, too: one without accents has fewer bytes, one with a space
    before each sign more spaces, and neither should stay in the original's place.
    """
    words = "".join(text.split())
    return max(0, len(words.encode()) - (len(text) - len(words)))


def _num_words(judged: FilterResult, settings: Settings) -> int:
    """Words of the text as it is written; the rules have counted them, unless that is not what they saw."""
    text = judged.document.text
    if judged.statistics is None or judged.personal_data or len(text) > MAX_BATCH_CHARS:
        return len(settings.language.words(text))
    return int(judged.statistics[COLUMN["words"]])
