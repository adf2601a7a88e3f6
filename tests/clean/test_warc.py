"""Records with wrong lengths, bodies in every coding, and bombs."""

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import pytest
import zstandard

from anadil.clean.read.http_body import MAX_GZIP_MEMBERS, decode_body
from anadil.clean.read.warc import Damage, HtmlResponse, html_responses
from anadil.core.format import MIB
from tests.kit.child import peak_memory
from tests.kit.clean_stage import members, warc_record
from tests.kit.marks import matrix, slow
from tests.kit.wrong_lengths import BODY, LIMIT, PLAIN, SIZE, WRONG, with_length

BOMB_MIB = 300
"""Of what unpacks without end; more than any process here may hold."""
KINDS: dict[str, Callable[[list[bytes]], bytes]] = {
    "plain.warc": b"".join,
    "members.warc.gz": lambda records: b"".join(members(records)),
    "whole.warc.gz": lambda records: gzip.compress(b"".join(records)),
}


def read(folder: Path, name: str, records: list[bytes]) -> tuple[str, list[Damage]]:
    """Last letters of the URLs of the pages, and the damaged places."""
    path = folder / name
    path.write_bytes(KINDS[name](records))
    items = list(html_responses(path, LIMIT))
    pages = [item for item in items if isinstance(item, HtmlResponse)]
    return "".join(page.url[-1] for page in pages), [item for item in items if isinstance(item, Damage)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_length_costs_one_record_and_is_counted_with_its_place(
    tmp_path: Path, name: str, place: int, wrong: Callable[[int], object]
) -> None:
    records = [*PLAIN]
    records[place] = with_length(records[place], wrong)

    pages, damages = read(tmp_path, name, records)

    assert pages == "012345".replace(str(place), "")
    offsets = {"plain.warc": SIZE * place, "members.warc.gz": len(b"".join(members(PLAIN[:place])))}
    assert [damage.offset for damage in damages] == [offsets.get(name, 0)]


@pytest.mark.parametrize("length", ["9" * 5_000, "-1", "", "many", "7\r\nContent-Length: 8"])
def test_what_a_page_says_of_its_own_length_ends_nothing(tmp_path: Path, length: str) -> None:
    records = [*PLAIN]
    body = re.sub(rb"(?<=\nContent-Length: )\d+(?=\r\n\r\n<)", length.encode(), records[2])
    records[2] = with_length(body, lambda true: true + len(body) - SIZE)

    assert read(tmp_path, "plain.warc", records) == ("012345", [])


@pytest.mark.parametrize("name", KINDS)
def test_records_over_the_limit_are_passed_over(tmp_path: Path, name: str) -> None:
    large = warc_record(b"0" * (3 * LIMIT), url="https://a.az/L", kind="video/mp4")

    pages, damages = read(tmp_path, name, [PLAIN[0], large, PLAIN[1]])

    assert (pages, damages) == ("0L1", [])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("extra", [0, 3 * LIMIT])
def test_a_page_that_shows_a_warc_record_is_a_page(tmp_path: Path, name: str, extra: int) -> None:
    about = warc_record(BODY + b"\r\n\r\n" + PLAIN[3] + b"0" * extra, url="https://a.az/A")

    pages, damages = read(tmp_path, name, [PLAIN[0], about, PLAIN[1]])

    assert (pages, damages) == ("0A1", [])


@pytest.mark.parametrize("ends", [b"", b"\r\n", b"\n\n", b"\r\n\r\n\r\n\r\n"])
def test_other_ends_of_records_are_as_good(tmp_path: Path, ends: bytes) -> None:
    records = [record.removesuffix(b"\r\n\r\n") + ends for record in PLAIN]

    assert read(tmp_path, "members.warc.gz", records) == ("012345", [])
    assert read(tmp_path, "plain.warc", records) == ("012345", [])


@pytest.mark.parametrize(
    "written", [bytes.lower, lambda head: head.replace(b"\r\n", b"\n")], ids=["lower case", "line feeds"]
)
def test_other_spellings_of_a_records_head_are_as_good(
    tmp_path: Path, written: Callable[[bytes], bytes]
) -> None:
    records = []
    for record in PLAIN:
        version, fields, block = re.split(rb"(?<=\A.{8})\r\n|\r\n\r\n", record, maxsplit=2)
        ends = b"\n" if b"\r" not in written(b"\r\n") else b"\r\n"
        records.append(version + ends + written(fields) + ends + ends + block)

    assert read(tmp_path, "plain.warc", records) == ("012345", [])
    assert read(tmp_path, "members.warc.gz", records) == ("012345", [])


def test_a_page_that_shows_the_first_line_of_a_record_is_a_page(tmp_path: Path) -> None:
    shown = re.sub(rb"(?<=text/html\r\n)Content-Length: \d+\r\n", b"", PLAIN[2]).replace(
        b"<p>", b"<pre>\n\nWARC/1.0\nis how a record begins.\n\n", 1
    )
    shown = with_length(shown, lambda said: said + len(shown) - SIZE)

    assert read(tmp_path, "plain.warc", [*PLAIN[:2], shown, *PLAIN[3:]]) == ("012345", [])


def test_zeros_behind_the_last_member_are_no_damage(tmp_path: Path) -> None:
    assert read(tmp_path, "members.warc.gz", PLAIN) == ("012345", [])
    path = tmp_path / "members.warc.gz"
    path.write_bytes(path.read_bytes() + bytes(512))

    assert [type(item) for item in html_responses(path, LIMIT)] == [HtmlResponse] * 6


def test_a_compressed_file_without_its_suffix_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(members(PLAIN)))

    assert len(list(html_responses(path, LIMIT))) == 6


