"""Write the kept documents to the files of the corpus, each by itself.

A file is a range of ids, merged out of all shards. Where files begin follows from the texts alone, so that
neither the shards nor who writes which file can be seen in them.
"""

import heapq
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from anadil.clean.dedup.find_duplicates import Verdicts
from anadil.clean.dedup.sorted_documents import Numbers, Signatures, SortedDocuments, id_of
from anadil.core.json_text import DECODER, write_json
from anadil.runtime.executor import FolderTask
from anadil.text import corpus
from anadil.text.corpus import CorpusPart
from anadil.text.parallel import other_direction

FILE_FACTS = "written.json"
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
    num_words: int

    @property
    def name(self) -> str:
        """Its place in the corpus."""
        return corpus.part_name(self.part, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask(FolderTask):
    """Everything that a process needs to write one file."""

    file: CorpusFile
    shards: tuple[Path, ...]
    first_lines: tuple[FirstLines, ...]
    verdicts: Path
    heldout: Path
    first_document: int
    directions: int = 1
    """2: its documents are pairs, and both directions are written."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.file.name

    @property
    def num_documents(self) -> int:
        """Documents of the file when it is written."""
        return self.directions * self.file.num_documents


def plan_files(
    signatures: Signatures, verdicts: Verdicts, heldout: Numbers, num_train_files: int = 0
) -> list[CorpusFile]:
    """Cut the corpus into files; those of the training part are numbered behind an earlier corpus's `num_train_files`."""
    files: dict[CorpusPart, list[CorpusFile]] = {"heldout": [], "train": []}
    for documents in signatures.by_id():
        new = documents[verdicts.is_kept(documents) & ~signatures.is_held(documents)]
        is_heldout = np.isin(new, heldout)
        _extend(files["heldout"], "heldout", new[is_heldout], signatures)
        _extend(files["train"], "train", new[~is_heldout], signatures)
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
    if task.is_done():
        return
    verdicts, heldout = Verdicts(task.verdicts), np.load(task.heldout)
    streams, start = [], task.first_document
    for folder, first_lines in zip(task.shards, task.first_lines, strict=True):
        shard = SortedDocuments(folder)
        numbers = np.arange(start, start + shard.num_rows)
        is_written = verdicts.is_kept(numbers) & (np.isin(numbers, heldout) == (task.file.part == "heldout"))
        streams.append(_lines_of(shard, is_written, task.file, first_lines))
        start += shard.num_rows
    with task.draft() as draft:
        lines: Iterator[tuple[bytes, str]] = ((line, text_of(line)) for line in heapq.merge(*streams))
        if task.directions > 1:
            lines = _both_directions(lines)
        digest, count = corpus.write_part(draft, task.file.name, lines)
        assert count == task.num_documents
        write_json(draft / FILE_FACTS, {"digest": digest, "file": asdict(task.file)})


def _both_directions(lines: Iterator[tuple[bytes, str]]) -> Iterator[tuple[bytes, str]]:
    """Yield each pair and its other direction, under one id: so both are held out together, and left out together."""
    for line, text in lines:
        yield line, text
        other = other_direction(text)
        begin, end = TEXT_START, line.index(SOURCE)
        yield line[:begin] + corpus.ENCODE(other).encode() + line[end:], other


def renumbered(source: str, first_lines: FirstLines) -> str:
    """Replace the number of a line in the range of a shard by that in the whole file."""
    for name, first in first_lines.items():
        if source.startswith(f"{name}:"):
            number, separator, rest = source[len(name) + 1 :].partition(" ")
            head, colon, tail = number.partition(":")
            return f"{name}:{int(head) + first}{colon}{tail}{separator}{rest}"
    return source


def _lines_of(
    shard: SortedDocuments, is_written: Numbers, file: CorpusFile, first_lines: FirstLines
) -> Iterator[bytes]:
    """Yield the lines of a shard that belong to a file; they begin with their ids, and so sort by them."""
    first = shard.first_row_from(int(file.first_id[:16], 16))
    for row, line in shard.lines(first, shard.num_rows):
        number = line[ID_START : ID_START + ID_CHARS].decode()
        if number > file.last_id:
            return
        if number < file.first_id or not is_written[row]:
            continue
        yield _renumbered_line(line, first_lines) if first_lines else line


def text_of(line: bytes) -> str:
    """Read the text of a line, and nothing else of it."""
    # Half the time of `json.loads`, which looks for the encoding first.
    text: str = DECODER.raw_decode(line[TEXT_START : line.rindex(SOURCE)].decode())[0]
    return text


def _renumbered_line(line: bytes, first_lines: FirstLines) -> bytes:
    """Renumber the provenance of a line; its text is copied as it is."""
    start = line.index(SOURCE) + len(SOURCE) - 1
    end = line.index(URL) + 1
    source = renumbered(json.loads(line[start:end]), first_lines)
    return line[:start] + corpus.ENCODE(source).encode() + line[end:]
