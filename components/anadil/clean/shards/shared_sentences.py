"""Find sentences and lines that many documents of a host share, and take them out: footers, notices, invitations.

C4 drops spans of three sentences that come twice, CCNet paragraphs. Here one sentence is enough, where it stands in many
documents of one host: sentences of law or of a poem, shared by a few documents, stay. Documents without an address are
compared within their file.
Source: C4, arXiv:1910.10683, section 2.2; CCNet, arXiv:1911.00359, section 3.1.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.find_duplicates import Verdicts
from anadil.clean.dedup.sorted_documents import (
    COLUMNS,
    DocumentWriter,
    KeptDocument,
    Numbers,
    SortedDocuments,
    id_of,
)
from anadil.clean.filters.clean_stats import CleanStats
from anadil.clean.filters.judge_record import FilterResult, Settings, judge_prepared, searched
from anadil.clean.kernels.columns import STATISTICS
from anadil.clean.kernels.sentence_kernel import Sentences, sentences_of
from anadil.clean.read.readers import RawRecord
from anadil.clean.shards.map_shard import FACTS
from anadil.clean.write.corpus_parts import text_of
from anadil.clean.write.shard_output import ROWS, SCHEMA, failed_bits, kept_documents
from anadil.core.json_text import read_json, write_json
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from anadil.text.language_data import Language

MIN_DOCUMENTS = 10
"""Documents that share a sentence, at least. Our choice: fewer of a small host may quote the same."""
SENTENCES, GROUPS, SHARED = "sentences.npy", "groups.npy", "shared.npy"
GROUP_BITS = 24
"""First bits of a key: the host, whose keys lie together. Hosts that agree in these bits count as one."""
SENTENCE_BITS = 64 - GROUP_BITS
PART_SENTENCES = 1 << 22
"""Compared at a time, at some 40 bytes of memory for each."""
BATCH_CHARS = 1 << 18
EXAMPLES, EXAMPLE_CHARS = 20, 300
Lines = list[tuple[int, bytes]]
"""Rows of a shard, with their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """Everything that a process needs to list the sentences of one shard."""

    shard: Path
    verdicts: Path
    first_document: int
    language: str
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"sentences of {self.shard.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTask:
    """Everything that a process needs to take shared sentences out of one shard."""

    shard: Path
    shared: Path
    recipe: Recipe
    lists: Path | None
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"shared sentences of {self.shard.name}"