def chunked(body: bytes, size: int = 100) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


PACKED = gzip.compress(BODY)
SKIPPABLE = bytes.fromhex("502a4d1804000000") + b"none"
"""A frame of zstd that holds no data. Source: RFC 8878, section 3.1.2."""
CODED: dict[str, tuple[str, bytes]] = {
    "gzip": ("Content-Encoding: gzip", PACKED),
    "two members": ("Content-Encoding: gzip", gzip.compress(BODY[:90]) + gzip.compress(BODY[90:])),
    "gzip and rubbish": ("Content-Encoding: gzip", PACKED + b"rubbish"),
    "more members than are read": (
        "Content-Encoding: gzip",
        PACKED + gzip.compress(b"") * (MAX_GZIP_MEMBERS - 1) + gzip.compress(b"rubbish"),
    ),
    "deflate": ("Content-Encoding: deflate", zlib.compress(BODY)),
    "raw deflate": ("Content-Encoding: deflate", raw_deflate(BODY)),
    "br": ("Content-Encoding: br", brotli.compress(BODY)),
    "gzip that is not declared": ("Content-Language: az", PACKED),
    "gzip in br that is declared alone": ("Content-Encoding: br", brotli.compress(PACKED)),
    "zstd": ("Content-Encoding: zstd", zstandard.compress(BODY)),
    "zstd in frames": (
        "Content-Encoding: zstd",
        zstandard.compress(BODY[:90]) + SKIPPABLE + zstandard.compress(BODY[90:]),
    ),
    "chunked": ("Transfer-Encoding: chunked", chunked(BODY)),
    "one chunk with an extension": (
        "Transfer-Encoding: chunked",
        b"%X;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    ),
    "chunked gzip": ("Transfer-Encoding: chunked\r\nContent-Encoding: gzip", chunked(PACKED)),
    "gzip in transfer": ("Transfer-Encoding: gzip, chunked", chunked(PACKED)),
    "br of gzip": ("Content-Encoding: gzip, br", brotli.compress(PACKED)),
    "gzip of gzip": ("Content-Encoding: gzip\r\nContent-Encoding: gzip", gzip.compress(PACKED)),
    "gzip that is none": ("Content-Encoding: gzip", BODY),
    "br that is none": ("Content-Encoding: br", BODY),
    "chunks that are joined": ("Transfer-Encoding: chunked", BODY),
    "a charset": ("Content-Encoding: UTF-8", BODY),
    "nothing": ("Content-Encoding: ", BODY),
}


@pytest.mark.parametrize("name", ["plain.warc", "members.warc.gz"])
@pytest.mark.parametrize(("header", "body"), CODED.values(), ids=CODED)
def test_a_body_is_read_in_every_coding(tmp_path: Path, name: str, header: str, body: bytes) -> None:
    path = tmp_path / name
    coded = warc_record(body, url="https://a.az/C", extra=f"{header}\r\n")
    path.write_bytes(KINDS[name]([coded, *PLAIN]))

    found = list(html_responses(path, LIMIT))

    assert len(found) == 7
    assert isinstance(found[0], HtmlResponse)
    assert found[0].body == BODY


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_page_with_a_byte_order_mark_that_is_not_packed_is_taken_as_it_is(coding: str) -> None:
    marked = b"\xef\xbb\xbf" + BODY
    assert decode_body(marked, [("Content-Encoding", coding)], LIMIT) == marked


@pytest.mark.parametrize("name", ["plain.warc", "members.warc.gz"])
@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        ("gzip", b"\x1f\x8b\x08" + b"\xff" * 50, "gzip: Error -3"),
        ("zstd", zstandard.compress(BODY)[:-3], "zstd: compressed data ended within a frame"),
        ("zstd", zstandard.compress(BODY) + zstandard.compress(BODY)[:9], "zstd: compressed data ended"),
        ("br", brotli.compress(BODY)[:-3], "br: "),
        ("gzip, gzip, gzip, gzip, gzip", PACKED, "5 codings one over the other"),
        ("chunked", b"5\r\nSalam\r\nno chunk", "chunked: no chunk after 10 bytes"),
    ],
)
def test_a_body_that_cannot_be_unpacked_costs_its_own_record_only(
    tmp_path: Path, name: str, header: str, body: bytes, why: str
) -> None:
    coded = warc_record(body, extra=f"Content-Encoding: {header}\r\n")

    pages, damages = read(tmp_path, name, [coded, *PLAIN])

    assert pages == "012345"
    assert [damage.offset for damage in damages] == [0]
    assert f"HTTP body cannot be decompressed ({why}" in damages[0].why


