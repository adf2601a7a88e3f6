"""Read records of raw files, by suffix; what cannot be read is counted with its place.

No file is held in memory as a whole but `.html`, and `.txt` that is one document.
"""

import io
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import line_reader, storage
from anadil.artifacts.json_values import JSON_SUFFIXES, holds_lines, json_values, refuse_no_lines
from anadil.artifacts.prefetch import checked_copy
from anadil.artifacts.ranged import ReadableFile
from anadil.artifacts.separated_file import Fault, Place, SeparatedFile, not_utf_8
from anadil.artifacts.table_rows import TooLargeError, batch_rows, parquet_batches
from anadil.artifacts.workbook import WORKBOOK, Workbook, open_workbook
from anadil.clean.read import crawl_index, record_fields, text_cut
from anadil.clean.read.charset import decode_text
from anadil.clean.read.input_kinds import ARCHIVES, TABLES, suffix_of
from anadil.clean.read.read_stats import RESPONSE, ReadStats
from anadil.clean.read.warc import ByteRange, Damage, HtmlResponse, html_responses, is_excused
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes
from anadil.core.json_text import parse_json
from anadil.recipe.clean import TxtDocument
from anadil.text.code_pages import nearly_utf_8, say_lost_letters
from anadil.text.letters import letters_of

log = logging.getLogger(__name__)

OUT_OF_ORDER = (".parquet", WORKBOOK)
"""Suffixes of files that are not read from first to last."""
SAMPLE_BYTES = MIB
"""First bytes of a file, by which its encoding is known."""
NAMES = {"\t": "tabs"}
MAX_NAMED = 30
"""Columns in a message."""
MAX_RECORD_BYTES = line_reader.MAX_LINE_BYTES
"""A longer line or file is not read."""
PARQUET_BATCH = 1_000


def separated_values(
    file: ReadableFile, name: str, text_field: str, language: str, read_stats: ReadStats,
    sides: record_fields.Sides = (),
) -> Iterator[tuple[str, dict[str, str] | Fault]]:  # fmt: skip
    """Yield each row with its place: its values by column, of the columns that clean reads.

    Args:
        name: Name with its suffix, in provenance and messages.
        language: Language whose letters tell code pages apart.
        read_stats: Counts files that are not UTF-8, and columns that are not read.
    """
    with _opened_table(file, name, sides[0].code if sides else text_field, language, read_stats) as table:
        if isinstance(table, Workbook):
            read_stats.not_read |= +table.not_read
        if not table.columns:
            return
        if table.separator != table.likely:
            sign = NAMES.get(table.separator, repr(table.separator))
            log.info("%s: columns are separated by %s", name, sign)
        rows: Iterator[tuple[Place, Sequence[str | bool | None] | Fault]] = iter(table.rows())
        fields = [text_field]
        if sides:
            fields = record_fields.table_columns(name, table.columns, sides)
        if fields:
            numbers = _columns(name, table, fields, read_stats)
        else:
            numbers = {side.code: number for number, side in enumerate(sides)}
            log.info(
                "%s: its first row names no columns; they are taken for %s, in the order of `pairs`",
                name,
                " and ".join(numbers),
            )
            rows = itertools.chain([(table.first_line, table.columns)], rows)
        for number, cells in rows:
            place = f"{name}:{number}"
            if isinstance(cells, Fault):
                yield place, cells
                continue
            # A workbook's cell may be empty or a mark.
            values = {column: "" if cells[at] is None else str(cells[at]) for column, at in numbers.items()}
            if (fault := not_utf_8(values.values())) is not None:
                yield place, fault
            else:
                yield place, values


def _columns(
    name: str, table: SeparatedFile | Workbook, fields: Sequence[str], read_stats: ReadStats
) -> dict[str, int]:
    """Return the columns to read with their numbers; `fields` are those of the text."""
    columns = table.columns
    if missing := [field for field in fields if field not in columns]:
        listed = ", ".join(map(repr, columns[:MAX_NAMED])) + (", ..." if len(columns) > MAX_NAMED else "")
        raise DataError(
            f"{name}: no column {missing[0]!r} (clean.text_field) among {listed}; the first row must name the columns"
        )
    read = [*fields, *record_fields.address_columns(columns), *record_fields.columns_beside(columns)]
    counts, numbers = Counter(columns), {column: number for number, column in enumerate(columns)}
    for column in read:
        if counts[column] > 1:
            raise DataError(f"{name}: {counts[column]} columns are named {column!r}; rename all but one")
    used = {*read}
    read_stats.columns_not_read.update({column: 1 for column in counts if column not in used})
    return {column: numbers[column] for column in dict.fromkeys(read)}


