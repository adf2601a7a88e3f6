"""Kept documents of a shard: sorted by id, read from any id on, with the columns that dedup compares.

`documents.zst` holds the lines of the corpus in frames that are unpacked one at a time. A column is one
file of numbers, in the order of the lines, which is read in parts and never as a whole. While a shard
is written, runs of lines are sorted in memory and merged at the end.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import zstandard

from anadil.core.format import KIB, MIB

Numbers = npt.NDArray[Any]
Layout = tuple[tuple[int, ...], "np.dtype[Any]", int]
"""Header of a file of numbers: shape, kind, and where they begin."""

RUN_BYTES = 4 * MIB
"""Bytes of lines that are sorted in memory, which takes four times as much."""
FRAME_BYTES = 64 * KIB
"""Bytes of lines in a frame: a merge of a thousand shards has a frame of each in memory."""
ZSTD_LEVEL = 1
"""Low: the files are read once or twice and then removed."""
DOCUMENTS = "documents.zst"
COLUMNS = {
    "id_high": np.uint64, "id_low": np.uint64, "exact_high": np.uint64, "exact_low": np.uint64,
    "weight": np.uint32, "num_bytes": np.uint32, "num_words": np.uint32, "record": np.uint32,
}  # fmt: skip
"""A document's id, its exact key, weight and lengths of its text, and which record of the shard it was."""
KEYS, KEY_ROWS = "keys", "key_rows"
"""Columns for each kind of key, sorted by it: the key, and the row that it is of."""
EXACT = 0
"""Kind of key of equal documents; those of bands follow."""
MASK = (1 << 64) - 1
FRAMES = [("first_row", np.uint64), ("offset", np.uint64)]
"""Columns of `frames.npy`: first row of each frame, and its byte in `documents.zst`."""
PART_DOCUMENTS = 2_000_000
"""Compared at a time; some 100 bytes of memory for each."""
Chosen = Callable[[Numbers], Numbers]
"""Numbers of documents -> True for each that is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDocument:
    """One document that no rule dropped."""

    id: str
    line: bytes
    """Line of the corpus, with its end."""
    exact_key: int
    band_keys: Numbers
    weight: int
    """The heaviest of several copies stays."""
    num_bytes: int
    num_words: int
    record: int


class DocumentWriter:
    """Sorts the documents of a shard into its folder."""

    def __init__(self, folder: Path, num_bands: int) -> None:
        self._folder = folder
        self._num_bands = num_bands
        self._lines: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []
        self._bands: list[Numbers] = []
        self._num_bytes = 0
        self._runs: list[Path] = []

    def add(self, document: KeptDocument) -> None:
        """Add a document; it is written when enough of them are there."""
        number, exact = int(document.id, 16), document.exact_key
        self._rows.append(
            (number >> 64, number & MASK, exact >> 64, exact & MASK, document.weight, document.num_bytes,
             document.num_words, document.record)
        )  # fmt: skip
        self._lines.append(document.line)
        self._bands.append(document.band_keys)
        self._num_bytes += len(document.line)
        if self._num_bytes >= RUN_BYTES:
            self._write_run()

    def finish(self) -> None:
        """Merge the runs; a single one is the shard already."""
        self._write_run()
        if len(self._runs) > 1:
            self._merge([SortedDocuments(run) for run in self._runs])
        for run in self._runs:
            for file in run.iterdir():
                if len(self._runs) == 1:
                    file.rename(self._folder / file.name)
                else:
                    file.unlink()
            run.rmdir()
        bands = np.load(self._folder / "bands.npy", mmap_mode="r")
        write_keys(self._folder, np.load(self._folder / "exact_high.npy"), bands)

    def _merge(self, runs: "list[SortedDocuments]") -> None:
        high, low = (np.concatenate([run.column(name) for run in runs]) for name in ("id_high", "id_low"))
        order = np.lexsort((low, high))  # stable, so that equal ids stay in the order of the records
        del high, low
        run_of = np.repeat(np.arange(len(runs), dtype=np.uint32), [run.num_rows for run in runs])[order]
        streams = [run.lines(0, run.num_rows) for run in runs]
        with _FrameWriter(self._folder) as frames:
            for run in run_of:
                frames.add(next(streams[run])[1])
        for name in COLUMNS:
            column = np.concatenate([run.column(name) for run in runs])
            np.save(self._folder / f"{name}.npy", column[order])
        shape = (self._num_bands, len(order))
        bands = np.lib.format.open_memmap(self._folder / "bands.npy", "w+", np.uint64, shape)
        for band in range(self._num_bands):
            bands[band] = np.concatenate([run.column("bands")[band] for run in runs])[order]
        bands.flush()

    def _write_run(self) -> None:
        if not self._rows and self._runs:
            return
        run = self._folder / f"run-{len(self._runs):05}"
        run.mkdir()
        table = {
            name: np.array([row[place] for row in self._rows], dtype=kind)
            for place, (name, kind) in enumerate(COLUMNS.items())
        }
        order = np.lexsort((table["id_low"], table["id_high"]))
        for name, column in table.items():
            np.save(run / f"{name}.npy", column[order])
        bands = np.array(self._bands, dtype=np.uint64).reshape(len(self._rows), self._num_bands)
        np.save(run / "bands.npy", np.ascontiguousarray(bands[order].T))
        with _FrameWriter(run) as frames:
            for row in order:
                frames.add(self._lines[row])
        self._runs.append(run)
        self._lines, self._rows, self._bands, self._num_bytes = [], [], [], 0


class SortedDocuments:
    """Reader of the documents of a shard, or of a run of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frames = np.load(folder / "frames.npy")
        self.num_rows = int(self._frames["first_row"][-1])
        self._cached: tuple[int, list[bytes]] = (-1, [])
        self._layouts: dict[str, Layout] = {}

    def lines(self, first_row: int, end_row: int) -> Iterator[tuple[int, bytes]]:
        """Yield rows and lines of a range of rows, a frame at a time."""
        row = first_row
        while row < end_row:
            frame = self._frame_of(row)
            start, stop = (int(self._frames["first_row"][place]) for place in (frame, frame + 1))
            for line in self._unpacked(frame)[row - start : min(stop, end_row) - start]:
                yield row, line
                row += 1

    def line(self, row: int) -> bytes:
        """Read the line of one row; its frame is kept for the next one."""
        frame = self._frame_of(row)
        if self._cached[0] != frame:
            self._cached = frame, self._unpacked(frame)
        return self._cached[1][row - int(self._frames["first_row"][frame])]

    def column(self, name: str) -> Numbers:
        """Map a column into memory: only what is accessed is read."""
        # It is opened again each time, because a map holds an open file, and shards are thousands; `np.load` takes ten
        # times as long for that, most of it to read the header again.
        with (self.folder / f"{name}.npy").open("rb") as file:
            if name not in self._layouts:
                np.lib.format.read_magic(file)
                shape, _, kind = np.lib.format.read_array_header_1_0(file)
                self._layouts[name] = shape, kind, file.tell()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        shape, kind, offset = self._layouts[name]
        return np.ndarray(shape, kind, mapped, offset)

    def first_row_from(self, high: int) -> int:
        """Return the first row whose id's upper half is not below."""
        if high > MASK:
            return self.num_rows
        return int(np.searchsorted(self.column("id_high"), np.uint64(high)))

    def _frame_of(self, row: int) -> int:
        return int(np.searchsorted(self._frames["first_row"], row, side="right")) - 1

    def _unpacked(self, frame: int) -> list[bytes]:
        start, stop = (int(self._frames["offset"][place]) for place in (frame, frame + 1))
        with (self.folder / DOCUMENTS).open("rb") as file:
            file.seek(start)
            packed = file.read(stop - start)
        return zstandard.ZstdDecompressor().decompress(packed).splitlines(keepends=True)