def test_a_header_longer_than_can_be_read_costs_its_own_record_only(tmp_path: Path) -> None:
    endless = warc_record(BODY, extra=f"Set-Cookie: {'x' * 100_000}\r\n")

    pages, damages = read(tmp_path, "members.warc.gz", [endless, *PLAIN])

    assert pages == "012345"
    assert [damage.offset for damage in damages] == [0]
    assert damages[0].why.startswith("HTTP header cannot be read (Maximum header length exceeded")


class PanicException(BaseException):
    """As libraries in Rust raise on a bug of theirs."""


def test_a_response_that_a_library_fails_on_costs_its_own_record_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(body: bytes, *_: object) -> bytes:
        monkeypatch.setattr("anadil.clean.read.warc.decode_body", lambda body, *_: body)
        raise PanicException("index out of bounds")

    monkeypatch.setattr("anadil.clean.read.warc.decode_body", fails_once)

    pages, damages = read(tmp_path, "plain.warc", PLAIN)

    assert pages == "12345"
    assert [(damage.offset, damage.why) for damage in damages] == [
        (0, "HTTP message cannot be read (PanicException: index out of bounds)")
    ]


def test_a_process_without_memory_blames_no_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("anadil.clean.read.warc.decode_body", fails)

    with pytest.raises(MemoryError):
        read(tmp_path, "plain.warc", PLAIN)


def zeros(pack: Callable[[], object], mib: int) -> bytes:
    """A page of zeros that were compressed piece by piece."""
    compressor = pack()
    step = getattr(compressor, "compress", None) or compressor.process  # type: ignore[attr-defined]
    end = getattr(compressor, "flush", None) or compressor.finish  # type: ignore[attr-defined]
    if isinstance(compressor, brotli.Compressor):
        end = compressor.finish
    return b"".join([step(b"<html>"), *(step(b"0" * MIB) for _ in range(mib)), end()])


