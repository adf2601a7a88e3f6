"""`stats.json`: what became of all records."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

from anadil.clean.dedup.sorted_documents import Numbers
from anadil.clean.filters.clean_stats import CleanStats, Row
from anadil.clean.filters.judge_record import Settings
from anadil.clean.filters.pii import knows_telephones
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.write.accounts import Accounts
from anadil.clean.write.corpus_parts import CorpusFile
from anadil.text.filter_rules import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out documents, and how much of them the training part repeats."""

    documents: Numbers
    """Their numbers."""
    looked_at: int
    sharing: int
    """Documents looked at that share a run with another one of the corpus."""
    held_out_sharing: int
    """Held-out documents that share one."""
    contaminated: int
    """Held-out documents of which the training part holds so much that evaluation refuses them."""

    def as_json(self) -> dict[str, int]:
        """For `stats.json`."""
        return {
            "documents": len(self.documents),
            "looked_at": self.looked_at,
            "sharing": self.sharing,
            "held_out_sharing": self.held_out_sharing,
            "contaminated": self.contaminated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Content of `stats.json`; its times differ from run to run, so it is no part of the digest."""

    language: str
    sibling: str
    """Language that CLD2 takes for this one and that nothing tells apart: its text is kept, too; empty: none is known."""
    documents_in: int
    """Records read; bad ones not counted."""
    kept: int
    """Kept records among those."""
    records: dict[str, int]
    """Documents in `train` and `heldout`, with those of `clean.since`."""
    heldout: dict[str, int]
    """Documents held out of these; of those looked at for it and of those held out, how many share a run of words with the
    training part; of those held out, how many are `contaminated`. With `clean.since`, of the earlier held-out part."""
    dropped: dict[str, int]
    """By reason."""
    limits: Limits
    """In force: the language's own, or the recipe's."""
    bad: int
    """Records that could not be read, and documents that no step could work on."""
    bad_records: dict[str, object]
    """How many, and the first ones with place and reason."""
    responses_skipped: int
    """WARC responses that are no web page or no success."""
    not_read: dict[str, int]
    """WARC records of other types that hold no web page, by type."""
    null_texts: int
    """Records whose text is null, which are empty documents."""
    addresses: int
    """Records that name the address of their page."""
    recoded: int
    """Files and pages that were not UTF-8."""
    normalized: int
    """Documents that normalization changed."""
    unescaped: int
    """Documents whose line feeds, letters or tags were written out (`\\n`, `&uuml;`, `<br>`), and were undone."""
    escaped: int
    """Documents that may hold some still: they are as they came."""
    foreign_lines: int
    """Lines and sentences in another language that were taken out of documents."""
    identifier_retries: int
    bytes_in: int
    """Bytes of text and HTML."""
    bytes_out: int
    words_out: int
    bytes_dropped: dict[str, int]
    """By reason, as they came."""
    rules: dict[str, dict[str, object]]
    """For each rule that a document breaks: mode; documents that it would drop alone (`marginal`), that no other enforced
    rule drops (`unique`), and that it is the first reason for (`chosen`). Pages that were dropped unread break one rule."""
    limits_tried: dict[str, dict[str, object]]
    """By key of `clean.rules`: documents that break no rule but this, and how many of them stricter and looser limits
    would drop."""
    lengths: list[dict[str, int]]
    """Kept and dropped documents by bytes of their text, from this power of two up to the next."""
    clusters: dict[str, int]
    """Kept documents that stand for others too, by the least size of the cluster."""
    hosts: dict[str, dict[str, int]]
    """Those with most documents."""
    by_source: dict[str, dict[str, object]]
    """By input file."""
    by_licence: dict[str, dict[str, int]]
    """Kept documents by the licence that their records name; an empty name: they name none."""
    personal_data: dict[str, int]
    """Placeholders in documents that no rule dropped, by kind."""
    national_telephones: bool | None
    """True if national forms of telephones are looked for in this language; null without `clean.pii`."""
    extraction: dict[str, int]
    """Web pages: how many each extractor gave, and characters of prose outside of menus and footers: of all pages, put
    back after an extractor had discarded it, and lost by it."""
    seconds: dict[str, float]
    """By step."""
    documents_per_s: dict[str, float]
    """By step: all documents over the step's seconds."""
    bytes_per_s: dict[str, float]
    """By step: all bytes that came in over the step's seconds."""


def make_stats(
    settings: Settings,
    read_stats: ReadStats,
    clean_stats: CleanStats,
    files: Sequence[CorpusFile],
    records: dict[str, int],
    accounts: Accounts,
    bad: Counter[str],
    heldout: HeldOut,
) -> Stats:
    """The figures of all shards.

    Args:
        settings: In force.
        read_stats: Of all ranges.
        clean_stats: Of all shards, with what dedup dropped.
        files: Of the corpus, that were written.
        records: Documents of each part of the corpus, with those of an earlier one.
        accounts: Of the rows of all documents.
        bad: Unreadable records, by file.
        heldout: What is held out.
    """
    kept = sum(file.num_documents for file in files)
    # What was counted while it was done, and what the rows add up to.
    assert accounts.dropped == dict(sorted(clean_stats.dropped.items())), accounts.dropped
    assert accounts.documents == clean_stats.documents_in == kept + sum(accounts.dropped.values())
    return Stats(
        language=settings.language.code,
        sibling=settings.language.sibling,
        documents_in=clean_stats.documents_in,
        kept=kept,
        records=dict(records),
        heldout=heldout.as_json(),
        dropped=accounts.dropped,
        limits=settings.limits,
        bad=read_stats.bad,
        bad_records={"count": read_stats.bad, "first": read_stats.places},
        responses_skipped=read_stats.skipped,
        not_read=dict(sorted(read_stats.not_read.items())),
        null_texts=read_stats.null_texts,
        addresses=read_stats.addresses,
        recoded=read_stats.recoded,
        normalized=clean_stats.normalized,
        unescaped=clean_stats.unescaped,
        escaped=clean_stats.escaped,
        foreign_lines=clean_stats.foreign_lines,
        identifier_retries=clean_stats.retried,
        bytes_in=read_stats.bytes_in,
        bytes_out=sum(file.num_bytes for file in files),
        words_out=sum(file.num_words for file in files),
        bytes_dropped={name: accounts.bytes_in[name] for name in accounts.dropped},
        rules=accounts.rules_json(),
        limits_tried=accounts.tried_json(),
        lengths=accounts.lengths_json(),
        clusters=accounts.clusters_json(),
        hosts=accounts.hosts_json(),
        by_source=accounts.sources_json(bad),
        by_licence=accounts.licences_json(),
        personal_data=dict(sorted(clean_stats.personal_data.items())),
        national_telephones=knows_telephones(settings.language.code) if settings.recipe.clean.pii else None,
        extraction=dict(sorted(clean_stats.extraction.items())),
        seconds={step: round(value, 3) for step, value in clean_stats.seconds.items()},
        documents_per_s={
            step: round(clean_stats.documents_in / value, 1)
            for step, value in clean_stats.seconds.items()
            if value
        },
        bytes_per_s={
            step: round(read_stats.bytes_in / value) for step, value in clean_stats.seconds.items() if value
        },
    )


def write_stats(path: Path, stats: Stats) -> None:
    """Write the file."""
    table = asdict(stats)
    named = {
        "language": table.pop("language"),
        "sibling": table.pop("sibling"),
        "in": table.pop("documents_in"),
        **table,
    }
    path.write_text(json.dumps(named, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_samples(out: Path, dropped: Mapping[str, Sequence[Row]], kept: Sequence[Row]) -> list[str]:
    """Write `rejected/<reason>.jsonl.zst` for each reason, and `samples/kept.jsonl.zst`; their names."""
    files = {f"rejected/{reason}.jsonl.zst": rows for reason, rows in dropped.items()}
    files["samples/kept.jsonl.zst"] = kept
    (out / "rejected").mkdir()
    (out / "samples").mkdir()
    for name, rows in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / name).write_bytes(zstandard.compress(lines.encode(errors="replace")))
    return list(files)
