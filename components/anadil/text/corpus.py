"""The corpus artifact: documents as JSON lines in zstd parts, `train/` and `heldout/`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import zstandard

from anadil.core.errors import IntegrityError

CorpusPart = Literal["train", "heldout"]

MAX_PART_BYTES = 256 * 1024**2
"""Text of one part before the next begins; a part is what one worker reads."""
ZSTD_LEVEL = 3
READ_BYTES = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text."""

    id: str
    """Hexadecimal digest of the text."""
    text: str
    source: str
    """File, and place in it, that the text came from."""
    url: str
    """Where it was published; empty if unknown."""
    lang: str
    """ISO 639-1."""


def write_documents(
    corpus: Path, part: CorpusPart, documents: Iterable[Document], contents: dict[str, str] | None = None
) -> int:
    """Write `<part>/part-*.jsonl.zst` below the corpus directory; how many documents it was.

    Equal documents in equal order give equal bytes, and equal texts the same borders between files.

    Args:
        corpus: The directory.
        part: Which part.
        documents: In order.
        contents: Filled with each file's digest of its texts, which are all that other stages read.
    """
    folder = corpus / part
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    rest = iter(documents)
    number = 0
    document = next(rest, None)
    while document is not None or number == 0:
        name = f"part-{number:05}.jsonl.zst"
        texts = hashlib.sha256()
        with (folder / name).open("wb") as file:
            compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
            with compressor.stream_writer(file, closefd=False) as out:
                size = 0
                while document is not None and size < MAX_PART_BYTES:
                    line = json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n"
                    out.write(line)
                    text = document.text.encode()
                    texts.update(len(text).to_bytes(8, "big") + text)
                    size += len(text)
                    count += 1
                    document = next(rest, None)
        if contents is not None:
            contents[f"{part}/{name}"] = texts.hexdigest()
        number += 1
    return count


def read_documents(corpus: Path, part: CorpusPart) -> Iterator[Document]:
    """The documents of one part of a corpus directory, in order.

    Raises:
        IntegrityError: A file is damaged.
    """
    for path in document_files(corpus, part):
        yield from read_file(path)


def document_files(corpus: Path, part: CorpusPart) -> list[Path]:
    """The files of one part of a corpus directory, in order."""
    return sorted((corpus / part).glob("part-*.jsonl.zst"))


def read_file(path: Path) -> Iterator[Document]:
    """The documents of one file of a corpus, in order.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        for line in _lines(path):
            yield Document(**json.loads(line))
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise IntegrityError(f"{path}: damaged corpus part ({error}); run clean again") from None


def _lines(path: Path) -> Iterator[bytes]:
    # zstandard's stream reader takes a file that was cut off for one that ended.
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            *lines, rest = (rest + decompressor.decompress(chunk)).split(b"\n")
            yield from lines
    if rest or not decompressor.eof:
        raise ValueError("cut off")
