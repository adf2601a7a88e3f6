"""Find sentences and lines that many documents of a host share, and take them out: footers, notices, invitations.

C4 drops spans of three sentences that come twice, CCNet paragraphs. Here one sentence is enough, where it stands in many
documents of one host: sentences of law or of a poem, shared by a few documents, stay. Documents without an address are
compared within their file.
Source: C4, arXiv:1910.10683, section 2.2; CCNet, arXiv:1911.00359, section 3.1.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anadil.artifacts.local_directory import link
from anadil.artifacts.uri import MANIFEST
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
from anadil.clean.filters.lists import host_of
from anadil.clean.kernels.sentence_kernel import sentences_of
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord
from anadil.clean.write.shard_output import FACTS, ROWS, SCHEMA, failed_bits, kept_documents, measured_columns
from anadil.core.json_text import read_json, write_json
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import FolderTask
from anadil.text.language_data import Language

MIN_DOCUMENTS = 10
"""Documents that share a sentence, at least. Our choice: fewer of a small host may quote the same."""
SENTENCES, SENTENCE_ROWS, SHARED = "sentences.npy", "sentence_rows.npy", "shared.npy"
GROUP_BITS = 24
"""First bits of a key: the host, whose keys lie together. Hosts that agree in these bits count as one."""
SENTENCE_BITS = 64 - GROUP_BITS
SENTENCE_MASK = np.uint64((1 << SENTENCE_BITS) - 1)
"""Bits of the sentence: none in the key that each document has for its host."""
PART_SENTENCES = 1 << 22
"""Compared at a time, at some 40 bytes of memory for each."""
EXAMPLES, EXAMPLE_CHARS = 20, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTask(FolderTask):
    """Everything that a process needs to take shared sentences out of one shard."""

    shard: Path
    shared: Path
    recipe: Recipe
    lists: Path | None


class SentenceWriter:
    """Writes the keys of the sentences of a shard's kept documents, sorted, and the document that each is of."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._keys = [np.empty(0, dtype=np.uint64)]
        self._records = [np.empty(0, dtype=np.int64)]

    def add(self, file: str, documents: Sequence[tuple[int, str, str]]) -> None:
        """Add documents of an input: the number of each in the shard, its address and text."""
        records = np.array([record for record, _, _ in documents], dtype=np.int64)
        groups = np.array([_bits(group_of(url, file)) for _, url, _ in documents], dtype=np.uint64)
        sentences = sentences_of([text for _, _, text in documents], self._language)
        # A document counts once, however often it says a sentence, and once for its host.
        keys = np.concatenate((groups, _keys(sentences.hashes, groups[sentences.texts])))
        owners = np.concatenate((np.arange(len(groups)), sentences.texts))
        order = np.lexsort((keys, owners))
        keys, owners = keys[order], owners[order]
        is_first = np.append(True, (owners[1:] != owners[:-1]) | (keys[1:] != keys[:-1]))[: len(keys)]
        self._keys.append(keys[is_first])
        self._records.append(records[owners[is_first]])

    def finish(self, folder: Path) -> None:
        """Write all, when the documents of the shard are sorted."""
        keys, records = np.concatenate(self._keys), np.concatenate(self._records)
        order = np.argsort(keys, kind="stable")
        of_rows = np.asarray(SortedDocuments(folder).column("record"))
        row_of = np.zeros(1 + int(of_rows.max(initial=0)), dtype=np.uint32)
        row_of[of_rows] = np.arange(len(of_rows), dtype=np.uint32)
        np.save(folder / SENTENCES, keys[order])
        np.save(folder / SENTENCE_ROWS, row_of[records[order]])


