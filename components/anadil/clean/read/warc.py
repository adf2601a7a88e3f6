"""Read the web pages and texts of a WARC file, as far as it can be read.

A page is the answer of a server (`response`), or stands by itself (`resource`, as archives of single sites have them,
and `conversion`), with its type in the record's own head. A `conversion` of type `text/plain` is the text of a page, as in
the WET files of Common Crawl.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastwarc.warc import WarcRecord

from anadil.artifacts.ranged import ReadableFile
from anadil.clean.read.http_body import decode_body
from anadil.clean.read.read_stats import RESPONSE, is_fault_of_document
from anadil.clean.read.warc_records import ByteRange, Damage, RawWarcRecord, warc_records
from anadil.core.format import human_bytes

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