def gzip_zeros(mib: int) -> bytes:
    return zeros(lambda: zlib.compressobj(1, wbits=31), mib)


def zstd_zeros(mib: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=23, compression_level=1)
    return zeros(lambda: zstandard.ZstdCompressor(compression_params=parameters).compressobj(), mib)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: warc_record(gzip_zeros(BOMB_MIB), extra="Content-Encoding: gzip\r\n"),
    "deflate": lambda: warc_record(
        zeros(lambda: zlib.compressobj(1), BOMB_MIB), extra="Content-Encoding: deflate\r\n"
    ),
    "br": lambda: warc_record(
        zeros(lambda: brotli.Compressor(quality=1), BOMB_MIB), extra="Content-Encoding: br\r\n"
    ),
    "zstd": lambda: warc_record(zstd_zeros(BOMB_MIB), extra="Content-Encoding: zstd\r\n"),
    "gzip in chunks": lambda: warc_record(
        chunked(gzip_zeros(BOMB_MIB), 1_000), extra="Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"
    ),
    "gzip of gzip": lambda: warc_record(
        gzip.compress(gzip_zeros(BOMB_MIB)), extra="Content-Encoding: gzip, gzip\r\n"
    ),
    "zstd of gzip": lambda: warc_record(
        zstandard.compress(gzip_zeros(BOMB_MIB)), extra="Content-Encoding: gzip, zstd\r\n"
    ),
}


@pytest.mark.parametrize(
    "bomb", [each if name == "gzip of gzip" else slow(each) for name, each in BOMBS.items()], ids=BOMBS
)
def test_a_body_that_unpacks_without_end_is_left_unread_and_needs_no_memory(
    tmp_path: Path, bomb: Callable[[], bytes]
) -> None:
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members([bomb(), PLAIN[1]])))
    code = """
import sys
from pathlib import Path
from anadil.clean.read.warc import html_responses
print([(item.too_large, item.url[-1]) for item in html_responses(Path(sys.argv[1]), 16 << 20)])
"""

    peak, printed = peak_memory(code, path)

    assert printed == "[(True, '1'), (False, '1')]"
    assert peak < 250


def test_a_body_with_more_than_the_limit_between_two_codings_is_left_unread(tmp_path: Path) -> None:
    stored = gzip.compress(BODY + b"0" * 2 * LIMIT, compresslevel=0)
    path = tmp_path / "a.warc"
    path.write_bytes(warc_record(gzip.compress(stored), extra="Content-Encoding: gzip, gzip\r\n"))

    [found] = html_responses(path, LIMIT)

    assert isinstance(found, HtmlResponse)
    assert found.too_large


def test_a_body_that_asks_for_a_large_zstd_window_is_damaged(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=26, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    body = zeros(compressor.compressobj, 70)

    pages, [damage] = read(
        tmp_path, "plain.warc", [warc_record(body, extra="Content-Encoding: zstd\r\n"), *PLAIN]
    )

    assert pages == "012345"
    assert "zstd window of 64.0 MiB is larger than 8.0 MiB" in damage.why


@pytest.mark.parametrize("length", [matrix(100), matrix(700 * MIB), slow(10**12)])
def test_a_member_that_unpacks_without_end_needs_no_memory(tmp_path: Path, length: int) -> None:
    head = with_length(PLAIN[0], lambda _: length)
    compressor = zlib.compressobj(1, wbits=31)
    bomb = b"".join(
        [
            compressor.compress(head),
            *(compressor.compress(b"0" * MIB) for _ in range(BOMB_MIB)),
            compressor.flush(),
        ]
    )
    path = tmp_path / "a.warc.gz"
    path.write_bytes(bomb + members(PLAIN)[1])
    code = """
import sys
from pathlib import Path
from anadil.clean.read.warc import html_responses
items = list(html_responses(Path(sys.argv[1]), 16 << 20))
print([getattr(item, "url", item.offset)[-1:] for item in items if hasattr(item, "url")], len(items))
"""

    peak, printed = peak_memory(code, path)

    assert printed == "['1'] 2"
    assert peak < 90