@contextmanager
def _opened_table(
    file: ReadableFile, name: str, column: str, language: str, read_stats: ReadStats
) -> Iterator[SeparatedFile | Workbook]:
    if name.lower().endswith(WORKBOOK):
        with open_workbook(file, name, column) as workbook:
            yield workbook
        return
    with _text(file, name, language, read_stats) as text:
        yield SeparatedFile(text, name, column)


@contextmanager
def _text(file: ReadableFile, name: str, language: str, read_stats: ReadStats) -> Iterator[Any]:
    suffix = PurePath(name.lower()).suffix
    sample = b""
    with line_reader.unpacked(file, suffix) as opened:
        stream: Any = opened
        # Rows before the damage are read. A stream that is damaged says so again.
        with suppress(*line_reader.DAMAGED):
            while len(sample) < SAMPLE_BYTES and (piece := stream.read1(SAMPLE_BYTES - len(sample))):
                sample += piece
        whole = sample[: sample.rfind(b"\n") + 1] or sample
        # A zero in a text is no sign of UTF-16, which has them in the first row too.
        known = whole if b"\0" in whole.partition(b"\n")[0] else whole.replace(b"\0", b"")
        decoded, codec = decode_text(known, letters=letters_of(language))
        if codec != "utf-8":
            read_stats.recoded += 1
            log.warning("%s: not UTF-8; read as %s", name, codec)
            say_lost_letters(name, decoded, codec)
        # Bytes that are not of this encoding cost the row that they are in.
        errors = "surrogateescape" if codec == "utf-8" else "replace"
        joined = io.BufferedReader(_Joined(sample, stream))
        with io.TextIOWrapper(joined, encoding=codec, errors=errors, newline="") as text:
            yield text


class _Joined(io.RawIOBase):
    """The first bytes of a stream, and the rest of it."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first = io.BytesIO(first)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._first.readinto(target) or int(self._rest.readinto1(target))


@dataclass(frozen=True, kw_only=True)
class RawRecord:
    """One record as it came: text, or the bytes of a web page."""

    source: str
    """File and place in it, such as the number of a line counted from the beginning of the range."""
    place: str = ""
    """File and byte, which does not depend on the range; `source` where it is left out."""
    url: str = ""
    licence: str = ""
    """Licence that the record names, in its first `MAX_LICENCE_CHARS`."""
    text: str = ""
    sides: tuple[str, ...] = ()
    """Both sides of parallel text, whose lines are `text`."""
    html: bytes | None = None
    charset: str = ""
    """Encoding of the page by the server's header."""
    too_large: bool = False
    """The page exceeds `MAX_RECORD_BYTES` and was left unread."""

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the page, or of the text in UTF-8."""
        if self.html is not None:
            return len(self.html)
        return len(self.text) if self.text.isascii() else len(self.text.encode(errors="replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file to read, with the arguments of `read_records`."""

    file: ReadableFile
    name: str
    text_field: str
    start: int = 0
    end: int | None = None
    is_exact: bool = False
    uri: str = ""
    language: str = ""
    sides: record_fields.Sides = ()
    txt_document: TxtDocument = "file"


Reader = Callable[[Source, ReadStats], Iterator[RawRecord]]


