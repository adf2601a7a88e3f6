"""Read the columnar index of a crawl, and fetch only the records that it calls pages of the language.

A row of the index names a WARC file, the place of one record in it, and the languages of its page. Each record is
fetched by its own range of bytes, several at a time, and read as if the file had been read whole.
Source: Common Crawl, "Index to WARC Files and URLs in Columnar Format", cc-index-table schema.
"""

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.clean.read.warc import HTML_TYPES, Damage, Item, html_responses
from anadil.core.errors import DataError, RetryableError
from anadil.core.retry import retried
from anadil.text.language import known_languages
from anadil.text.language_data import NO_LANGUAGE

COLUMNS = ("warc_filename", "warc_record_offset", "warc_record_length", "content_languages")
"""By which an index is known, where it has no column of text."""
OPTIONAL_COLUMNS = ("fetch_status", "content_mime_detected")
STATUS_OK = 200
FETCHED_AT_A_TIME = 16
"""Requests that wait for an answer: one takes some 50 ms, and judging its page 5 ms."""
ATTEMPTS = 3
MAX_RECORD_BYTES = 64 * 1024**2
"""Most bytes of a compressed record; Common Crawl cuts pages at 1 MiB, since 2025 at 5 MiB."""
COMMON_CRAWL = "s3://commoncrawl"
TABLE = "/cc-index/"
"""Folder of the index beside `crawl-data`, to which its file names lead."""
OTHER_CODES = {"bh": "bih", "fil": "tgl", "ie": "ile", "tl": "tgl", "tw": "twi"}
"""Codes for which CLD2, which made the index, knows another language of three letters than the table of languages."""
NO_PAGES_TO_CHOOSE = "an index of a crawl names pages by their language, and `language: none` names none; give the WARC files, or a language"


class Place(NamedTuple):
    """A record of a crawl."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    content: bytes
    suffix: str = ".gz"

    def open(self, _mode: str, _buffering: int = -1, /) -> BinaryIO:
        return io.BytesIO(self.content)


def crawl_root(index_uri: str) -> str:
    """Return the address that the file names of an index continue: where it lies beside the crawl, else Common Crawl."""
    root, table, _ = index_uri.rpartition(TABLE)
    return root if table else COMMON_CRAWL


def index_language(code: str) -> str:
    """Return the three letters of an index for a code of two or three, with or without script, as in `azj_Latn`."""
    if code.lower() == NO_LANGUAGE:
        raise DataError(NO_PAGES_TO_CHOOSE)
    plain = code.replace("_", "-").split("-")[0].lower()
    row = known_languages().get(plain)
    return OTHER_CODES.get(plain) or (row.iso639_3 if row else plain)


def places_of(batches: Iterator[pa.RecordBatch], language: str) -> Iterator[Place]:
    """Yield the places of the pages in a language, as `index_language` writes it, in the order of the index."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        status, kind = (columns.get(name) for name in OPTIONAL_COLUMNS)
        for row, languages in enumerate(columns["content_languages"].to_pylist()):
            if languages is None or language not in languages.split(","):
                continue
            is_success = status is None or status[row].as_py() in (None, STATUS_OK)
            if is_success and (kind is None or kind[row].as_py() in (None, *HTML_TYPES)):
                file, offset, length = (columns[name][row].as_py() for name in COLUMNS[:3])
                yield Place(file, int(offset), int(length))


def pages_of(places: Iterator[Place], root: str, max_bytes: int) -> Iterator[tuple[Place, Item]]:
    """Fetch pages, skipped responses and damaged records, in the order of their places."""
    with ThreadPoolExecutor(FETCHED_AT_A_TIME, thread_name_prefix="crawl") as threads:
        requests: deque[tuple[Place, Future[bytes]]] = deque()
        try:
            for place in places:
                requests.append((place, threads.submit(_fetch, join(root, place.file), place)))
                if len(requests) >= FETCHED_AT_A_TIME:
                    yield from _items(*requests.popleft(), max_bytes)
            while requests:
                yield from _items(*requests.popleft(), max_bytes)
        finally:
            for _, future in requests:
                future.cancel()


def _items(place: Place, future: Future[bytes], max_bytes: int) -> Iterator[tuple[Place, Item]]:
    content = future.result()
    if len(content) < min(place.length, MAX_RECORD_BYTES):
        missing = (
            f"the file ends {place.length - len(content):,} bytes before the record that the index names"
        )
        yield place, Damage(offset=place.offset, why=missing)
        return
    for item in html_responses(_Member(place.file, content), max_bytes):
        yield place, Damage(offset=place.offset, why=item.why) if isinstance(item, Damage) else item


def _fetch(uri: str, place: Place) -> bytes:
    """Fetch the bytes of a record, as far as the file goes."""
    length = min(place.length, MAX_RECORD_BYTES)

    def part() -> bytes:
        content, size = storage.input_store(uri).part(uri, place.offset, length)
        if len(content) < min(length, size - place.offset):
            raise RetryableError(
                f"{uri}: {length:,} bytes from {place.offset:,} on did not come whole; check the network, then "
                "run the same command again"
            )
        return content

    return retried(part, ATTEMPTS)
