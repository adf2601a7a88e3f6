"""Read the web pages and texts of a WARC file, as far as it can be read.

A page is the answer of a server (`response`), or stands by itself (`resource`, as archives of single sites have them,
and `conversion`), with its type in the record's own head. A `conversion` of type `text/plain` is the text of a page, as in
the WET files of Common Crawl.

The end of each block is checked. After a wrong Content-Length, bytes that are no record, or damaged compressed data,
reading resumes at the next record; only what is damaged is lost. No more is held than one block of the given limit.
"""

import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from fastwarc.warc import WarcRecord

from anadil.artifacts.ranged import ReadableFile
from anadil.clean.read.http_body import decode_body
from anadil.clean.read.read_stats import RESPONSE, is_fault_of_document
from anadil.core.format import human_bytes

GZIP_MAGIC = b"\x1f\x8b\x08"
"""First bytes of a gzip member, with which each record of a `.warc.gz` begins."""
INFLATED_PIECE_BYTES = 1 << 18
COMPRESSED_PIECE_BYTES = 1 << 16
SEARCH_BYTES = 1 << 20
MAX_HEAD_BYTES = 1 << 16
OVERLAP_BYTES = 64
"""Longer than what a search looks for."""
START = re.compile(rb"WARC/[01]\.\d+\r?\n(?=[A-Za-z])")
HEAD = re.compile(rb"WARC/[01]\.\d+\r?\n((?:[^\r\n]++\r?\n)*+)\r?\n")
LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
NUMBER = re.compile("[0-9]{1,15}")
"""A length that somebody may mean; of some thousand digits Python makes no number at all."""
TYPE = re.compile(rb"^warc-type[ \t]*:[ \t]*(\w+)", re.IGNORECASE | re.MULTILINE)
INSIDE = re.compile(rb"\r?\n\r?\n(?=WARC/[01]\.\d+\r?\n[A-Za-z])")
"""A record that begins in the block of another: that block's length is wrong, or it is a page on WARC."""
END_OF_RECORD = re.compile(rb"\r?\n\r?\n|[\r\n]*(?:\Z|WARC/)")
"""Matches behind a block of the right length."""