def write_shared(
    shards: Sequence[Path], starts: Sequence[int], verdicts: Verdicts, max_share: float, folder: Path
) -> None:
    """Write the sorted keys that more than a share of their host's kept documents have, and how many have each.

    `starts` are the numbers of their first documents.
    """
    files = [
        (
            np.load(shard / SENTENCES, mmap_mode="r"),
            np.load(shard / SENTENCE_ROWS, mmap_mode="r"),
            np.int64(start),
        )
        for shard, start in zip(shards, starts, strict=True)
    ]
    pieces = []
    for keys, rows, start in files:
        places = np.flatnonzero(keys & SENTENCE_MASK == 0)
        pieces.append(np.unique(keys[places][verdicts.is_kept(rows[places] + start)], return_counts=True))
    hosts, place_of = np.unique(np.concatenate([keys for keys, _ in pieces]), return_inverse=True)
    sizes = np.bincount(place_of, np.concatenate([counts for _, counts in pieces]), len(hosts))
    num_parts = max(1, -(-sum(len(keys) for keys, _, _ in files) // PART_SENTENCES))
    shared = [np.empty((2, 0), dtype=np.uint64)]
    for part in range(num_parts):
        borders = np.array([((part + end) << 64) // num_parts - end for end in (0, 1)], dtype=np.uint64)
        chosen = []
        for keys, rows, start in files:
            first, stop = np.searchsorted(keys, borders[0]), np.searchsorted(keys, borders[1], side="right")
            chosen.append(keys[first:stop][verdicts.is_kept(rows[first:stop] + start)])
        keys, counts = np.unique(np.concatenate(chosen), return_counts=True)
        is_many = (counts >= MIN_DOCUMENTS) & (keys & SENTENCE_MASK != 0)
        keys, counts = keys[is_many], counts[is_many]
        is_shared = counts > max_share * sizes[np.searchsorted(hosts, keys & ~SENTENCE_MASK)]
        shared.append(np.stack((keys[is_shared], counts[is_shared].astype(np.uint64))))
    np.save(folder / SHARED, np.concatenate(shared, axis=1))


def num_shared(folder: Path) -> int:
    """Count the shared sentences that `write_shared` found."""
    return int(np.load(folder / SHARED).shape[1])


def trim_shard(task: TrimTask) -> None:
    """Write a shard again, without the shared sentences of its documents; what is left of these is judged again."""
    if task.is_done():
        return
    keys, rows = (np.load(task.shard / name) for name in (SENTENCES, SENTENCE_ROWS))
    shared, counts = np.load(task.shared / SHARED)
    is_shared = np.isin(keys, shared)
    with task.draft() as draft:
        if is_shared.any():
            groups = dict(
                zip(rows[is_shared].tolist(), (keys[is_shared] & ~SENTENCE_MASK).tolist(), strict=True)
            )
            _Trimming(task, draft, groups, shared, counts).run()
        else:
            for file in task.shard.iterdir():
                if file.name != MANIFEST:
                    link(file, draft / file.name)


class _Trimming:
    def __init__(
        self, task: TrimTask, draft: Path, groups: dict[int, int], shared: Numbers, counts: Numbers
    ) -> None:
        self._task, self._draft = task, draft
        self._settings = Settings(recipe=task.recipe, lists_folder=task.lists)
        self._shard = SortedDocuments(task.shard)
        self._groups = groups
        """Row of each document with shared sentences -> bits of its host."""
        self._columns = {name: np.asarray(self._shard.column(name)) for name in (*COLUMNS, "bands")}
        self._shared = shared
        order = np.lexsort((shared, -counts.astype(np.int64)))[:EXAMPLES]
        self._counts = dict(zip(shared[order].tolist(), counts[order].tolist(), strict=True))
        self._examples: dict[str, dict[str, Any]] = {}
        self._changed: dict[int, FilterResult] = {}
        """Number of the record -> the new verdict on it."""
        self._stats, self._before = CleanStats(), CleanStats()
        self._facts = read_json(task.shard / FACTS)
        self._before.add(self._facts["clean"])
        files = pq.read_table(task.shard / ROWS, columns=["record", "file"])
        chosen = files.filter(
            pc.is_in(files["record"], pa.array(self._columns["record"][[*groups]], pa.uint32()))
        )
        self._files = dict(zip(*(chosen[name].to_pylist() for name in chosen.column_names), strict=True))

    def run(self) -> None:
        writer = DocumentWriter(self._draft, self._settings.minhash.bands)
        for row, line in self._shard.lines(0, self._shard.num_rows):
            if row in self._groups:
                self._trim(row, line, writer)
            else:
                of = {name: column[..., row] for name, column in self._columns.items()}
                writer.add(KeptDocument(
                    id=id_of(int(of["id_high"]), int(of["id_low"])), line=line, exact_key=int(of["exact_high"]) << 64 | int(of["exact_low"]),
                    band_keys=of["bands"], weight=int(of["weight"]), num_bytes=int(of["num_bytes"]),
                    num_words=int(of["num_words"]), record=int(of["record"]),
                ))  # fmt: skip
        writer.finish()
        self._write_rows()
        self._stats.seconds.update(self._settings.timer.seconds)
        self._before.add(self._stats.as_json())
        self._before.personal_data = +self._before.personal_data
        facts = {**self._facts, "clean": self._before.as_json(), "shared": self._examples}
        write_json(self._draft / FACTS, facts)

    def _trim(self, row: int, line: bytes, writer: DocumentWriter) -> None:
        document, record = json.loads(line), int(self._columns["record"][row])
        text = document["text"]
        sentences = sentences_of([text], self._settings.language)
        keys = _keys(sentences.hashes, np.uint64(self._groups[row]))
        chosen = np.isin(keys, self._shared)
        starts, stops = sentences.starts[chosen].tolist(), sentences.stops[chosen].tolist()
        for key, start, stop in zip(keys[chosen].tolist(), starts, stops, strict=True):
            if key in self._counts:
                self._examples[str(key)] = {
                    "text": text[start:stop][:EXAMPLE_CHARS], "documents": self._counts[key],
                    "host": group_of(document["url"], self._files[record]),
                }  # fmt: skip
        raw = RawRecord(source=document["source"], url=document["url"], text=text)
        extracted = searched(raw, without_spans(text, starts, stops), self._settings)
        result = judge_prepared([extracted], self._settings)[0]
        self._changed[record] = result
        self._stats.counts.update(trimmed=1, shared_sentences=len(starts))
        # Placeholders are counted in what stays alone.
        gone = text if result.reason else "".join(map(text.__getitem__, map(slice, starts, stops)))
        self._stats.personal_data.subtract(
            {kind: gone.count(f"<{kind}>") for kind in self._before.personal_data}
        )
        if result.error:
            read = next(
                each for name, each in zip(self._facts["files"], self._facts["read"], strict=True)
                if name == self._files[record]
            )  # fmt: skip
            part = ReadStats(**read)
            part.refuse_by_filter(document["source"], result.error)
            read.update(asdict(part))
            self._stats.counts["documents_in"] -= 1
        elif result.reason:
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
                is_changed = np.isin(rows["record"].to_numpy(), [*self._changed])
                out.write_table(self._with_verdicts(rows, is_changed) if is_changed.any() else rows)

    def _with_verdicts(self, rows: pa.Table, is_changed: Numbers) -> pa.Table:
        changed = rows.filter(is_changed)
        results = [self._changed[record] for record in changed["record"].to_pylist()]
        columns: dict[str, Any] = {
            "id": [each.extracted.document.id for each in results],
            "bytes_out": [each.extracted.num_bytes for each in results],
            "failed": [failed_bits(each) for each in results],
            "reason": [each.reason for each in results],
        } | measured_columns([each.statistics for each in results])
        for name, values in columns.items():
            field = SCHEMA.field(name)
            column = pa.array(values, field.type, from_pandas=True)
            changed = changed.set_column(SCHEMA.get_field_index(name), field, column)
        changed = changed.filter(pa.array([not each.error for each in results]))
        return pa.concat_tables([rows.filter(~is_changed), changed]).unify_dictionaries().sort_by("record")


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


def group_of(url: str, file: str) -> str:
    """Return the host of a document, or its file where it names none."""
    return (host_of(url) if url else "").encode(errors="replace").decode() or file


def _bits(group: str) -> int:
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[: GROUP_BITS // 8]) << SENTENCE_BITS


def _keys(hashes: Numbers, groups: Any) -> Numbers:
    keys: Numbers = groups | (hashes >> np.uint64(GROUP_BITS))
    return keys
