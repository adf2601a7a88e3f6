"""`stats.json`, with what became of all records, and the samples of dropped and kept documents."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

from anadil.clean.filters.clean_stats import CleanStats, Row
from anadil.clean.filters.judge_record import Settings
from anadil.clean.filters.pairs import sides_json
from anadil.clean.filters.pii import knows_telephones
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.write.accounts import Accounts
from anadil.clean.write.corpus_parts import CorpusFile
from anadil.recipe.filter_rules import NO_RULES
from anadil.text.parallel import TEMPLATE


def make_stats(
    settings: Settings,
    read_stats: ReadStats,
    clean_stats: CleanStats,
    files: Sequence[CorpusFile],
    records: dict[str, int],
    accounts: Accounts,
    bad: Counter[str],
    heldout: dict[str, int],
) -> Row:
    """Return the content of `stats.json`; its times differ from run to run, so it is no part of the digest.

    `read_stats`, `clean_stats` and `accounts` are sums of all shards; `records` has those of an earlier corpus, too.
    """
    num_kept, counts = sum(file.num_documents for file in files), clean_stats.counts
    # Two counts of one thing: one while documents were dropped, one from the rows that were written.
    assert accounts.dropped == dict(sorted(clean_stats.dropped.items())), accounts.dropped
    assert accounts.documents == counts["documents_in"] == num_kept + sum(accounts.dropped.values())
    times = {step: value for step, value in clean_stats.seconds.items() if value}
    return {
        "language": settings.language.code,
        # CLD2 takes it for this language, nothing tells them apart, and so text in it is kept, too.
        "sibling": settings.language.sibling,
        **_of_pairs(settings, clean_stats),
        "in": counts["documents_in"],
        "kept": num_kept,
        "records": dict(records),
        "heldout": heldout,
        "dropped": accounts.dropped,
        "limits": settings.limits if settings.has_rules else NO_RULES,
        **({"as_is": True} if settings.recipe.clean.as_is else {}),
        "bad": read_stats.bad,
        "bad_records": {"count": read_stats.bad, "first": read_stats.places},
        "responses_skipped": read_stats.skipped,
        "not_read": dict(sorted(read_stats.not_read.items())),
        "null_texts": read_stats.null_texts,
        "addresses": read_stats.addresses,
        "recoded": read_stats.recoded,
        **{name: counts[name] for name in ("normalized", "unescaped", "escaped", "foreign_lines")},
        "identifier_retries": counts["retried"],
        "bytes_in": read_stats.bytes_in,
        "bytes_out": sum(file.num_bytes for file in files),
        "words_out": sum(file.num_words for file in files),
        "bytes_dropped": {name: accounts.bytes_in[name] for name in accounts.dropped},
        # A page that was dropped unread breaks one rule: the others were not asked.
        "rules": accounts.rules_json(),
        "limits_tried": accounts.tried_json(),
        "lengths": accounts.lengths_json(),
        "clusters": accounts.clusters_json(),
        "hosts": accounts.hosts_json(),
        "by_source": accounts.sources_json(bad),
        "by_licence": accounts.licences_json(),
        "personal_data": dict(sorted(clean_stats.personal_data.items())),
        "national_telephones": knows_telephones(settings.language.code)
        if settings.recipe.clean.pii
        else None,
        "extraction": dict(sorted(clean_stats.extraction.items())),
        "seconds": {step: round(value, 3) for step, value in clean_stats.seconds.items()},
        "documents_per_s": {step: round(counts["documents_in"] / value, 1) for step, value in times.items()},
        "bytes_per_s": {step: round(read_stats.bytes_in / value) for step, value in times.items()},
    }


def _of_pairs(settings: Settings, clean_stats: CleanStats) -> Row:
    """Return what only parallel text has: `in`, `kept` and words are those of pairs, `records` those of documents."""
    if not (sides := settings.language.sides):
        return {}
    return {
        "pairs": {
            "languages": [side.code for side in sides], "template": TEMPLATE, "directions": len(sides),
            # Those too short to tell count as right.
            "sides": sides_json(sides, clean_stats.sides),
        }
    }  # fmt: skip


def write_samples(out: Path, dropped: Mapping[str, Sequence[Row]], in_corpus: Sequence[Row]) -> list[str]:
    """Write `rejected/<reason>.jsonl.zst` for each reason, and `samples/kept.jsonl.zst`; return their names."""
    files = {f"rejected/{reason}.jsonl.zst": rows for reason, rows in dropped.items()}
    files["samples/kept.jsonl.zst"] = in_corpus
    (out / "rejected").mkdir()
    (out / "samples").mkdir()
    for name, rows in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / name).write_bytes(zstandard.compress(lines.encode(errors="replace")))
    return list(files)