class _FrameWriter:
    """Writer of lines in frames, and of the beginning of each frame."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO = (folder / DOCUMENTS).open("wb")
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
        self._lines: list[bytes] = []
        self._size = self._row = 0
        self._frames: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._flush()
            self._frames.append((self._row, self._file.tell()))
        np.save(self._folder / "frames.npy", np.array(self._frames, dtype=FRAMES))

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size >= FRAME_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._frames.append((self._row, self._file.tell()))
            self._file.write(self._compressor.compress(b"".join(self._lines)))
            self._row += len(self._lines)
            self._lines, self._size = [], 0


def write_keys(folder: Path, exact: Numbers, bands: Numbers) -> None:
    """Write the keys of each kind in their own order, so that equal keys of all shards are found by merging.

    `exact` has the upper halves of the exact keys, `bands` the keys of each band; shape (bands, documents).
    """
    shape = (1 + len(bands), len(exact))
    keys = np.lib.format.open_memmap(folder / f"{KEYS}.npy", "w+", np.uint64, shape)
    rows = np.lib.format.open_memmap(folder / f"{KEY_ROWS}.npy", "w+", np.uint32, shape)
    for kind, column in enumerate((exact, *bands)):
        order = np.argsort(column, kind="stable")
        keys[kind], rows[kind] = column[order], order


class Signatures:
    """Keys that dedup compares, read from the disk in parts.

    Numbers of documents follow the order of the inputs, so that what they decide does not depend on the shards.
    """

    def __init__(self, folders: Sequence[Path], held: Sequence[Path] = ()) -> None:
        """Open the columns of shards, behind those of an earlier corpus's index."""
        self.shards = [SortedDocuments(folder) for folder in (*held, *folders)]
        self.starts = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        """Number of the first document of each shard, and of all."""
        self.num_documents = int(self.starts[-1])
        self._num_held_shards = len(held)
        self.num_held = int(self.starts[len(held)])
        """Documents of the earlier corpus; they have the lowest numbers."""
        self.num_parts = max(1, -(-self.num_documents // PART_DOCUMENTS))

    def column(self, name: str, documents: Numbers) -> Numbers:
        """Return the values of some documents, in their order."""
        order = np.argsort(documents, kind="stable")
        ordered = documents[order]
        edges = np.searchsorted(ordered, self.starts)
        values = [
            shard.column(name)[..., ordered[first:end] - start]
            for shard, start, first, end in zip(self.shards, self.starts, edges, edges[1:], strict=False)
            if first < end
        ]
        if not values:
            return np.empty(0, dtype=np.uint64)
        joined = np.concatenate(values, axis=-1)
        gathered = np.empty_like(joined)
        gathered[..., order] = joined
        return gathered

    def equal_keys(self, kind: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield documents ordered by a kind of key, and these keys, in parts; equal keys are in one part."""
        for low, high in self._key_ranges():
            keys, documents = [], []
            for shard, start in zip(self.shards, self.starts, strict=False):
                column = shard.column(KEYS)[kind]
                first = np.searchsorted(column, np.uint64(low))
                end = len(column) if high > MASK else np.searchsorted(column, np.uint64(high))
                keys.append(np.array(column[first:end]))
                documents.append(shard.column(KEY_ROWS)[kind, first:end].astype(np.int64) + start)
            part_keys, part_documents = np.concatenate(keys), np.concatenate(documents)
            # Stable, so that of equal keys the smaller number comes first.
            order = np.argsort(part_keys, kind="stable")
            yield part_documents[order], part_keys[order]

    def by_id(self) -> Iterator[Numbers]:
        """Yield documents ordered by id, in parts."""
        for low, high in self._key_ranges():
            documents, ids = [], []
            for shard, start in zip(self.shards, self.starts, strict=False):
                first, end = shard.first_row_from(low), shard.first_row_from(high)
                documents.append(np.arange(first, end) + start)
                ids.append([shard.column(name)[first:end] for name in ("id_low", "id_high")])
            low_half, high_half = (np.concatenate(column) for column in zip(*ids, strict=True))
            yield np.concatenate(documents)[np.lexsort((low_half, high_half))]

    def lowest_ids(self, is_chosen: Chosen, most: int) -> list[int]:
        """Return the chosen documents with the smallest ids, in their order."""
        lowest: list[int] = []
        for documents in self.by_id():
            lowest += documents[is_chosen(documents)][: most - len(lowest)].tolist()
            if len(lowest) == most:
                break
        return lowest

    def shard_of(self, document: int) -> int:
        """Return the number of the shard that a new document is in."""
        return self._place_of(document) - self._num_held_shards

    def id_of(self, document: int) -> str:
        """Return the id of one document."""
        high, low = (int(self.column(name, np.array([document]))[0]) for name in ("id_high", "id_low"))
        return id_of(high, low)

    def is_held(self, documents: Numbers) -> Numbers:
        """Return True for each document of the earlier corpus."""
        held: Numbers = documents < self.num_held
        return held

    def line(self, document: int) -> bytes:
        """Read the line of one document."""
        place = self._place_of(document)
        return self.shards[place].line(document - int(self.starts[place]))

    def _place_of(self, document: int) -> int:
        return int(np.searchsorted(self.starts, document, side="right")) - 1

    def _key_ranges(self) -> Iterator[tuple[int, int]]:
        # Hashes of 64 bits are spread evenly.
        step = -(-(MASK + 1) // self.num_parts)
        for part in range(self.num_parts):
            yield part * step, (part + 1) * step


def id_of(high: int, low: int) -> str:
    """Join the halves of an id."""
    return f"{int(high):016x}{int(low):016x}"
