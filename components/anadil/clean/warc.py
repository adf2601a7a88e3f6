"""The web pages of a WARC file, as far as it can be read."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecordType

GZIP_MEMBER = b"\x1f\x8b\x08"
"""First bytes of a gzip member, with which each record of a `.warc.gz` begins."""
HTML_TYPES = ("text/html", "application/xhtml+xml")
STATUS_OK = 200
SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A successful response with a web page."""

    offset: int
    """Where its record begins in the (compressed) file."""
    url: str
    charset: str
    body: bytes
    too_large: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place that could not be read."""

    offset: int
    why: str


Item = Page | Damage | int
"""An int is the number of responses that were skipped: not a page, or not a success."""


def html_responses(path: Path, max_bytes: int) -> Iterator[Item]:
    """Pages, skipped responses and damaged places of a WARC file, in order.

    After damaged compressed data reading goes on at the next gzip member; garbage between
    uncompressed records is skipped by fastwarc itself.
    """
    with path.open("rb") as file:
        start: int | None = 0
        any_record = gap_reported = False
        while start is not None:
            last, fresh = start, False
            file.seek(start)
            try:
                # Quirks mode looks for the next record after bytes that are none.
                for record in ArchiveIterator(file, parse_http=False, quirks_mode=True, fsspec_args=False):
                    last = int(record.stream_pos)
                    if start and not fresh and not gap_reported:
                        yield Damage(offset=last, why="bytes before this WARC record are damaged")
                    fresh = any_record = True
                    gap_reported = False
                    if record.record_type == WarcRecordType.response:
                        yield _item(record, last, max_bytes)
            except OSError as error:
                # The damaged member is tried once more, and so are bytes that look like one: no new damage.
                if not gap_reported:
                    yield Damage(offset=last, why=f"WARC is damaged here or right after ({error})")
                    gap_reported = True
            # Also after an orderly end: what follows damaged first bytes of a member passes for padding.
            start = _next_member(file, last + 1)
        if not any_record and not gap_reported:
            yield Damage(offset=0, why="no WARC record in this file")


def _item(record: Any, offset: int, max_bytes: int) -> Item:
    """One response; damage where its block is shorter than its header says."""
    length = int(record.content_length)
    url = record.headers.get("WARC-Target-URI") or ""
    if length > max_bytes:
        return Page(offset=offset, url=url, charset="", body=b"", too_large=True)
    record.freeze()
    # Before its HTTP header is parsed, the reader of a record gives the whole block.
    block = record.reader.read()
    if len(block) < length:
        return Damage(offset=offset, why=f"WARC record ends after {len(block):,} of {length:,} bytes")
    record.reader.seek(0)
    try:
        record.parse_http(auto_decode="all", quirks_mode=True)
    except OSError as error:
        return Damage(offset=offset, why=f"HTTP header cannot be read ({error})")
    kind = (record.http_content_type or "").lower()
    if record.http_headers is None or record.http_headers.status_code != STATUS_OK or kind not in HTML_TYPES:
        return 1
    try:
        # A compressed body may be a bomb: never more than the limit of it is unpacked.
        body = record.reader.read(max_bytes + 1)
    except OSError as error:
        return Damage(offset=offset, why=f"HTTP body cannot be decompressed ({error})")
    too_large = len(body) > max_bytes
    charset = record.http_charset or ""
    return Page(offset=offset, url=url, charset=charset, body=b"" if too_large else body, too_large=too_large)


def _next_member(file: BinaryIO, start: int) -> int | None:
    """Offset of the next bytes that look like the start of a gzip member."""
    file.seek(start)
    overlap = b""
    while chunk := file.read(SEARCH_BYTES):
        found = (overlap + chunk).find(GZIP_MEMBER)
        if found >= 0:
            return start - len(overlap) + found
        start += len(chunk)
        overlap = (overlap + chunk)[-2:]
    return None
