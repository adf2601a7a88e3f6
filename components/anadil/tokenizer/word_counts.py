"""A word-count table: pretokens and how often each occurs, sorted, in memory and in a file.

A pretoken is stored as its bytes and given out in byte symbols, one character for each byte, as tokenizers writes it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from anadil.core.errors import IntegrityError
from anadil.text.cut_patterns import to_bytes, to_symbols
from anadil.tokenizer.kernels.compiled import compiled

Array = npt.NDArray[Any]

FORMAT = "anadil word counts 1"
"""First words of a file."""
PRETOKENS_AT_A_TIME = 65_536
HEADER_BYTES = 65_536
"""Most of a file's first two lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordCounts:
    """Pretoken -> how often it occurs, in the order of their bytes, each once."""

    text: Array
    """uint8: the bytes of all pretokens, one after another."""
    starts: Array
    """int64, one more than pretokens: where in `text` each begins and the last one ends."""
    counts: Array
    """int64, at least 1."""
    records: Mapping[str, int] = field(default_factory=dict)
    """Other counts, such as documents. They are added up where tables are."""

    def __len__(self) -> int:
        """Number of different pretokens."""
        return len(self.counts)

    @property
    def total(self) -> int:
        """Number of pretokens, repeated ones too."""
        return int(self.counts.sum())

    def items(self) -> Iterator[tuple[str, int]]:
        """Each pretoken in byte symbols, and its count."""
        return zip(self.pretokens(), self.counts.tolist(), strict=True)

    def pretokens(self) -> Iterator[str]:
        """Each pretoken in byte symbols."""
        # In blocks: one string of all pretokens would double the memory.
        for first in range(0, len(self), PRETOKENS_AT_A_TIME):
            starts = self.starts[first : first + PRETOKENS_AT_A_TIME + 1]
            text = to_symbols(self.text[starts[0] : starts[-1]].tobytes())
            for start, end in pairwise((starts - starts[0]).tolist()):
                yield text[start:end]

    def pruned(self, least: int) -> "WordCounts":
        """Return the table without the pretokens that occur less often."""
        chosen = self.counts >= least
        lengths = np.diff(self.starts)
        return WordCounts(
            text=self.text[np.repeat(chosen, lengths)],
            starts=_starts(lengths[chosen]),
            counts=self.counts[chosen],
            records=self.records,
        )


def word_counts(items: Iterable[tuple[str, int]], records: Mapping[str, int] | None = None) -> WordCounts:
    """The table of pretokens in byte symbols with their counts, in any order; equal ones are added up."""
    counts: dict[bytes, int] = {}
    for pretoken, count in items:
        key = to_bytes(pretoken)
        counts[key] = counts.get(key, 0) + count
    return of_bytes(counts, records)


def as_table(counts: "WordCounts | Mapping[str, int]") -> WordCounts:
    """Return the table itself, or that of a dictionary of pretokens in byte symbols."""
    return counts if isinstance(counts, WordCounts) else word_counts(counts.items())


def of_bytes(counts: Mapping[bytes, int], records: Mapping[str, int] | None = None) -> WordCounts:
    """The table of pretokens in bytes with their counts."""
    ordered = sorted(counts)
    return WordCounts(
        text=np.frombuffer(bytearray(b"".join(ordered)), dtype=np.uint8),
        starts=_starts(np.fromiter(map(len, ordered), dtype=np.int64, count=len(ordered))),
        counts=np.fromiter(map(counts.__getitem__, ordered), dtype=np.int64, count=len(ordered)),
        records=records or {},
    )


def sum_counts(tables: Iterable[WordCounts]) -> WordCounts:
    """Add up tables; their order changes nothing."""
    stack: list[WordCounts] = []
    for table in tables:
        stack.append(table)
        while len(stack) > 1 and len(stack[-2]) <= 2 * len(stack[-1]):
            last = stack.pop()
            stack[-1] = _added(stack[-1], last)
    while len(stack) > 1:
        last = stack.pop()
        stack[-1] = _added(stack[-1], last)
    return stack[0] if stack else of_bytes({})


