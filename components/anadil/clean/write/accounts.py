"""Sums over the rows of documents: in = kept + dropped, by rule, by file, by host, by length."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anadil.clean.write.rows import BIT_OF
from anadil.clean.write.tried_limits import count_tried, tried_json

KEPT_NAME = "kept"
MAX_HOSTS = 10_000
"""Hosts that are counted at a time; with more of them the smallest counts are lost, and sums are too low."""
TOP_HOSTS = 50
MAX_FILES = 1_000
"""Most entries of `by_source`; the rest is one entry."""
OTHER_FILES = "other files"
MAX_LICENCES = 100
"""Most entries of `by_licence`; the rest is one entry. Records name them, and some put whole sentences there."""
OTHER_LICENCES = "other licences"
CLUSTER_BOUNDS = (2, 3, 5, 10, 100, 1_000, 10_000)
"""Least sizes of the groups in which clusters are counted."""
Array = npt.NDArray[Any]
Json = dict[str, Any]


class Accounts:
    """Sums over rows; those of several parts are added."""

    def __init__(
        self, reported: frozenset[str] = frozenset(), limits: Mapping[str, float] | None = None
    ) -> None:
        """Begin with nothing.

        Args:
            reported: Rules that drop nothing.
            limits: In force, of which multiples are tried; by key.
        """
        self._reported = reported
        self._limits = limits or {}
        self._enforced = np.uint64(sum(bit for name, bit in BIT_OF.items() if name not in reported))
        self.documents = 0
        self.reasons: Counter[str] = Counter()
        """Documents by reason, with `kept` as one."""
        self.bytes_in: Counter[str] = Counter()
        """Bytes of these, as they came."""
        self.bytes_out: Counter[str] = Counter()
        """Bytes of the text of kept ones."""
        self.failed: Counter[str] = Counter()
        """Documents that a rule alone, without the others, would drop."""
        self.only: Counter[str] = Counter()
        """Documents that no other enforced rule drops."""
        self.lengths: Counter[str] = Counter()
        """`kept 10`: kept documents of 2 ** 10 bytes of text up to twice as many."""
        self.clusters: Counter[str] = Counter()
        """Kept documents that stand for others, by the least size of the group."""
        self.tried: Counter[str] = Counter()
        """Documents that other limits would drop; see `count_tried`."""
        self.hosts: Counter[str] = Counter()
        self.kept_hosts: Counter[str] = Counter()
        self.by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.licences: Counter[str] = Counter()
        """Kept documents by what their records say."""
        self.words: dict[str, Counter[str]] = {name: Counter() for name in PLACES}
        """Words of kept documents, by host, file or licence."""
        self.bytes: dict[str, Counter[str]] = {name: Counter() for name in PLACES}
        """Bytes of their text."""

    def count(self, rows: pa.Table, reason: Array, cluster_size: Array) -> None:
        """Add rows of a shard.

        Args:
            rows: As `rows.SCHEMA` has them.
            reason: Final one of each; None for kept ones.
            cluster_size: Of each.
        """
        names = np.array([KEPT_NAME if each is None else each for each in reason], dtype=object)
        is_kept = names == KEPT_NAME
        sizes = {name: rows[name].to_numpy().astype(np.int64) for name in ("bytes_in", "bytes_out")}
        self.documents += rows.num_rows
        for name in dict.fromkeys(names.tolist()):
            chosen = names == name
            self.reasons[name] += int(chosen.sum())
            self.bytes_in[name] += int(sizes["bytes_in"][chosen].sum())
        self.bytes_out[KEPT_NAME] += int(sizes["bytes_out"][is_kept].sum())
        self._count_rules(rows["failed"].to_numpy())
        self.tried.update(count_tried(rows, self._limits, int(self._enforced)))
        self._count_lengths(sizes["bytes_out"], is_kept, rows["is_judged"].to_numpy(zero_copy_only=False))
        standing = cluster_size[is_kept & (cluster_size > 1)]
        groups = np.searchsorted(CLUSTER_BOUNDS, standing, side="right") - 1
        self.clusters.update(str(CLUSTER_BOUNDS[group]) for group in groups.tolist())
        self._count_places(rows, names, is_kept)

    def _count_rules(self, failed: Array) -> None:
        for name, bit in BIT_OF.items():
            own = (failed & np.uint64(bit)) != 0
            others = failed & self._enforced & ~np.uint64(bit)
            self.failed[name] += int(own.sum())
            self.only[name] += int((own & (others == 0)).sum())

    def _count_lengths(self, sizes: Array, is_kept: Array, is_judged: Array) -> None:
        powers = np.log2(np.maximum(sizes, 1)).astype(np.int64)
        for word, chosen in ((KEPT_NAME, is_kept), ("dropped", ~is_kept & is_judged)):
            for power, count in zip(*np.unique(powers[chosen], return_counts=True), strict=True):
                self.lengths[f"{word} {power}"] += int(count)

    def _count_places(self, rows: pa.Table, names: Array, is_kept: Array) -> None:
        for host, kept in zip(rows["host"].to_pylist(), is_kept.tolist(), strict=True):
            if host:
                self.hosts[host] += 1
                self.kept_hosts[host] += kept
        for file, name in zip(rows["file"].to_pylist(), names.tolist(), strict=True):
            self.by_source[file][name] += 1
        kept = rows.filter(pa.array(is_kept))
        words = np.nan_to_num(kept["words"].to_numpy()).astype(np.int64).tolist()
        sizes = kept["bytes_out"].to_pylist()
        self.licences.update(kept["licence"].to_pylist())
        for name in PLACES:
            own_words, own_bytes = self.words[name], self.bytes[name]
            for place, count, size in zip(kept[name].to_pylist(), words, sizes, strict=True):
                own_words[place] += count
                own_bytes[place] += size

    def as_json(self) -> Json:
        """Everything, for `add`."""
        hosts = dict(self.hosts.most_common(MAX_HOSTS))
        licences = dict(self.licences.most_common(MAX_HOSTS))
        extents: dict[str, Iterable[str]] = {"host": hosts, "file": self.by_source, "licence": licences}
        return {
            **{name: dict(getattr(self, name)) for name in COUNTERS},
            "documents": self.documents,
            "hosts": hosts,
            "kept_hosts": {host: self.kept_hosts[host] for host in hosts},
            "by_source": {file: dict(counts) for file, counts in self.by_source.items()},
            "licences": licences,
            "words": {kind: {name: self.words[kind][name] for name in extents[kind]} for kind in PLACES},
            "bytes": {kind: {name: self.bytes[kind][name] for name in extents[kind]} for kind in PLACES},
        }

    def add(self, other: Json) -> None:
        """Add what `as_json` gave of other rows."""
        self.documents += other["documents"]
        for name in (*COUNTERS, "hosts", "kept_hosts", "licences"):
            getattr(self, name).update(other[name])
        for name in PLACES:
            self.words[name].update(other["words"][name])
            self.bytes[name].update(other["bytes"][name])
        for file, counts in other["by_source"].items():
            self.by_source[file].update(counts)
        if len(self.hosts) > 2 * MAX_HOSTS:
            self.hosts = Counter(dict(self.hosts.most_common(MAX_HOSTS)))
            self.kept_hosts = Counter({host: self.kept_hosts[host] for host in self.hosts})
            for unit in (self.words, self.bytes):
                unit["host"] = Counter({host: unit["host"][host] for host in self.hosts})

    @property
    def dropped(self) -> dict[str, int]:
        """Documents by reason, in the order of the names."""
        return {name: count for name, count in sorted(self.reasons.items()) if name != KEPT_NAME}

    def rules_json(self) -> Json:
        """Drops of each rule, in the order in which they are asked, without those that no document breaks."""
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
        """Documents that stricter and looser limits would drop, by key of `clean.rules`."""
        return tried_json(self.tried, self._limits)

    def lengths_json(self) -> list[Json]:
        """Kept and dropped documents by the length of their text, in powers of two of bytes."""
        powers = sorted({int(name.split()[1]) for name in self.lengths})
        return (
            [
                {
                    "bytes": 2**power,
                    **{word: self.lengths[f"{word} {power}"] for word in (KEPT_NAME, "dropped")},
                }
                for power in range(powers[0], powers[-1] + 1)
            ]
            if powers
            else []
        )

    def hosts_json(self) -> Json:
        """The hosts with most documents."""
        top = sorted(self.hosts.items(), key=lambda item: (-item[1], item[0]))[:TOP_HOSTS]
        return {
            host: {"in": count, "kept": self.kept_hosts[host], **self._extent("host", host)}
            for host, count in top
        }

    def _extent(self, kind: str, name: str) -> dict[str, int]:
        """Words and bytes of the kept documents of a place."""
        return {"words": self.words[kind][name], "bytes": self.bytes[kind][name]}

    def licences_json(self) -> Json:
        """Kept documents by the licence that their records name, most first; an empty name: they name none."""
        ranked = sorted(self.licences.items(), key=lambda item: (-item[1], item[0]))
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for number, (licence, count) in enumerate(ranked):
            name = licence if number < MAX_LICENCES or len(ranked) == MAX_LICENCES + 1 else OTHER_LICENCES
            table[name].update({"kept": count, **self._extent("licence", licence)})
        return {name: dict(entry) for name, entry in table.items()}

    def sources_json(self, bad: Counter[str]) -> Json:
        """Verdicts on the documents of each file.

        Args:
            bad: Records of each that could not be read.
        """
        files = sorted(self.by_source.keys() | bad.keys())
        table: dict[str, Json] = {}
        for number, file in enumerate(files):
            name = file if number < MAX_FILES or len(files) == MAX_FILES + 1 else OTHER_FILES
            counts = self.by_source.get(file, Counter())
            empty = {"in": 0, "kept": 0, "bad": 0, "dropped": Counter(), "words": 0, "bytes": 0}
            entry = table.setdefault(name, empty)
            entry["in"] += counts.total()
            entry["kept"] += counts[KEPT_NAME]
            entry["bad"] += bad[file]
            entry["dropped"].update({each: n for each, n in counts.items() if each != KEPT_NAME})
            for unit, number_of in self._extent("file", file).items():
                entry[unit] += number_of
        return {
            name: {**entry, "dropped": dict(sorted(entry["dropped"].items()))}
            for name, entry in table.items()
        }

    def clusters_json(self) -> Json:
        """Kept documents that stand for others as well: least size of the cluster -> how many."""
        return {str(bound): count for bound in CLUSTER_BOUNDS if (count := self.clusters[str(bound)])}


PLACES = ("host", "file", "licence")
"""Columns by which words and bytes are summed."""
COUNTERS = ("reasons", "bytes_in", "bytes_out", "failed", "only", "lengths", "clusters", "tried")
