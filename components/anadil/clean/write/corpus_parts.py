"""The documents that stay -> the files of the corpus, each of which is written by itself.

A file is a range of ids, merged out of all shards. Where files begin follows from the texts alone, so that
neither the shards nor who writes which file can be seen in them.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.find_duplicates import Verdicts
from anadil.clean.dedup.signatures import Signatures, id_of
from anadil.clean.dedup.sorted_documents import Numbers, SortedDocuments
from anadil.core.json_text import write_json
from anadil.text import corpus
from anadil.text.corpus import CorpusPart

WRITTEN = "written.json"
"""Digest and count of a file's texts."""
FirstLines = dict[str, int]
"""File -> lines of it before the range that a shard has."""
ID_START = len(b'{"id": "')
ID_CHARS = 32
TEXT_START = ID_START + ID_CHARS + len(b'", "text": ')
SOURCE, URL = b', "source": "', b'", "url": "'
"""Behind the text and the source of a line, and nowhere else: within a string quotation marks are escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One file of the corpus, before it is written."""

    part: CorpusPart
    number: int
    first_id: str
    last_id: str
    num_documents: int
    num_bytes: int
    """Bytes of text."""
    num_words: int

    @property
    def name(self) -> str:
        """Its place in the corpus."""
        return corpus.part_name(self.part, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Everything that a process needs to write one file."""

    file: CorpusFile
    shards: tuple[Path, ...]
    first_lines: tuple[FirstLines, ...]
    """First lines of each shard."""
    verdicts: Path
    heldout: Path
    """Numbers of the held-out documents."""
    first_document: int
    """Number of the first shard's first document."""
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return self.file.name


def plan_files(
    signatures: Signatures, verdicts: Verdicts, heldout: Numbers, num_train_files: int = 0
) -> list[CorpusFile]:
    """The files of the corpus.

    Args:
        signatures: Of all documents.
        verdicts: On them.
        heldout: Numbers of the documents that are held out.
        num_train_files: Of an earlier corpus, whose held-out part stays as it is.
    """
    files: dict[CorpusPart, list[CorpusFile]] = {"heldout": [], "train": []}
    for documents in signatures.by_id():
        kept = documents[verdicts.is_kept(documents) & ~signatures.is_held(documents)]
        is_heldout = np.isin(kept, heldout)
        _extend(files["heldout"], "heldout", kept[is_heldout], signatures)
        _extend(files["train"], "train", kept[~is_heldout], signatures)
    later = [replace(file, number=file.number + num_train_files) for file in files["train"]]
    return [*files["heldout"], *later]


def _extend(files: list[CorpusFile], part: CorpusPart, documents: Numbers, signatures: Signatures) -> None:
    """Put documents into the last file of their part while there is room, then into further ones."""
    sizes = np.cumsum(signatures.column("num_bytes", documents).astype(np.int64))
    words = signatures.column("num_words", documents).astype(np.int64)
    high, low = (signatures.column(name, documents) for name in ("id_high", "id_low"))
    first = 0
    while first < len(documents):
        last = files[-1] if files else None
        if last is not None and last.num_bytes >= corpus.MAX_PART_BYTES:
            last = None
        before = int(sizes[first - 1]) if first else 0
        room = corpus.MAX_PART_BYTES - (last.num_bytes if last else 0)
        end = min(len(documents), int(np.searchsorted(sizes, before + room)) + 1)
        number = last.number if last else len(files)
        file = CorpusFile(
            part=part, number=number, first_id=last.first_id if last else id_of(high[first], low[first]),
            last_id=id_of(high[end - 1], low[end - 1]),
            num_documents=end - first + (last.num_documents if last else 0),
            num_bytes=int(sizes[end - 1]) - before + (last.num_bytes if last else 0),
            num_words=int(words[first:end].sum()) + (last.num_words if last else 0),
        )  # fmt: skip
        if last:
            files.pop()
        files.append(file)
        first = end


def write_file(task: WriteTask) -> None:
    """Write one file of the corpus into its folder, unless it is done."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    verdicts, heldout = Verdicts(task.verdicts), np.load(task.heldout)
    streams, start = [], task.first_document
    for folder, first_lines in zip(task.shards, task.first_lines, strict=True):
        shard = SortedDocuments(folder)
        numbers = np.arange(start, start + shard.num_rows)
        is_written = verdicts.is_kept(numbers) & (np.isin(numbers, heldout) == (task.file.part == "heldout"))
        streams.append(_lines_of(shard, is_written, task.file, first_lines))
        start += shard.num_rows
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
        lines = ((line, text_of(line)) for line in heapq.merge(*streams))
        digest, count = corpus.write_part(draft, task.file.name, lines)
        assert count == task.file.num_documents
        write_json(draft / WRITTEN, {"digest": digest, "file": asdict(task.file)})


def renumbered(source: str, first_lines: FirstLines) -> str:
    """Provenance with the number of a line in the whole file, in place of that in the range of a shard."""
    for name, first in first_lines.items():
        if source.startswith(f"{name}:"):
            number, separator, rest = source[len(name) + 1 :].partition(" ")
            head, colon, tail = number.partition(":")
            return f"{name}:{int(head) + first}{colon}{tail}{separator}{rest}"
    return source


def _lines_of(
    shard: SortedDocuments, is_written: Numbers, file: CorpusFile, first_lines: FirstLines
) -> Iterator[bytes]:
    """The lines of a shard that belong to a file; they begin with their ids, and so sort by them."""
    first = shard.first_row_from(int(file.first_id[:16], 16))
    for row, line in shard.lines(first, shard.num_rows):
        number = line[ID_START : ID_START + ID_CHARS].decode()
        if number > file.last_id:
            return
        if number < file.first_id or not is_written[row]:
            continue
        yield _renumbered_line(line, first_lines) if first_lines else line


def text_of(line: bytes) -> str:
    """The text of a line, without a look at the rest of it."""
    text: str = json.loads(line[TEXT_START : line.index(SOURCE)])
    return text


def _renumbered_line(line: bytes, first_lines: FirstLines) -> bytes:
    """A line with `renumbered` provenance; its text is copied as it is."""
    start = line.index(SOURCE) + len(SOURCE) - 1
    end = line.index(URL) + 1
    source = renumbered(json.loads(line[start:end]), first_lines)
    return line[:start] + corpus.ENCODE(source).encode() + line[end:]


def first_lines_of(shards: Sequence[Sequence[tuple[str, bool, int]]]) -> list[FirstLines]:
    """Lines before the ranges of each shard that begin within a file.

    Args:
        shards: The ranges of each: name of the file, whether it begins within it, lines in the range.
    """
    seen: dict[str, int] = {}
    files = []
    for ranges in shards:
        files.append({name: seen[name] for name, is_within, _ in ranges if is_within})
        for name, _, lines in ranges:
            seen[name] = seen.get(name, 0) + lines
    return files