GARBAGE = "bytes that are not a WARC record"
HTML_TYPES = ("text/html", "application/xhtml+xml")
UNSURE_TYPES = ("", "text/plain", "application/octet-stream")
"""Types that servers and crawlers name where they do not know; a page is known by how it begins."""
BEGINS_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s{0,99}+(?:<\?xml[^>]{0,199}>\s{0,99}+)?(?:<!--.{0,999}?-->\s{0,99}+)?<(?:!doctype html|html|head|body)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
STATUSES = (200, 203, 206)
"""Success, the same through a proxy that changes pages, and a part, which is read where it is the first."""
FIRST_PART = re.compile(r"\s*bytes[ =]+0-", re.IGNORECASE)
CONVERSION = "conversion"
KINDS = (RESPONSE, "resource", CONVERSION)
"""Types of records that may hold a page. Source: ISO 28500, section 6."""
CONTENT_TYPE = re.compile(rb"^content-type[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
HTML = re.compile(rb"[\"']?(?:text/html|application/xhtml\+xml)\b", re.IGNORECASE)
PLAIN_TEXT = re.compile(
    rb"text/plain\b(?:[^\r\n]{0,200}?\bcharset[ \t]*=[ \t]*[\"']?([\w-]+))?", re.IGNORECASE
)
HTTP_TYPE = re.compile(rb"application/http\b", re.IGNORECASE)
HTTP_OK = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n"
"""Before the page of a record without an HTTP head, so that all pages are read alike."""
HTTP = re.compile(rb"\s*HTTP/")
INTERIM = re.compile(rb"(?:\s*+HTTP/[\d.]++ 1\d\d\b[^\r\n]*+\r?\n(?:[^\r\n]++\r?\n)*+\r?\n(?=\s*+HTTP/))+")
"""Heads before that of the response: 100 Continue, 103 Early Hints. Source: RFC 9110, section 15.2."""
HTTP_HEAD = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n"
"""Head that FastWARC gets in place of a record's own. It does not know field names in lower case, bare line feeds or a type
given twice, and would not take such a record for an HTTP message."""
# wget 1 writes brackets around the address, as the grammar of WARC 1.0 does and its examples do not.
TARGET = re.compile(rb"^warc-target-uri[ \t]*:[ \t]*<?([^\r\n]*?)>?[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWarcRecord:
    """One record; its block is None where it is longer than the limit."""

    offset: int
    """Beginning of it, or of its gzip member, in the file."""
    kind: str
    """Such as `response`."""
    head: bytes
    block: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place that could not be read."""

    offset: int
    why: str


@dataclass(slots=True, kw_only=True)
class ByteRange:
    """A part of a file, and the borders that its reader has found."""

    start: int = 0
    end: int | None = None
    """Byte behind it: a record, or gzip member, that begins before it belongs to the range, and what is damaged
    between that and the next good one. None: the end of the file."""
    is_exact: bool = False
    """`start` is where a record begins, or the end of the file; otherwise that is looked for from there on, and may
    be found within a page that shows a WARC record."""
    first: int = 0
    """Beginning of the first record; the size of the file where there is none."""
    following: int | None = None
    """Beginning of the first record behind it, likewise; None until all of the range has been read."""


def warc_records(
    path: ReadableFile, max_block_bytes: int, part: ByteRange | None = None
) -> Iterator[RawWarcRecord | Damage]:
    """Read records and damaged places, in order.

    `part` is the part of the file to read; its borders are filled in.
    """
    part = part or ByteRange()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        is_gzip = _is_gzip(file, path.suffix.lower() == ".gz", part.start)
        place: int | None = part.start
        if part.start and not part.is_exact:
            place = (_next_good_member if is_gzip else _next_good_record)(file, part.start)
        part.first = size if place is None else place
        any_record = in_gap = False
        while place is not None:
            stream = _Stream(file, place, is_gzip=is_gzip)
            for item in _of_stream(stream, max_block_bytes):
                if _is_of_next_range(stream, item.offset, part):
                    return
                if isinstance(item, RawWarcRecord):
                    any_record, in_gap = True, False
                    yield item
                # One gap is counted once, however many of its bytes look like a beginning.
                elif item.why != GARBAGE or not in_gap:
                    in_gap = True
                    yield item
            if stream.torn and _is_of_next_range(stream, stream.torn.offset, part):
                return
            if stream.torn and not in_gap:
                in_gap = True
                yield stream.torn
            place = _next_member(file, stream.torn.offset + 1) if stream.torn else None
        if not any_record and not in_gap and not part.start:
            yield Damage(offset=0, why="no WARC record in this file")
        part.following = size


class _Stream:
    """Bytes from one place on, unpacked if they are gzip members, as far as they can be read."""

    def __init__(self, file: BinaryIO, start: int, *, is_gzip: bool) -> None:
        file.seek(start)
        self.file = file
        self.is_gzip = is_gzip
        self.buffer = bytearray()
        self.torn: Damage | None = None
        """Reason why no more can be read, where that is not the end of the file."""
        self._packed = file.read(COMPRESSED_PIECE_BYTES)
        self._place = start
        self._member: zlib._Decompress | None = None
        self._position = 0
        """Offset of the buffer's beginning among the bytes given."""
        self._starts: deque[tuple[int, int]] = deque([(0, start)])
        """Positions at which a member, or the plain file, begins, and their offsets."""

    @property
    def offset(self) -> int:
        # In a packed file: the place of the gzip member that holds the buffer's first byte.
        position, offset = self._starts[0]
        return offset if self.is_gzip else offset + self._position - position

    def fill(self, num_bytes: int) -> bool:
        """Fill the buffer with at least so many bytes, if there are."""
        while len(self.buffer) < num_bytes and (self._packed or self._load()):
            if not self.is_gzip:
                self.buffer += self._packed
                self._place += len(self._packed)
                self._packed = b""
            elif not self._unpack():
                break
        return len(self.buffer) >= num_bytes

    def drop(self, num_bytes: int) -> bytes:
        """Take bytes off the buffer."""
        taken = bytes(self.buffer[:num_bytes])
        del self.buffer[:num_bytes]
        self._position += len(taken)
        while len(self._starts) > 1 and self._starts[1][0] <= self._position:
            self._starts.popleft()
        return taken

    def members(self, end: int) -> Iterator[int]:
        """Yield the places in the buffer, behind its first byte, where members begin."""
        return (start - self._position for start, _ in self._starts if 0 < start - self._position < end)

    def seek(self, pattern: re.Pattern[bytes], start: int = 0) -> bool:
        """Drop everything before the next match, which becomes the buffer's beginning."""
        while not (match := pattern.search(self.buffer, start)):
            self.drop(max(0, len(self.buffer) - OVERLAP_BYTES))
            start = 0
            if not self.fill(len(self.buffer) + INFLATED_PIECE_BYTES) and not pattern.search(self.buffer):
                self.drop(len(self.buffer))
                return False
        self.drop(match.start())
        return True

    def _load(self) -> bool:
        if self.torn is None:
            self._packed = self.file.read(COMPRESSED_PIECE_BYTES)
        if not self._packed and self._member is not None and self.torn is None:
            self._tear("compressed data ends early")
        return bool(self._packed)

    def _unpack(self) -> bool:
        """Move a bounded piece from the packed bytes to the buffer; False where they are damaged."""
        if self._member is None:
            padding = len(self._packed) - len(self._packed.lstrip(b"\0\r\n"))
            self._packed = self._packed[padding:]
            self._place += padding
            if not self._packed:
                return True
            position = self._position + len(self.buffer)
            if self._starts[-1][0] == position:
                self._starts.pop()
            self._starts.append((position, self._place))
            self._member = zlib.decompressobj(31)
        before = len(self._packed)
        try:
            self.buffer += self._member.decompress(self._packed, INFLATED_PIECE_BYTES)
        except zlib.error as error:
            self._tear(str(error))
            return False
        self._packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        self._place += before - len(self._packed)
        if self._member.eof:
            self._member = None
        return True

    def _tear(self, why: str) -> None:
        self._packed = b""
        self.torn = Damage(offset=self._starts[-1][1], why=f"WARC is damaged here or right after ({why})")


def _of_stream(stream: _Stream, max_block_bytes: int) -> Iterator[RawWarcRecord | Damage]:
    """Yield records and damaged places of bytes that can be read one after another."""
    while stream.fill(1):
        if stream.buffer[0] in b"\r\n":
            stream.drop(len(stream.buffer) - len(stream.buffer.lstrip(b"\r\n")))
            continue
        stream.fill(MAX_HEAD_BYTES)
        offset = stream.offset
        head = HEAD.match(stream.buffer, 0, MAX_HEAD_BYTES)
        if head is None:
            yield Damage(offset=offset, why=GARBAGE)
            stream.seek(START, 1)
            continue
        fields, text = head[1], stream.drop(head.end())
        lengths = {length.decode("latin-1") for length in LENGTH.findall(fields)}
        length = " and ".join(sorted(lengths)) or "none"
        if not NUMBER.fullmatch(length):
            yield Damage(
                offset=offset, why=f"WARC record's Content-Length is not a number of bytes: {length[:80]}"
            )
            stream.seek(START)
            continue
        kind = TYPE.search(fields)
        block = _block(stream, int(length), max_block_bytes)
        if isinstance(block, str):
            yield Damage(offset=offset, why=block)
            stream.seek(START)
        else:
            yield RawWarcRecord(
                offset=offset, kind=kind[1].decode().lower() if kind else "", head=text, block=block
            )


def _block(stream: _Stream, length: int, max_bytes: int) -> bytes | str | None:
    """Return the block that begins here, None if it is longer than the limit, or what is wrong with its length."""
    wrong = f"WARC record's Content-Length is wrong: no record ends after {length:,} bytes"
    stream.fill(min(length, max_bytes) + MAX_HEAD_BYTES)
    agrees = _http_length(stream) == length
    if length <= max_bytes:
        if len(stream.buffer) < length:
            return f"WARC record ends after {len(stream.buffer):,} of {length:,} bytes"
        if not END_OF_RECORD.match(stream.buffer, length) or (
            not agrees and _inside(stream, length) is not None
        ):
            return wrong
        return stream.drop(length)
    left = length
    while left:
        stream.fill(min(left, INFLATED_PIECE_BYTES) + MAX_HEAD_BYTES)
        if not stream.buffer:
            return f"WARC record ends after {length - left:,} of {length:,} bytes"
        inside = None if agrees else _inside(stream, left)
        if inside is not None:
            stream.drop(inside)
            return wrong
        left -= len(stream.drop(min(left, max(INFLATED_PIECE_BYTES, len(stream.buffer) - MAX_HEAD_BYTES))))
    stream.fill(OVERLAP_BYTES)
    return None if END_OF_RECORD.match(stream.buffer) else wrong


def _inside(stream: _Stream, length: int) -> int | None:
    """Find another record that begins within the next bytes, as far as they are in the buffer."""
    places = [place for place in stream.members(length) if stream.buffer.startswith(b"WARC/", place)]
    if stream.buffer.find(b"\nWARC/", 0, length) >= 0:
        places += [match.end() for match in INSIDE.finditer(stream.buffer, 0, length)]
    for place in sorted(places):
        head = HEAD.match(stream.buffer, place, place + MAX_HEAD_BYTES)
        if head is not None and LENGTH.search(head[1]) and TYPE.search(head[1]):
            return place
    return None


def _http_length(stream: _Stream) -> int | None:
    """Return the bytes of an HTTP message by its own account; None where it gives none."""
    end = stream.buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0 or not stream.buffer.startswith(b"HTTP/"):
        return None
    lengths = {length.decode("latin-1") for length in LENGTH.findall(stream.buffer, 0, end)}
    length = lengths.pop() if len(lengths) == 1 else ""
    return end + 4 + int(length) if NUMBER.fullmatch(length) else None


def _next_member(file: BinaryIO, start: int) -> int | None:
    """Find the next bytes that look like the start of a gzip member."""
    file.seek(start)
    overlap = b""
    while chunk := file.read(SEARCH_BYTES):
        position = (overlap + chunk).find(GZIP_MAGIC)
        if position >= 0:
            return start - len(overlap) + position
        start += len(chunk)
        overlap = (overlap + chunk)[-2:]
    return None


def _next_good_member(file: BinaryIO, start: int) -> int | None:
    """Find the next gzip member that begins with a WARC record; its first bytes come by chance elsewhere too."""
    place = _next_member(file, start)
    while place is not None and not _is_good_member(file, place):
        place = _next_member(file, place + 1)
    return place


def _is_good_member(file: BinaryIO, offset: int) -> bool:
    try:
        first = zlib.decompressobj(31).decompress(_peek(file, offset, COMPRESSED_PIECE_BYTES), OVERLAP_BYTES)
    except zlib.error:
        return False
    return START.match(first) is not None


def _next_good_record(file: BinaryIO, start: int) -> int | None:
    """Find the next bytes of a plain file that can be read as the head of a record."""
    stream = _Stream(file, start, is_gzip=False)
    while stream.seek(START):
        stream.fill(MAX_HEAD_BYTES)
        if HEAD.match(stream.buffer, 0, MAX_HEAD_BYTES):
            return stream.offset
        stream.drop(1)
    return None


def _peek(file: BinaryIO, offset: int, num_bytes: int) -> bytes:
    """Read bytes of a place; the file stays where it is, since a stream continues to read there."""
    place = file.tell()
    file.seek(offset)
    head = file.read(num_bytes)
    file.seek(place)
    return head


def _is_gzip(file: BinaryIO, is_called_gz: bool, start: int) -> bool:
    """Return whether a file is made of gzip members, whatever its name says."""
    if is_called_gz and start:
        return True
    file.seek(0)
    first = file.read(COMPRESSED_PIECE_BYTES)
    return first.startswith(GZIP_MAGIC) or (is_called_gz and not first.lstrip(b"\r\n").startswith(b"WARC/"))


def _is_of_next_range(stream: _Stream, offset: int, part: ByteRange) -> bool:
    """Return whether who reads the range behind finds what begins at an offset; if so, note that."""
    if part.end is None or offset < part.end:
        return False
    if stream.is_gzip:
        is_good = _is_good_member(stream.file, offset)
    else:
        is_good = HEAD.match(_peek(stream.file, offset, MAX_HEAD_BYTES)) is not None
    if is_good:
        part.following = offset
    return is_good


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlResponse:
    """A successful response with a web page, or the text of one that another program extracted."""

    offset: int
    """Beginning of its record in the (compressed) file."""
    url: str
    charset: str = ""
    body: bytes = b""
    too_large: bool = False
    is_text: bool = False


Item = HtmlResponse | Damage | str
"""A string is the kind of a record that was skipped: not a page, or not a success."""


def html_responses(path: ReadableFile, max_bytes: int, part: ByteRange | None = None) -> Iterator[Item]:
    """Read pages, texts, skipped records and damaged places of a WARC file, or of a range of it, in order."""
    for item in warc_records(path, max_bytes, part):
        if isinstance(item, Damage):
            yield item
        elif item.kind in KINDS:
            yield _guarded_response(item, max_bytes)
        else:
            yield item.kind or "unknown"


def is_excused(responses: int, damaged: int) -> bool:
    """Return whether one damaged place of a WARC file is excused: a broken download, or a flipped bit, costs one in any."""
    return responses > damaged > 0


def _guarded_response(record: RawWarcRecord, max_bytes: int) -> Item:
    try:
        return _response(record, max_bytes)
    except BaseException as error:
        if not is_fault_of_document(error):
            raise
        return Damage(
            offset=record.offset, why=f"HTTP message cannot be read ({type(error).__name__}: {error})"
        )


def _response(record: RawWarcRecord, max_bytes: int) -> Item:
    """Return a page that was asked for and came, or why it is none."""
    offset = record.offset
    target = TARGET.search(record.head)
    url = target[1].decode(errors="replace") if target else ""
    page = HtmlResponse(offset=offset, url=url, too_large=True)
    own_type = CONTENT_TYPE.search(record.head) if record.kind != RESPONSE else None
    bare_type = own_type[1] if own_type and not HTTP_TYPE.match(own_type[1]) else b""
    plain = PLAIN_TEXT.match(bare_type) if record.kind == CONVERSION else None
    if plain and not BEGINS_HTML.match(record.block or b""):
        if record.block is None:
            return Damage(offset=offset, why=f"text is larger than {human_bytes(max_bytes)}")
        charset = (plain[1] or b"").decode(errors="replace")
        return HtmlResponse(offset=offset, url=url, charset=charset, body=record.block, is_text=True)
    if record.block is None:
        return record.kind if bare_type and not HTML.match(bare_type) else page
    is_bare = bare_type or (record.kind != RESPONSE and not own_type and not HTTP.match(record.block))
    block = HTTP_OK % bare_type + record.block if is_bare else record.block
    if not HTTP.match(block):
        return record.kind
    try:
        early = INTERIM.match(block)
        block = block[early.end() :] if early else block
        parsed = WarcRecord.from_bytes(HTTP_HEAD % len(block) + block)
        parsed.parse_http(auto_decode="none", quirks_mode=True)
    except OSError as error:
        return Damage(offset=offset, why=f"HTTP header cannot be read ({error})")
    # Some servers give the header twice, which proxies join by a comma.
    kind, charset = (
        (value or "").split(",")[0].strip(" \"'") for value in (parsed.http_content_type, parsed.http_charset)
    )
    kind, heads = kind.lower(), parsed.http_headers
    if heads is None or not _is_success(heads) or kind not in (*HTML_TYPES, *UNSURE_TYPES):
        return record.kind
    try:
        body = decode_body(parsed.reader.read(), heads.items(), max_bytes)
    except ValueError as error:
        return Damage(offset=offset, why=f"HTTP body cannot be decompressed ({error})")
    if kind in UNSURE_TYPES and not BEGINS_HTML.match(body or b""):
        return record.kind
    if body is None:
        return page
    return replace(page, charset=charset, body=body, too_large=False)


def _is_success(heads: Any) -> bool:
    """Return whether the answer of a server holds a page from its beginning on."""
    parts = [value for name, value in heads.items() if name.lower() == "content-range"]
    return heads.status_code in STATUSES and all(map(FIRST_PART.match, parts))