def list_sentences(task: CountTask) -> None:
    """Write the keys of all sentences of a shard, sorted, one for each kept document; and the documents of each host."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    shard, language = SortedDocuments(task.shard), load_language(task.language)
    groups, _ = _groups(task.shard, shard)
    is_kept = Verdicts(task.verdicts).is_kept(np.arange(shard.num_rows) + task.first_document)
    keys = [np.empty(0, dtype=np.uint64)]
    for lines in _batches(shard):
        chosen = [(row, line) for row, line in lines if is_kept[row]]
        sentences = _sentences(
            [text_of(line) for _, line in chosen], [groups[row] for row, _ in chosen], language
        )
        # A document counts once, however often it says a sentence.
        order = np.lexsort((sentences.hashes, sentences.texts))
        texts, hashes = sentences.texts[order], sentences.hashes[order]
        keys.append(
            hashes[np.append(True, (texts[1:] != texts[:-1]) | (hashes[1:] != hashes[:-1]))[: len(hashes)]]
        )
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
        np.save(draft / SENTENCES, np.sort(np.concatenate(keys)))
        np.save(draft / GROUPS, np.stack(np.unique(groups[is_kept], return_counts=True)).astype(np.uint64))


def write_shared(folders: Sequence[Path], max_share: float, folder: Path) -> None:
    """Write the sorted keys that more than a share of their host's documents have, and how many have each."""
    documents = Counter[int]()
    for each in folders:
        documents.update(dict(np.load(each / GROUPS).T.tolist()))
    hosts = np.array(sorted(documents), dtype=np.uint64)
    sizes = np.array([documents[host] for host in hosts.tolist()], dtype=np.int64)
    files = [np.load(folder / SENTENCES, mmap_mode="r") for folder in folders]
    num_parts = max(1, -(-sum(map(len, files)) // PART_SENTENCES))
    shared = [(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))]
    for part in range(num_parts):
        low, high = (np.uint64(((part + end) << 64) // num_parts - end) for end in (0, 1))
        pieces = [
            each[np.searchsorted(each, low) : np.searchsorted(each, high, side="right")] for each in files
        ]
        keys, counts = np.unique(np.concatenate(pieces), return_counts=True)
        is_many = counts >= MIN_DOCUMENTS
        keys, counts = keys[is_many], counts[is_many]
        is_shared = counts > max_share * sizes[np.searchsorted(hosts, keys >> np.uint64(SENTENCE_BITS))]
        shared.append((keys[is_shared], counts[is_shared]))
    keys, counts = (np.concatenate(each) for each in zip(*shared, strict=True))
    np.save(folder / SHARED, np.stack((keys, counts.astype(np.uint64))))


def num_shared(folder: Path) -> int:
    """Count the shared sentences that `write_shared` found."""
    return int(np.load(folder / SHARED).shape[1])


def trim_shard(task: TrimTask) -> None:
    """Write a shard again, without the shared sentences of its documents; what is left of these is judged again."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    settings = Settings(recipe=task.recipe, lists_folder=task.lists)
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
        _Trimming(task, settings, draft).run()


class _Trimming:
    def __init__(self, task: TrimTask, settings: Settings, draft: Path) -> None:
        self._task, self._settings, self._draft = task, settings, draft
        self._shard = SortedDocuments(task.shard)
        self._groups, self._names = _groups(task.shard, self._shard)
        self._columns = {name: np.asarray(self._shard.column(name)) for name in (*COLUMNS, "bands")}
        self._shared, counts = np.load(task.shared / SHARED)
        order = np.lexsort((self._shared, -counts.astype(np.int64)))[:EXAMPLES]
        self._counts = dict(zip(self._shared[order].tolist(), counts[order].tolist(), strict=True))
        self._examples: dict[str, dict[str, Any]] = {}
        self._changed: dict[int, FilterResult] = {}
        """Number of the record -> the new verdict on it."""
        self._stats, self._before = CleanStats(), CleanStats()
        self._facts = read_json(task.shard / FACTS)
        self._before.add(self._facts["clean"])

    def run(self) -> None:
        writer = DocumentWriter(self._draft, self._settings.minhash.bands)
        for lines in _batches(self._shard):
            texts = [text_of(line) for _, line in lines]
            sentences = _sentences(texts, [self._groups[row] for row, _ in lines], self._settings.language)
            is_shared = np.isin(sentences.hashes, self._shared)
            spans = Sentences(*(each[is_shared] for each in sentences))
            for number, (row, line) in enumerate(lines):
                chosen = spans.texts == number
                if chosen.any():
                    self._trim(row, line, texts[number], spans, np.flatnonzero(chosen), writer)
                else:
                    writer.add(self._unchanged(row, line))
        writer.finish()
        self._write_rows()
        self._stats.seconds.update(self._settings.timer.seconds)
        self._before.add(self._stats.as_json())
        self._before.personal_data = +self._before.personal_data
        facts = {**self._facts, "clean": self._before.as_json(), "shared": self._examples}
        write_json(self._draft / FACTS, facts)

    def _unchanged(self, row: int, line: bytes) -> KeptDocument:
        of = {name: column[..., row] for name, column in self._columns.items()}
        return KeptDocument(
            id=id_of(int(of["id_high"]), int(of["id_low"])), line=line, exact_key=int(of["exact_high"]) << 64 | int(of["exact_low"]),
            band_keys=of["bands"], weight=int(of["weight"]), num_bytes=int(of["num_bytes"]),
            num_words=int(of["num_words"]), record=int(of["record"]),
        )  # fmt: skip

    def _trim(
        self, row: int, line: bytes, text: str, spans: Sentences, chosen: Numbers, writer: DocumentWriter
    ) -> None:
        starts, stops = spans.starts[chosen].tolist(), spans.stops[chosen].tolist()
        for key, start, stop in zip(spans.hashes[chosen].tolist(), starts, stops, strict=True):
            if key in self._counts:
                self._examples[str(key)] = {
                    "text": text[start:stop][:EXAMPLE_CHARS], "host": self._names[row], "documents": self._counts[key],
                }  # fmt: skip
        document = json.loads(line)
        raw = RawRecord(source=document["source"], url=document["url"], text=text)
        extracted = searched(raw, without_spans(text, starts, stops), self._settings)
        result = judge_prepared([extracted], self._settings)[0]
        record = int(self._columns["record"][row])
        self._changed[record] = result
        self._stats.counts.update(trimmed=1, shared_sentences=len(starts))
        # Placeholders are counted in what stays alone.
        gone = text if result.reason else "".join(map(text.__getitem__, map(slice, starts, stops)))
        self._stats.personal_data.subtract(
            {kind: gone.count(f"<{kind}>") for kind in self._before.personal_data}
        )
        if result.reason:
            self._stats.drop(result.reason, {**extracted.document.as_row(), **result.sample})
        for each in kept_documents([result], [record], self._settings):
            writer.add(each)

    def _write_rows(self) -> None:
        with (
            pq.ParquetFile(self._task.shard / ROWS) as file,
            pq.ParquetWriter(self._draft / ROWS, SCHEMA, compression="zstd") as out,
        ):
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group)
                places = [
                    place
                    for place, record in enumerate(rows["record"].to_pylist())
                    if record in self._changed
                ]
                out.write_table(self._with_verdicts(rows, places) if places else rows)

    def _with_verdicts(self, rows: pa.Table, places: list[int]) -> pa.Table:
        results = [self._changed[record] for record in rows["record"].take(places).to_pylist()]
        columns: dict[str, Any] = {name: rows[name] for name in SCHEMA.names}
        values: dict[str, list[Any]] = {
            "id": [each.extracted.document.id for each in results],
            "bytes_out": [each.extracted.num_bytes for each in results],
            "failed": [failed_bits(each) for each in results],
            "reason": [each.reason for each in results],
        }
        for name, new in values.items():
            column = rows[name].to_pylist()
            for place, value in zip(places, new, strict=True):
                column[place] = value
            columns[name] = pa.array(column, SCHEMA.field(name).type)
        for number, name in enumerate(STATISTICS):
            measured = rows[name].to_numpy().copy()
            measured[places] = [
                each.statistics[number] if each.statistics is not None else np.nan for each in results
            ]
            columns[name] = pa.array(measured, SCHEMA.field(name).type, from_pandas=True)
        return pa.table(columns, schema=SCHEMA)


def without_spans(text: str, starts: Sequence[int], stops: Sequence[int]) -> str:
    """Take spans out of a text, with their line where nothing else stands in it."""
    pieces, place = [], 0
    for start, stop in zip(starts, stops, strict=True):
        pieces.append(text[place:start])
        is_line = text[max(0, start - 1) : start] in ("", "\n") and text[stop : stop + 1] == "\n"
        # Or with the space behind it.
        place = stop + (is_line or text[stop : stop + 1] == " ")
    joined = "".join([*pieces, text[place:]])
    lines = "\n".join(map(str.rstrip, joined.split("\n"))).strip("\n")
    while "\n\n\n" in lines:
        lines = lines.replace("\n\n\n", "\n\n")
    return lines


def _batches(shard: SortedDocuments) -> Iterator[Lines]:
    batch: Lines = []
    num_bytes = 0
    for row, line in shard.lines(0, shard.num_rows):
        batch.append((row, line))
        num_bytes += len(line)
        if num_bytes >= BATCH_CHARS:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _sentences(texts: Sequence[str], groups: Sequence[int], language: Language) -> Sentences:
    sentences = sentences_of(texts, language)
    host = np.array(groups, dtype=np.uint64)[sentences.texts] << np.uint64(SENTENCE_BITS)
    return sentences._replace(hashes=host | (sentences.hashes >> np.uint64(GROUP_BITS)))


def _groups(folder: Path, shard: SortedDocuments) -> tuple[Numbers, list[str]]:
    """Return for each document of a shard the bits of its host, or of its file where it names none, and their name."""
    rows = pq.read_table(folder / ROWS, columns=["record", "host", "file"])
    places = np.searchsorted(rows["record"].to_numpy(), np.asarray(shard.column("record")))
    hosts, files = (rows[name].cast(pa.string()).take(places).to_pylist() for name in ("host", "file"))
    names = [host or file for host, file in zip(hosts, files, strict=True)]
    bits = {
        name: int.from_bytes(hashlib.sha256(name.encode()).digest()[: GROUP_BITS // 8]) for name in set(names)
    }
    return np.array([bits[name] for name in names], dtype=np.uint64), names