def read_records(
    uri: str, name: str, text_field: str, read_stats: ReadStats, copy: storage.Copy | None = None,
    start: int = 0, end: int | None = None, is_exact: bool = False, version: str = "", language: str = "",
    sides: record_fields.Sides = (), txt_document: TxtDocument = "file",
) -> Iterator[RawRecord]:  # fmt: skip
    """Read the records of one file, local or remote, or of a range of it, in order.

    Args:
        copy: Copies what is to be read of the file; None: it is read where it lies.
        start: First byte of the range, of Parquet first row group.
        end: Byte, or row group, behind the range; None: the end of the file.
        is_exact: A record begins at `start`; see `ByteRange`.
        version: Version of an object: another one in its place is refused.
        language: Language of the pages of a crawl, and of the letters that tell code pages apart.
        sides: Languages of the sides of parallel text; empty for other text.
        txt_document: What a document of a `.txt` is.
    """
    suffix = suffix_of(uri)
    assert suffix is not None, "check_suffixes comes first"
    if uri.startswith(storage.BUILT_IN):
        text_field = "text"  # the recipe names the key of the user's files, beside which built-in ones stand
    reader = READERS[suffix]
    # Bytes of the hub are compared with their digest where a file is read whole and in order.
    is_part = storage.is_fixed(uri) and (bool(start) or end is not None or suffix in OUT_OF_ORDER)
    lying: Callable[[str, str], ReadableFile] = checked_copy if is_part else storage.readable
    with copy(uri) if copy else nullcontext(lying(uri, version)) as file:
        try:
            file.open("rb").close()
        except OSError as error:
            raise DataError(
                f"{uri}: cannot be read ({error.strerror}); check the path and its rights"
            ) from None
        source = Source(
            file=file, name=name, text_field=text_field, start=start, end=end, is_exact=is_exact, uri=uri,
            language=language, sides=sides, txt_document=txt_document,
        )  # fmt: skip
        for raw in reader(source, read_stats):
            read_stats.records += 1
            read_stats.bytes_in += raw.num_bytes
            read_stats.addresses += bool(raw.url)
            yield raw


