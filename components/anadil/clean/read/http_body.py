"""Undo the codings of the body of an HTTP message, up to a limit of bytes.

A few kilobytes can unpack to gigabytes, so every coding is undone in bounded pieces. Crawlers and
servers write headers that are not true: a body that is not coded as declared is taken as it is.
"""

import codecs
import io
import re
import zlib
from collections.abc import Iterable

import zstandard
from fastwarc.stream_io import BrotliReader

from anadil.artifacts.line_reader import ZstdFile
from anadil.core.format import MIB

MAX_CODINGS = 4
"""One over the other; more are an attack."""
GZIP_MAGIC = b"\x1f\x8b"
MAX_GZIP_MEMBERS = 100
"""In one body; Chrome reads one."""
MAX_HTTP_ZSTD_WINDOW_BYTES = 8 * MIB
"""Largest window that a server may ask of a client. Source: RFC 9659."""
DECODED_PIECE_BYTES = MIB
CHUNK_HEADER = re.compile(rb"[ \t]*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")
"""The line before a chunk; source: RFC 9112, section 7.1."""
BODY_ERRORS = (EOFError, ValueError, OSError, zlib.error, zstandard.ZstdError)
"""Errors raised on bytes that are not coded as declared."""


def decode_body(body: bytes, headers: Iterable[tuple[str, str]], limit: int) -> bytes | None:
    """Undo the transfer and content codings of a body; None if it is longer than the limit.

    `headers` are names and values; codings are listed in the order in which they were applied.
    """
    pairs = list(headers)
    codings = [*_codings(pairs, "content-encoding"), *_codings(pairs, "transfer-encoding")]
    if len(codings) > MAX_CODINGS:
        raise ValueError(f"{len(codings)} codings one over the other")
    for declared in (*reversed(codings), ""):
        if len(body) > limit:
            return None
        if not declared and not body.startswith(GZIP_MAGIC):
            break
        # No page begins so: the server has not said that it packs, or the crawler has left that out.
        coding = declared or "gzip"
        try:
            body = _decoded(body, coding, limit + 1)
        except BODY_ERRORS as error:
            if body.removeprefix(codecs.BOM_UTF8).lstrip()[:1] != b"<":
                raise ValueError(f"{coding}: {error}") from None
    return body if len(body) <= limit else None


def _codings(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    values = [value for key, value in headers if key.lower() == name]
    words = [word.strip().lower().removeprefix("x-") for word in ",".join(values).split(",")]
    return [word for word in words if word in ("gzip", "deflate", "br", "zstd", "chunked")]


def _decoded(body: bytes, coding: str, most: int) -> bytes:
    """Undo one coding, for at most so many bytes; of cut gzip and deflate what is left, as browsers do."""
    if coding == "gzip":
        return _inflated(body, 31, most)
    if coding == "deflate":
        try:
            return _inflated(body, 15, most)
        except zlib.error:
            # Some servers take the name by its word and leave out zlib's frame.
            return _inflated(body, -15, most)
    if coding == "br":
        try:
            return _unpacked_brotli(body, most)
        except OSError:
            # The reader refuses what follows the end, such as a line feed; of gzip that is passed over.
            return _unpacked_brotli(body.rstrip(b"\r\n\0"), most)
    if coding == "zstd":
        # A frame that is cut is an error.
        frames, unpacked = ZstdFile(io.BytesIO(body), MAX_HTTP_ZSTD_WINDOW_BYTES), bytearray()
        piece = memoryview(bytearray(min(DECODED_PIECE_BYTES, most)))
        while len(unpacked) < most and (count := frames.readinto1(piece[: most - len(unpacked)])):
            unpacked += piece[:count]
        return bytes(unpacked)
    return _without_chunks(body)


def _unpacked_brotli(body: bytes, most: int) -> bytes:
    reader, unpacked = BrotliReader(io.BytesIO(body), fsspec_args=False), bytearray()
    while len(unpacked) < most and (piece := reader.read(min(DECODED_PIECE_BYTES, most - len(unpacked)))):
        unpacked += piece
    return bytes(unpacked)


def _inflated(body: bytes, wbits: int, most: int) -> bytes:
    unpacked = bytearray()
    for _ in range(MAX_GZIP_MEMBERS):
        decompressor = zlib.decompressobj(wbits)
        unpacked += decompressor.decompress(body, most - len(unpacked))
        body = decompressor.unused_data
        # Another member follows, or bytes that nobody should read.
        if len(unpacked) >= most or not body.startswith(GZIP_MAGIC):
            break
    return bytes(unpacked)


def _without_chunks(body: bytes) -> bytes:
    joined = bytearray()
    position = 0
    while header := CHUNK_HEADER.match(body, position):
        size = int(header[1], 16)
        if not size:
            break
        joined += body[header.end() : header.end() + size]
        position = header.end() + size
        position += len(body[position : position + 2]) - len(body[position : position + 2].lstrip(b"\r\n"))
    if not position and not header:
        # Most crawlers join the chunks and leave the header.
        return body
    if not header and position < len(body):
        raise ValueError(f"no chunk after {position:,} bytes")
    return bytes(joined)
