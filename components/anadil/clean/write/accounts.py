"""Sums over the rows of documents: in = kept + dropped, by rule, by file, by host, by length, and at other limits."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from anadil.clean.filters.clean_stats import CleanStats, Row
from anadil.clean.filters.judge_record import Settings
from anadil.clean.filters.pairs import late_files, sides_json
from anadil.clean.filters.pii import knows_telephones
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.write.corpus_parts import CorpusFile
from anadil.clean.write.shard_output import BIT_OF
from anadil.recipe.filter_rules import NO_RULES
from anadil.text.filter_rules import KEYS, RULES
from anadil.text.parallel import TEMPLATE

KEPT_NAME = "kept"
MAX_HOSTS = 10_000
"""Hosts, and licences, that are counted at a time; with more of them the smallest counts are lost, and sums are too low."""
TOP_HOSTS = 50
MAX_FILES = 1_000
"""Most entries of `by_source`; the rest is one entry."""
OTHER_FILES = "other files"
MAX_LICENCES = 100
"""Most entries of `by_licence`; the rest is one entry. Records name them, and some put whole sentences there."""
OTHER_LICENCES = "other licences"
CLUSTER_BOUNDS = (2, 3, 5, 10, 100, 1_000, 10_000)
"""Least sizes of the groups in which clusters are counted."""
FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)
MIN_WHOLE = 20
"""Smaller limits are of means, too."""
COUNTERS = ("reasons", "bytes_in", "failed", "only", "lengths", "clusters", "tried")
OF_TEXTS = (
    "normalized", "turned", "respelled", "unescaped", "escaped", "foreign_lines", "siblings", "siblings_kept",
)  # fmt: skip
PLACES = ("host", "file", "licence")
Array = npt.NDArray[Any]
Json = dict[str, Any]


class Accounts:
    """Sums over rows. Sums of several parts are added."""

    def __init__(
        self, reported: frozenset[str] = frozenset(), limits: Mapping[str, float] | None = None
    ) -> None:
        """Begin with the rules that drop nothing, and the limits in force, by key, of which multiples are tried."""
        self._reported = reported
        self._limits = limits or {}
        self._enforced = sum(bit for name, bit in BIT_OF.items() if name not in reported)
        self.documents = 0
        self.reasons: Counter[str] = Counter()
        """Documents by reason, with `kept` as one."""
        self.bytes_in: Counter[str] = Counter()
        """Bytes of these, as they came."""
        self.failed: Counter[str] = Counter()
        """Documents that a rule alone, without the others, would drop."""
        self.only: Counter[str] = Counter()
        """Documents that no other enforced rule drops."""
        self.lengths: Counter[str] = Counter()
        """`kept 10`: kept documents of 2 ** 10 bytes of text up to twice as many."""
        self.clusters: Counter[str] = Counter()
        """Kept documents that stand for others, by the least size of the group."""
        self.tried: Counter[str] = Counter()
        """`max_foreign 2`: documents that break the third limit tried for that key, and no other enforced rule.
        `max_foreign` itself: documents that break no other enforced rule."""
        self.places: dict[str, defaultdict[str, Counter[str]]] = {
            kind: defaultdict(Counter) for kind in PLACES
        }
        """Documents (`in`, `kept`, `dropped REASON`) of each host, file and licence; `words` and `bytes` of kept ones."""

    def count(self, rows: pa.Table, reason: Array, cluster_size: Array) -> None:
        """Add rows of a shard; `reason` is the final one of each, None for kept ones."""
        names = np.array([KEPT_NAME if each is None else each for each in reason], dtype=object)
        is_kept = names == KEPT_NAME
        is_judged = rows["is_judged"].to_numpy(zero_copy_only=False)
        bytes_in, bytes_out = (rows[name].to_numpy().astype(np.int64) for name in ("bytes_in", "bytes_out"))
        self.documents += rows.num_rows
        for name in dict.fromkeys(names.tolist()):
            self.reasons[name] += int((names == name).sum())
            self.bytes_in[name] += int(bytes_in[names == name].sum())
        failed = rows["failed"].to_numpy()
        for name, bit in BIT_OF.items():
            breaks = (failed & np.uint64(bit)) != 0
            self.failed[name] += int(breaks.sum())
            self.only[name] += int((breaks & ((failed & np.uint64(self._enforced & ~bit)) == 0)).sum())
        powers = np.log2(np.maximum(bytes_out, 1)).astype(np.int64)
        for word, chosen in ((KEPT_NAME, is_kept), ("dropped", ~is_kept & is_judged)):
            for power, count in zip(*np.unique(powers[chosen], return_counts=True), strict=True):
                self.lengths[f"{word} {power}"] += int(count)
        standing = cluster_size[is_kept & (cluster_size > 1)]
        groups = np.searchsorted(CLUSTER_BOUNDS, standing, side="right") - 1
        self.clusters.update(str(CLUSTER_BOUNDS[group]) for group in groups.tolist())
        # Counts of what other limits would drop; documents that were dropped unread are left out.
        for key in dict.fromkeys(rule.limit for rule in RULES if rule.limit in self._limits):
            others = self._enforced & ~BIT_OF[KEYS[key].name]
            sound = is_judged & ((failed & np.uint64(others)) == 0)
            self.tried[key] += int(sound.sum())
            for place, limit in enumerate(_multiples(self._limits[key])):
                self.tried[f"{key} {place}"] += int((sound & _breaks(rows, key, limit)).sum())
        self._count_places(rows, names)

    def _count_places(self, rows: pa.Table, names: Array) -> None:
        words = np.nan_to_num(rows["words"].to_numpy()).astype(np.int64).tolist()
        sizes, reasons = rows["bytes_out"].to_pylist(), names.tolist()
        for kind, table in self.places.items():
            places = rows[kind].to_pylist()
            for place, reason, num_words, size in zip(places, reasons, words, sizes, strict=True):
                entry = table[place]
                entry["in"] += 1
                if reason == KEPT_NAME:
                    entry["kept"] += 1
                    entry["words"] += num_words
                    entry["bytes"] += size
                elif kind == "file":
                    entry[f"dropped {reason}"] += 1
        self.places["host"].pop("", None)

    def as_json(self) -> Json:
        """Return everything, for `add`."""
        return {
            **{name: dict(getattr(self, name)) for name in COUNTERS},
            "documents": self.documents,
            "host": dict(_largest(self.places["host"], "in")),
            "file": self.places["file"],
            "licence": dict(_largest(self.places["licence"], "kept")),
        }

    def add(self, other: Json) -> None:
        """Add what `as_json` gave of other rows."""
        self.documents += other["documents"]
        for name in COUNTERS:
            getattr(self, name).update(other[name])
        for kind, table in self.places.items():
            for place, counts in other[kind].items():
                table[place].update(counts)
        if len(self.places["host"]) > 2 * MAX_HOSTS:
            self.places["host"] = defaultdict(Counter, _largest(self.places["host"], "in"))

    @property
    def dropped(self) -> dict[str, int]:
        """Documents by reason, in the order of the names."""
        return {name: count for name, count in sorted(self.reasons.items()) if name != KEPT_NAME}

    def rules_json(self) -> Json:
        """Return the drops of each rule, in the order in which they are asked, without rules that no document breaks."""
        return {
            name: {
                "mode": "report" if name in self._reported else "enforce",
                "marginal": self.failed[name],
                "unique": self.only[name],
                "chosen": self.reasons[name],
                "bytes": self.bytes_in[name],
            }
            for name in BIT_OF
            if self.failed[name]
        }

    def tried_json(self) -> Json:
        """Return key -> rule, documents that no other rule drops, and how many of them each limit would; no idle ones."""
        return {
            key: {
                "rule": KEYS[key].name,
                "in_force": limit,
                "documents": self.tried[key],
                "tried": [
                    [each, self.tried[f"{key} {place}"]] for place, each in enumerate(_multiples(limit))
                ],
            }
            for key, limit in self._limits.items()
            if any(self.tried[f"{key} {place}"] for place in range(len(FACTORS)))
        }

    def lengths_json(self) -> list[Json]:
        """Return kept and dropped documents by the length of their text, in powers of two of bytes."""
        powers = [int(name.split()[1]) for name in self.lengths]
        return [
            {"bytes": 2**power, **{word: self.lengths[f"{word} {power}"] for word in (KEPT_NAME, "dropped")}}
            for power in (range(min(powers), max(powers) + 1) if powers else ())
        ]

    def hosts_json(self) -> Json:
        """Return the hosts with most documents."""
        top = sorted(self.places["host"].items(), key=lambda item: (-item[1]["in"], item[0]))[:TOP_HOSTS]
        return {host: {key: entry[key] for key in ("in", "kept", "words", "bytes")} for host, entry in top}

    def licences_json(self) -> Json:
        """Return kept documents by the licence that their records name, most first; an empty name: they name none."""
        ranked = sorted(
            ((licence, entry) for licence, entry in self.places["licence"].items() if entry["kept"]),
            key=lambda item: (-item[1]["kept"], item[0]),
        )
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for number, (licence, entry) in enumerate(ranked):
            name = licence if number < MAX_LICENCES or len(ranked) == MAX_LICENCES + 1 else OTHER_LICENCES
            table[name].update({key: entry[key] for key in ("kept", "words", "bytes")})
        return {name: dict(entry) for name, entry in table.items()}

    def sources_json(self, bad: Counter[str]) -> Json:
        """Return the verdicts on the documents of each file; `bad` counts its records that could not be read."""
        files = sorted(self.places["file"].keys() | bad.keys())
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for number, file in enumerate(files):
            name = file if number < MAX_FILES or len(files) == MAX_FILES + 1 else OTHER_FILES
            table[name].update(self.places["file"].get(file, {}), bad=bad[file])
        return {
            name: {
                **{key: entry[key] for key in ("in", "kept", "bad")},
                "dropped": {
                    key.removeprefix("dropped "): count
                    for key, count in sorted(entry.items())
                    if key.startswith("dropped ")
                },
                **{key: entry[key] for key in ("words", "bytes")},
            }
            for name, entry in table.items()
        }


def limits_in_force(limits: Array) -> dict[str, float]:
    """Return key of `clean.rules` -> limit; `limits` are in the order of `RULES`, nan for none."""
    pairs = zip(RULES, limits.tolist(), strict=True)
    return {rule.limit: limit for rule, limit in pairs if rule.limit in KEYS and limit > 0}


def _largest(table: Mapping[str, Counter[str]], key: str) -> list[tuple[str, Counter[str]]]:
    return sorted(table.items(), key=lambda item: -item[1][key])[:MAX_HOSTS]


def _multiples(limit: float) -> list[float]:
    """Return the limits that are tried: a share is 1 at most, a number of words or characters is whole."""
    if limit <= 1:
        return [round(min(1.0, limit * factor), 4) for factor in FACTORS]
    return [round(limit * factor, 0 if limit >= MIN_WHOLE else 4) for factor in FACTORS]


def _breaks(rows: pa.Table, key: str, limit: float) -> Array:
    broken = np.zeros(rows.num_rows, dtype=bool)
    # Rows hold 32 bits: a value at the limit must not exceed it by what was rounded.
    bound = np.float32(limit)
    for rule in RULES:
        if rule.limit == key:
            values = rows[rule.measure].to_numpy(zero_copy_only=False)
            broken |= values < bound if rule.is_least else values > bound
    return broken


def make_stats(
    settings: Settings, read_stats: ReadStats, clean_stats: CleanStats, files: Sequence[CorpusFile],
    records: dict[str, int], accounts: Accounts, bad: Counter[str], heldout: dict[str, int],
) -> Row:  # fmt: skip
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
        **_of_filters(settings, counts["filtered"], read_stats.failed),
        "bad": read_stats.bad,
        "bad_records": {"count": read_stats.bad, "first": read_stats.places},
        "responses_skipped": read_stats.skipped,
        "not_read": dict(sorted(read_stats.not_read.items())),
        "txt_documents": dict(sorted(read_stats.txt_documents.items())),
        "null_texts": read_stats.null_texts,
        "addresses": read_stats.addresses,
        "recoded": read_stats.recoded,
        **{name: counts[name] for name in OF_TEXTS},
        "identifier_retries": counts["retried"],
        "bytes_in": read_stats.bytes_in,
        "bytes_out": sum(file.num_bytes for file in files),
        "words_out": sum(file.num_words for file in files),
        "bytes_dropped": {name: accounts.bytes_in[name] for name in accounts.dropped},
        # A page that was dropped unread breaks one rule: the others were not asked.
        "rules": accounts.rules_json(),
        "limits_tried": accounts.tried_json(),
        "lengths": accounts.lengths_json(),
        # Least size of the cluster -> documents that stand for so many.
        "clusters": {
            name: accounts.clusters[name] for name in map(str, CLUSTER_BOUNDS) if accounts.clusters[name]
        },
        "hosts": accounts.hosts_json(),
        "by_source": accounts.sources_json(bad),
        "by_licence": accounts.licences_json(),
        "personal_data": dict(sorted(clean_stats.personal_data.items())),
        "national_telephones": knows_telephones(settings.language.code)
        if settings.recipe.clean.pii
        else None,
        "extraction": dict(sorted(clean_stats.extraction.items())),
        "formats": dict(sorted(clean_stats.formats.items())),
        "seconds": {step: round(value, 3) for step, value in clean_stats.seconds.items()},
        "documents_per_s": {step: round(counts["documents_in"] / value, 1) for step, value in times.items()},
        "bytes_per_s": {step: round(read_stats.bytes_in / value) for step, value in times.items()},
    }


def _of_filters(settings: Settings, asked: int, failed: int) -> Row:
    """Return the user's filters, documents that they were asked about, and documents on which they failed."""
    filters = settings.recipe.clean.filters
    return (
        {"filters": {"names": list(filters), "documents": asked + failed, "failed": failed}}
        if filters
        else {}
    )


def _of_pairs(settings: Settings, clean_stats: CleanStats) -> Row:
    """Return what only parallel text has: `in`, `kept` and words are those of pairs, `records` those of documents."""
    if not (sides := settings.language.sides):
        return {}
    return {
        "pairs": {
            "languages": [side.code for side in sides], "template": TEMPLATE, "directions": len(sides),
            # Those too short to tell count as right.
            "sides": sides_json(sides, clean_stats.sides),
            # Files with lines of a side below those that they translate.
            "late": {
                file: {"side": sides[side == "second"].code, "share": round(share, 4)}
                for file, (side, share) in late_files(clean_stats.lateness).items()
            },
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