def _jsonl(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    number = read_stats.lines = 0
    # Looking for twins of every key takes half as long again as reading a line.
    key = json.dumps(source.text_field.rpartition(".")[2], ensure_ascii=False).encode()
    try:
        lines = line_reader.lines_with_offsets(source.file, start=source.start, end=source.end)
        for number, (offset, line) in enumerate(lines, start=1):
            read_stats.lines = number
            place = f"{source.name}:{number}"
            if not offset:
                refuse_no_lines(source.name, line)
            if isinstance(line, line_reader.TooLong):
                read_stats.refuse(place, str(line))
            elif line.strip():
                try:
                    row = parse_json(line.removeprefix(b"\xef\xbb\xbf"), no_twins=line.count(key) > 1)
                except ValueError as error:
                    read_stats.refuse(place, f"not JSON: {error}")
                    continue
                yield from _raw(row, source, place, f"{source.name}@{offset}", read_stats)
    except line_reader.DAMAGED as error:
        read_stats.refuse(f"{source.name}:{number + 1}", f"compressed data is damaged from here on ({error})")


def _json(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    """Read the objects of a list, or those that follow one another, a line each or over several."""
    suffix = "".join(PurePath(source.name.lower()).suffixes[-2:])
    number = 0
    try:
        if holds_lines(source.file, suffix):
            yield from _jsonl(source, read_stats)
            return
        for number, row in json_values(source.file, suffix):
            place = f"{source.name}:{number}"
            yield from _raw(row, source, place, place, read_stats)
    except ValueError as error:
        read_stats.refuse(f"{source.name}:{number + 1}", f"not JSON from here on: {error}")
    except line_reader.DAMAGED as error:
        read_stats.refuse(f"{source.name}:{number + 1}", f"compressed data is damaged from here on ({error})")


def _table(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    place = f"{source.name}:1"
    try:
        for place, values in separated_values(
            source.file, source.name, source.text_field, source.language, read_stats, source.sides
        ):
            if isinstance(values, Fault):
                read_stats.refuse(place, values.why)
            else:
                yield from _raw(values, source, place, place, read_stats)
    except line_reader.DAMAGED as error:
        read_stats.refuse(place, f"compressed data is damaged from here on ({error})")


def _raw(row: Any, source: Source, place: str, offset: str, read_stats: ReadStats) -> Iterator[RawRecord]:
    """Read a record with its text, and address, source and licence where they are given; none where it is bad."""
    if not isinstance(row, dict):
        read_stats.refuse(place, f"not a JSON object but a {type(row).__name__}")
        return
    sides: tuple[str, ...] = ()
    try:
        if source.sides:
            text: str | None = "\n".join(sides := record_fields.texts_of(row, source.sides))
        else:
            text = record_fields.text_of(row, source.text_field)
    except ValueError as error:
        read_stats.refuse(place, str(error))
        return
    read_stats.null_texts += text is None
    origin = record_fields.writable(row.get("source"))
    yield RawRecord(
        source=f"{place} {origin}" if origin else place, place=offset, url=record_fields.address_of(row),
        licence=record_fields.licence_of(row), text=text or "", sides=sides,
    )  # fmt: skip


def _txt(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    with source.file.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
    known = text_cut.cut_of(source.file, source.txt_document, source.language, size)
    if not source.start:
        read_stats.txt_documents[known.cut] = 1
    if known.is_doubtful:
        read_stats.txt_documents["doubtful"] = 1
        log.warning(
            "%s: is taken for one document, and its lines end as sentences do; where each is a document, set "
            "clean.txt_document to line", source.name,
        )  # fmt: skip
    is_stateful = known.codec.startswith(text_cut.STATEFUL)
    if known.cut != text_cut.FILE and not (is_stateful and size > MAX_RECORD_BYTES):
        if not source.start and source.txt_document == "guess":
            log.info(
                "%s: taken for a document a %s; clean.txt_document can say otherwise", source.name, known.cut
            )
        yield from _cut_txt(source, known, read_stats)
        return
    if size > text_cut.MAX_DOCUMENT_BYTES and source.txt_document == "guess":
        log.warning(
            "%s: %s are taken for one document; where it holds more of them, set clean.txt_document to line or block",
            source.name, human_bytes(size),
        )  # fmt: skip
    data = _whole(source.file)
    if data is None:
        why = f"file is larger than {human_bytes(MAX_RECORD_BYTES)}; say what a document of it is in clean.txt_document, or give it as .jsonl"
        why += ", in UTF-8" * is_stateful
        read_stats.refuse(source.name, why)
        return
    text, codec = decode_text(data, letters=letters_of(source.language))
    if codec != "utf-8":
        read_stats.recoded += 1
        log.warning("%s: not UTF-8; read as %s", source.name, codec)
    yield RawRecord(source=source.name, text=text)


def _cut_txt(source: Source, known: text_cut.TextCut, read_stats: ReadStats) -> Iterator[RawRecord]:
    """Read the documents of a range of a file of lines, or the blocks of a whole file."""
    lines: Iterator[tuple[int, bytes | line_reader.TooLong]]
    lines, codec = (
        line_reader.lines_with_offsets(source.file, start=source.start, end=source.end),
        known.codec,
    )
    if codec.startswith(text_cut.STATEFUL):
        text = decode_text(_whole(source.file) or b"", letters=letters_of(source.language))[0]
        lines, codec = enumerate(text.encode().split(b"\n")), "utf-8"
    if known.codec != "utf-8" and not source.start:
        read_stats.recoded += 1
        log.warning("%s: not UTF-8; read as %s", source.name, known.codec)
    read_stats.lines = 0
    block: list[str] = []
    place = offset_of_place = ""
    for number, (offset, line) in enumerate(lines, start=1):
        read_stats.lines = number
        if isinstance(line, line_reader.TooLong):
            read_stats.refuse(f"{source.name}:{number}", str(line))
            continue
        data = line.removeprefix(b"\xef\xbb\xbf")
        text = data.decode(codec, "replace")
        if codec == "utf-8" and "\ufffd" in text and nearly_utf_8(data) is None:  # somebody has joined files
            text = decode_text(data, letters=letters_of(source.language))[0]
            read_stats.recoded += 1
        text = text.strip("\r\n")
        if known.is_numbered:
            text = text_cut.NUMBERED.sub("", text, count=1)
        is_end = text_cut.SEPARATOR.fullmatch(text.strip()) if known.is_separated else not text.strip()
        if text.strip() and not is_end and not block:
            place, offset_of_place = f"{source.name}:{number}", f"{source.name}@{offset}"
        if text.strip() and not is_end:
            block.append(text)
        if block and (known.cut == text_cut.LINE or is_end):
            yield RawRecord(source=place, place=offset_of_place, text="\n".join(block))
            block = []
    if block:
        yield RawRecord(source=place, place=offset_of_place, text="\n".join(block))


def _html(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:  # noqa: ARG001  readers are called alike
    data = _whole(source.file)
    yield RawRecord(source=source.name, html=data or b"", too_large=data is None)


def _whole(file: ReadableFile) -> bytes | None:
    """Read a file that is one document; None where it is too large."""
    with file.open("rb") as stream:
        data: bytes = stream.read(MAX_RECORD_BYTES + 1)
    return data if len(data) <= MAX_RECORD_BYTES else None


def _warc(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    read_stats.responses = read_stats.damaged = 0
    part = ByteRange(start=source.start, end=source.end, is_exact=source.is_exact)
    for item in html_responses(source.file, MAX_RECORD_BYTES, part):
        if isinstance(item, Damage):
            read_stats.damaged += 1
            read_stats.refuse(f"{source.name}:{item.offset}", item.why)
        elif isinstance(item, str):
            read_stats.responses += item == RESPONSE
            read_stats.skip(item)
        else:
            read_stats.responses += 1
            yield _of_archive(item, f"{source.name}:{item.offset}", source.language, read_stats)
    read_stats.excused += is_excused(read_stats.responses, read_stats.damaged)
    read_stats.first, read_stats.following = part.first, part.following


def _of_archive(item: HtmlResponse, origin: str, language: str, stats: ReadStats) -> RawRecord:
    if not item.is_text:
        return RawRecord(
            source=origin, url=item.url, html=item.body, charset=item.charset, too_large=item.too_large
        )
    text, codec = decode_text(item.body, [item.charset], letters_of(language))
    stats.recoded += codec != "utf-8"
    return RawRecord(source=origin, url=item.url, text=text)


def _parquet(source: Source, read_stats: ReadStats) -> Iterator[RawRecord]:
    row = 0
    try:
        # Arrow joins what it reads of the columns; a buffer would fetch megabytes of others beside it.
        with source.file.open("rb", 0) as stream, pq.ParquetFile(stream, pre_buffer=True) as table:
            known = table.schema_arrow.names
            row = sum(table.metadata.row_group(before).num_rows for before in range(source.start))
            is_index = (
                not source.sides and source.text_field not in known and {*crawl_index.COLUMNS} <= {*known}
            )
            if is_index:
                columns = [*filter(known.__contains__, (*crawl_index.COLUMNS, *crawl_index.OPTIONAL_COLUMNS))]
            elif source.sides and record_fields.NESTED not in known:
                sides = record_fields.columns_of_sides(source.name, known, source.sides)
                columns = record_fields.columns_to_read(source.name, table.schema, *sides)
            else:
                field = record_fields.NESTED if source.sides else source.text_field
                columns = record_fields.columns_to_read(source.name, table.schema, field)
            groups = range(table.num_row_groups)[source.start : source.end]
            batches = parquet_batches(stream, source.name, PARQUET_BATCH, columns, groups)
            if is_index:
                places = crawl_index.places_of(batches, crawl_index.index_language(source.language))
                yield from _crawl(source, places, read_stats)
                return
            for values in (values for batch in batches for values in batch_rows(batch)):
                row += 1
                place = f"{source.name}:{row}"
                if isinstance(values, dict):
                    yield from _raw(values, source, place, place, read_stats)
                else:
                    what = "" if isinstance(values, line_reader.TooLong) else "not UTF-8: "
                    read_stats.refuse(place, f"{what}{values}")
    except TooLargeError as error:
        read_stats.refuse(f"{source.name}:{row + 1}", f"Parquet is not read from here on: {error}")
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise  # of the disk; of damaged bytes Arrow makes one without a number
        read_stats.refuse(f"{source.name}:{row + 1}", f"Parquet is damaged from here on ({error})")


def _crawl(source: Source, places: Iterator[crawl_index.Place], read_stats: ReadStats) -> Iterator[RawRecord]:
    for place, item in crawl_index.pages_of(places, crawl_index.crawl_root(source.uri), MAX_RECORD_BYTES):
        origin = f"{place.file}:{place.offset}"
        if isinstance(item, Damage):
            read_stats.refuse(origin, item.why)
        elif isinstance(item, str):
            read_stats.skip(item)
        else:
            yield _of_archive(item, origin, source.language, read_stats)


READERS: dict[str, Reader] = {
    **dict.fromkeys((*line_reader.PLAIN_LINES, *line_reader.PACKED_LINES), _jsonl),
    **dict.fromkeys(JSON_SUFFIXES, _json),
    **dict.fromkeys(TABLES, _table),
    ".txt": _txt,
    ".html": _html,
    ".htm": _html,
    **dict.fromkeys(ARCHIVES, _warc),
    ".parquet": _parquet,
}