def write_counts(table: WordCounts, path: Path) -> None:
    """Write a table to a complete file or none; equal tables give equal bytes."""
    header = {"pretokens": len(table), "bytes": len(table.text), "records": dict(table.records)}
    first = json.dumps(header, sort_keys=True).encode() + b"\n"
    columns = _columns(table)
    digest = hashlib.sha256(first)
    for column in columns:
        digest.update(column)
    # A run that is killed here leaves no table that looks whole.
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("wb") as file:
        file.write(f"{FORMAT} {digest.hexdigest()}\n".encode() + first)
        for column in columns:
            file.write(column)
    draft.rename(path)


def read_counts(path: Path) -> WordCounts:
    """Read the table of a file."""
    with path.open("rb") as file:
        *name, expected = file.readline(HEADER_BYTES).decode(errors="replace").split(" ")
        if " ".join(name) != FORMAT:
            raise IntegrityError(f"{path}: no word counts of this program's format; remove it")
        header = file.readline(HEADER_BYTES)
        try:
            table = _read_columns(file, json.loads(header))
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError(f"{path}: damaged word counts ({error}); remove it") from None
        is_longer = bool(file.read(1))
    digest = hashlib.sha256(header)
    for part in _columns(table):
        digest.update(part)
    if digest.hexdigest() != expected.strip() or is_longer:
        raise IntegrityError(f"{path}: damaged word counts (its digest differs); remove it")
    return table


def _columns(table: WordCounts) -> list[memoryview]:
    columns = (table.starts.astype("<i8"), table.counts.astype("<i8"), np.ascontiguousarray(table.text))
    return [memoryview(column) for column in columns]  # type: ignore[arg-type]  # Python 3.11 has no type for it


def _read_columns(file: BinaryIO, header: dict[str, Any]) -> WordCounts:
    num, num_bytes = int(header["pretokens"]), int(header["bytes"])

    def column(kind: str, length: int) -> Array:
        values = np.fromfile(file, dtype=kind, count=length)
        if len(values) != length:
            raise ValueError("cut off")
        return values

    starts, counts = column("<i8", num + 1), column("<i8", num)
    return WordCounts(text=column("u1", num_bytes), starts=starts, counts=counts, records=header["records"])


def _starts(lengths: Array) -> Array:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _added(one: WordCounts, other: WordCounts) -> WordCounts:
    text = np.empty(len(one.text) + len(other.text), dtype=np.uint8)
    starts = np.zeros(len(one) + len(other) + 1, dtype=np.int64)
    counts = np.empty(len(one) + len(other), dtype=np.int64)
    num = _add(one.text, one.starts, one.counts, other.text, other.starts, other.counts, text, starts, counts)
    names = {*one.records, *other.records}
    return WordCounts(
        text=text[: starts[num]].copy(),
        starts=starts[: num + 1].copy(),
        counts=counts[:num].copy(),
        records={name: one.records.get(name, 0) + other.records.get(name, 0) for name in sorted(names)},
    )


@compiled
def _add(
    text_a: Array, starts_a: Array, counts_a: Array, text_b: Array, starts_b: Array, counts_b: Array,
    text: Array, starts: Array, counts: Array,
) -> int:  # fmt: skip
    """Merge two sorted tables into a third; how many pretokens it has."""
    a = b = num = size = 0
    while a < len(counts_a) or b < len(counts_b):
        if a == len(counts_a):
            order = 1
        elif b == len(counts_b):
            order = -1
        else:
            order = _compare(text_a, starts_a[a], starts_a[a + 1], text_b, starts_b[b], starts_b[b + 1])
        count = 0
        source, first, last = text_a, 0, 0
        if order >= 0:
            source, first, last = text_b, starts_b[b], starts_b[b + 1]
            count += counts_b[b]
            b += 1
        if order <= 0:
            source, first, last = text_a, starts_a[a], starts_a[a + 1]
            count += counts_a[a]
            a += 1
        for place in range(first, last):
            text[size] = source[place]
            size += 1
        counts[num] = count
        num += 1
        starts[num] = size
    return num


@compiled
def _compare(text_a: Array, a: int, end_a: int, text_b: Array, b: int, end_b: int) -> int:
    """-1, 0 or 1: how the first string of bytes stands to the second."""
    while a < end_a and b < end_b:
        if text_a[a] != text_b[b]:
            return -1 if text_a[a] < text_b[b] else 1
        a += 1
        b += 1
    return int(a < end_a) - int(b < end_b)
