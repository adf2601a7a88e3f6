"""The corpus artifact: documents as JSON lines in zstd parts, `train/` and `heldout/`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import zstandard

from anadil.core.errors import IntegrityError

CorpusPart = Literal["train", "heldout"]

MAX_PART_BYTES = 256 * 1024**2  # Text of one part before the next begins; a part is what one worker reads
ZSTD_LEVEL = 3
READ_BYTES = 1024**2
ENCODE = json.JSONEncoder(ensure_ascii=False).encode
BEGINNING_CHARS = 40
"""Length of a document's beginning, which a model continues if a language has no prompts. As long as the packs' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text."""

    id: str
    """Hexadecimal digest of the text; both directions of a pair have that of the first."""
    text: str
    source: str
    """File, and place in it, that the text came from."""
    url: str
    """Where it was published; empty if unknown."""
    lang: str
    """ISO 639-1."""

    def as_row(self) -> dict[str, str]:
        """Its JSON object, in a tenth of the time of `asdict`, which copies every value."""
        return {name: getattr(self, name) for name in self.__slots__}


def beginning_of(text: str) -> str:
    """The first words of a text, `BEGINNING_CHARS` at most."""
    known = " ".join(text[: 2 * BEGINNING_CHARS].split())
    cut = known[:BEGINNING_CHARS]
    return cut.rpartition(" ")[0] or cut if len(known) > len(cut) else cut


def write_documents(corpus: Path, part: CorpusPart, documents: Iterable[Document]) -> int:
    """Write `<part>/part-*.jsonl.zst` below the corpus directory; return the number of documents.

    Equal documents in equal order give equal bytes, and equal texts the same limits of files.
    """
    # A part without documents gets an empty file, so that readers can tell it from a lost one.
    files: list[list[tuple[bytes, str]]] = [[]]
    size = 0
    for document in documents:
        if size >= MAX_PART_BYTES:
            files.append([])
            size = 0
        files[-1].append((line_of(document), document.text))
        size += len(document.text.encode())
    return sum(write_part(corpus, part_name(part, number), lines)[1] for number, lines in enumerate(files))


def part_name(part: CorpusPart, number: int) -> str:
    """Path of a file of a part within a corpus."""
    return f"{part}/part-{number:05}.jsonl.zst"


def line_of(document: Document) -> bytes:
    """A document as a line: equal to `json.dumps` of its row, in half the time."""
    values = (f'"{name}": {ENCODE(getattr(document, name))}' for name in Document.__slots__)
    return f"{{{', '.join(values)}}}\n".encode()


def write_part(corpus: Path, name: str, lines: Iterable[tuple[bytes, str]]) -> tuple[str, int]:
    """Write one file of a part from `line_of` lines with their texts; return the digest of the texts and their number."""
    path = corpus / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = hashlib.sha256()
    count = 0
    with path.open("wb") as file:
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as out:
            for line, text in lines:
                out.write(line)
                encoded = text.encode()
                # The length before each text tells `ab`, `c` from `a`, `bc`.
                texts.update(len(encoded).to_bytes(8, "big") + encoded)
                count += 1
    return texts.hexdigest(), count


def read_documents(corpus: Path, part: CorpusPart) -> Iterator[Document]:
    """The documents of one part of a corpus directory, in order."""
    for path in document_files(corpus, part):
        yield from read_file(path)


def read_corpora(corpora: Iterable[Path], part: CorpusPart) -> Iterator[Document]:
    """The documents of one part of several corpora, one after another; see `read_documents`."""
    for corpus in corpora:
        yield from read_documents(corpus, part)


def document_files(corpus: Path, part: CorpusPart) -> list[Path]:
    """The files of one part of a corpus directory, in order."""
    if not corpus.is_dir():
        raise IntegrityError(f"{corpus}: no such directory any more; put the corpus back, or run clean again")
    return sorted((corpus / part).glob("part-*.jsonl.zst"))


def read_file(path: Path) -> Iterator[Document]:
    """The documents of one file of a corpus, in order."""
    try:
        for line in _lines(path):
            yield Document(**json.loads(line))
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise IntegrityError(f"{path}: damaged corpus part ({error}); run clean again") from None


def read_ids(path: Path) -> Iterator[str]:
    """The ids of the documents of one file of a corpus, at a tenth of what reading their texts costs."""
    start = len(b'{"id": "')
    try:
        for line in _lines(path):
            yield line[start : line.index(b'"', start)].decode()
    except (zstandard.ZstdError, ValueError) as error:
        raise IntegrityError(f"{path}: damaged corpus part ({error}); run clean again") from None


def packed_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a packed file, without their ends."""
    # zstandard's stream reader takes a file that was cut off for one that ended.
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    while chunk := file.read(READ_BYTES):
        *lines, rest = (rest + decompressor.decompress(chunk)).split(b"\n")
        yield from lines
    if rest or not decompressor.eof:
        raise ValueError("cut off")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from packed_lines(file)


def text_batches(texts: Iterable[str], most_chars: int) -> Iterator[list[str]]:
    """Lists of texts, each full once it has so many characters."""
    batch, chars = list[str](), 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= most_chars:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
