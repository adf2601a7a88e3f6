"""Reader of lists that people hand out, one entry a line, in plain, packed or archived files.

The first bytes tell the kind of file. Anything but text is refused by name: its entries would silently match nothing.
"""

import codecs
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from anadil.artifacts.line_reader import DAMAGED, unpacked
from anadil.artifacts.storage import is_no_data
from anadil.core.errors import DataError
from anadil.core.format import KIB, MIB, human_bytes

MAX_ENTRY_BYTES = 64 * KIB
MAX_LIST_BYTES, MAX_ENTRIES = 512 * MIB, 20_000_000
"""Most bytes of one file, unpacked: our choice, four times all of UT1's lists together."""
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
OTHER = {
    b"BZh": "bzip2 -d", b"\x1f\x9d": "uncompress", b"\x1f\xa0": "gzip -d", b"\xfd7zXZ": "xz -d",
    b"7z\xbc\xaf": "7z x", b"Rar!": "unrar x", b"PAR1": "", b"%PDF": "",
}  # fmt: skip
"""First bytes of what is not read, and the command that unpacks it."""
BLOCK = 512
"""Bytes of a block of a tar archive. Source: POSIX.1-1988, ustar."""
NAME, SIZE, TYPE, MAGIC, PREFIX = slice(100), slice(124, 136), 156, slice(257, 262), slice(345, 500)
OCTAL = re.compile(rb"[0-7]+")
PIECE_BYTES = MIB
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


def list_lines(path: Path, key: str, members: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the entries without white space around them; skip blank lines and those that begin with `#`.

    `members` are the files to read of an archive; where it has none of them, or none are given, all are read.
    """
    name = f"{key}: {path.name}"
    num_bytes = num_entries = 0
    try:
        for stream in _streams(path, name, members):
            while line := stream.readline(MAX_ENTRY_BYTES):
                num_bytes += len(line)
                if line.startswith(WIDE_MARKS):
                    raise DataError(
                        f"{name} is in UTF-16; convert it, such as with `iconv -f UTF-16 -t UTF-8`"
                    )
                if b"\0" in line:
                    raise DataError(
                        f"{name} is not text: it holds zero bytes; give a file of text in UTF-8, an entry a line"
                    )
                if len(line) >= MAX_ENTRY_BYTES:
                    raise DataError(
                        f"{name} holds a line over {human_bytes(MAX_ENTRY_BYTES)}; write an entry a line"
                    )
                entry = line.removeprefix(codecs.BOM_UTF8).strip()
                if entry and not entry.startswith(b"#"):
                    num_entries += 1
                    yield entry
                if num_bytes > MAX_LIST_BYTES or num_entries > MAX_ENTRIES:
                    raise DataError(
                        f"{name} holds more than {human_bytes(MAX_LIST_BYTES)} or {MAX_ENTRIES:,} entries; give a part of it"
                    )
    except (*DAMAGED, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{name} is damaged, or packed in a way that is not read ({error}); unpack it"
        ) from None


def _streams(path: Path, name: str, members: Sequence[str]) -> Iterator[BinaryIO]:
    with path.open("rb") as file:
        first = file.read(BLOCK)
    for magic, command in OTHER.items():
        if first.startswith(magic):
            remedy = f"unpack it with `{command} {path.name}`" if command else "give text, an entry a line"
            raise DataError(f"{name} is not a list that is read ({path.suffix or 'packed'}); {remedy}")
    if first.startswith(ZIP):
        yield from _of_zip(path, members)
        return
    suffix = ".gz" if first.startswith(GZIP) else ".zst" if first.startswith(ZSTD) else ""
    with unpacked(path, suffix) as stream:
        is_archive = stream.read(BLOCK)[MAGIC] == b"ustar"
    names: list[str] = []
    if is_archive:
        with unpacked(path, suffix) as stream:
            names += [member for member, _ in _of_tar(stream)]
    chosen = _chosen(names, members)
    with unpacked(path, suffix) as stream:
        if is_archive:
            yield from (content for member, content in _of_tar(stream) if member in chosen)
        else:
            yield stream


def _of_tar(stream: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Yield name and content of each file of an archive, in one pass."""
    while (head := stream.read(BLOCK)).strip(b"\0"):
        digits = head[SIZE].strip(b"\0 ")
        if head[MAGIC] != b"ustar" or not OCTAL.fullmatch(digits):
            raise EOFError("an archive ends early, or goes on with something else")
        size = int(digits, 8)
        name = b"/".join(part for field in (PREFIX, NAME) if (part := head[field].partition(b"\0")[0]))
        content = _Member(stream, size)
        if head[TYPE] in b"0\0":
            yield name.decode(errors="replace"), io.BufferedReader(content)
        content.skip(-size % BLOCK)


class _Member(io.RawIOBase):
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        piece = self._stream.read(min(len(target), self._left))
        if self._left and not piece:
            raise EOFError("an archive ends within a file")
        target[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)

    def skip(self, padding: int) -> None:
        """Pass over what is left, and what fills the last block."""
        left = self._left + padding
        while piece := self._stream.read(min(left, PIECE_BYTES)):
            left -= len(piece)
        self._left = 0


def _of_zip(path: Path, members: Sequence[str]) -> Iterator[BinaryIO]:
    with zipfile.ZipFile(path) as archive:
        listed = {each.filename: each for each in archive.infolist() if not each.is_dir()}
        for name in sorted(_chosen(list(listed), members)):
            if listed[name].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise NotImplementedError("neither stored nor deflated")
            with archive.open(listed[name]) as stream:
                yield io.BufferedReader(stream)  # type: ignore[type-var]  # it reads as a raw stream does


def _chosen(names: Sequence[str], members: Sequence[str]) -> set[str]:
    named = {name for name in names if name.rsplit("/", 1)[-1] in members}
    return named or {name for name in names if not is_no_data(name.removeprefix("./"))}
