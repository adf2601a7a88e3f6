"""`stats.json`: what became of all records."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from anadil.clean.clean_stats import CleanStats
from anadil.clean.corpus_parts import CorpusFile
from anadil.clean.judge_record import Settings
from anadil.clean.readers import ReadStats
from anadil.text.language import FilterLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What `stats.json` holds; its times differ from run to run, so it is no part of the digest."""

    language: str
    documents_in: int
    """Records read; bad ones not counted."""
    kept: int
    """Of those records."""
    records: dict[str, int]
    """Documents in `train` and `heldout`, with those of `clean.since`."""
    dropped: dict[str, int]
    """By reason."""
    limits: FilterLimits
    """In force: the language's own, or the recipe's."""
    bad: int
    """Records that could not be read, and documents that no step could work on."""
    bad_records: dict[str, object]
    """How many, and the first ones with place and reason."""
    responses_skipped: int
    """WARC responses that are no web page or no success."""
    recoded: int
    """Files and pages that were not UTF-8."""
    normalized: int
    """Documents that normalization changed."""
    identifier_retries: int
    bytes_in: int
    """Of text and HTML."""
    bytes_out: int
    words_out: int
    seconds: dict[str, float]
    """By step."""
    documents_per_s: dict[str, float]
    """By step: all documents over the step's seconds."""


def make_stats(
    settings: Settings,
    read_stats: ReadStats,
    clean_stats: CleanStats,
    files: Sequence[CorpusFile],
    records: dict[str, int],
) -> Stats:
    """The figures of all shards.

    Args:
        settings: In force.
        read_stats: Of all ranges.
        clean_stats: Of all shards, with what dedup dropped.
        files: Of the corpus, that were written.
        records: Documents of each part of the corpus, with those of an earlier one.
    """
    return Stats(
        language=settings.language.code,
        documents_in=clean_stats.documents_in,
        kept=sum(file.num_documents for file in files),
        records=dict(records),
        dropped=dict(sorted(clean_stats.dropped.items())),
        limits=settings.limits,
        bad=read_stats.bad,
        bad_records={"count": read_stats.bad, "first": read_stats.places},
        responses_skipped=read_stats.skipped,
        recoded=read_stats.recoded,
        normalized=clean_stats.normalized,
        identifier_retries=clean_stats.retried,
        bytes_in=read_stats.bytes_in,
        bytes_out=sum(file.num_bytes for file in files),
        words_out=sum(file.num_words for file in files),
        seconds={step: round(value, 3) for step, value in clean_stats.seconds.items()},
        documents_per_s={
            step: round(clean_stats.documents_in / value, 1)
            for step, value in clean_stats.seconds.items()
            if value
        },
    )


def write_stats(path: Path, stats: Stats) -> None:
    """Write the file."""
    table = asdict(stats)
    named = {"language": table.pop("language"), "in": table.pop("documents_in"), **table}
    path.write_text(json.dumps(named, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_samples(folder: Path, clean_stats: CleanStats) -> list[str]:
    """Write `<reason>.jsonl` for each reason, smallest ids first; their names."""
    folder.mkdir()
    written = []
    for reason, rows in clean_stats.samples().items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{reason}.jsonl").write_bytes(lines.encode(errors="replace"))
        written.append(f"{folder.name}/{reason}.jsonl")
    return written
