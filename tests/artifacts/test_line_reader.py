import contextlib
import gzip
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard

from anadil.artifacts import line_reader
from anadil.artifacts.line_reader import DAMAGED, TooLong, bounded_lines
from anadil.core.format import MIB
from tests.kit.child import peak_memory
from tests.kit.marks import slow

Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {
    "": bytes,
    ".gz": partial(gzip.compress, compresslevel=1),
    ".zst": zstandard.compress,
}
LONG_MIB = 300
"""Of one line; more than any process here may hold."""

CLEAN = """
import sys
from anadil.clean.read.readers import read_records
from anadil.clean.read.read_stats import ReadStats
read_stats = ReadStats()
print([raw.text for raw in read_records(sys.argv[1], "a.jsonl", "text", read_stats)], read_stats.places)
"""
HELDOUT = """
import sys
from pathlib import Path
from anadil.core.errors import DataError
from anadil.evaluate.heldout import read_heldout
try:
    read_heldout([], sys.argv[1:], "text", "az")
except DataError as error:
    print(error)
"""


def with_long_line(path: Path, mib: int = LONG_MIB) -> Path:
    """A good line, one of zeros without an end, a good line."""
    good = b'{"text": "bir", "prompt": "bir", "response": "iki"}\n'
    with path.open("wb") as file:
        file.write(good)
        file.seek(mib * MIB, 1)
        file.write(b"\n" + good)
    return path


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (CLEAN, "['bir', 'bir'] ['a.jsonl:2: line of 300.0 MiB is longer than 16.0 MiB']"),
        slow(HELDOUT, "a.jsonl:2: line of 300.0 MiB is longer than 16.0 MiB; write each record as a line"),
    ],
    ids=["clean", "heldout"],
)
def test_a_line_without_end_is_named_and_needs_no_memory(tmp_path: Path, reader: str, said: str) -> None:
    path = with_long_line(tmp_path / "a.jsonl")

    peak, printed = peak_memory(reader, path)

    assert said in printed
    assert peak < 250


def zst_with_window(path: Path, log: int, mib: int) -> Path:
    parameters = zstandard.ZstdCompressionParameters(window_log=log, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(compressor.compress(b"0" * (MIB - 1) + b"\n"))
        file.write(compressor.flush())
    return path


@pytest.mark.parametrize(("log", "expected"), [(27, "300"), (28, "refused")])
def test_a_zstd_window_over_the_usual_limit_is_refused_before_it_takes_memory(
    tmp_path: Path, log: int, expected: str
) -> None:
    path = zst_with_window(tmp_path / "a.jsonl.zst", log, 300)
    code = """
import sys
from pathlib import Path
from anadil.artifacts.line_reader import bounded_lines
from anadil.core.errors import DataError
try:
    print(sum(1 for _ in bounded_lines(Path(sys.argv[1]))))
except DataError as error:
    print("refused" if "`zstd -d --long=28 a.jsonl.zst`" in str(error) else error)
"""

    peak, printed = peak_memory(code, path)

    assert printed == expected
    assert peak < 220


@pytest.mark.parametrize("suffix", list(PACKS))
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\r\n\nb", [b"a\r\n", b"\n", b"b"]),
        (b"1234567\n", [b"1234567\n"]),
        (b"12345678\n", [TooLong(9)]),
        (b"12345678", [TooLong(8)]),
        (b"a\n" + b"1" * 30 + b"\nb\n", [b"a\n", TooLong(31), b"b\n"]),
    ],
)
def test_lines_come_with_their_ends_and_long_ones_with_their_size(
    tmp_path: Path,
    suffix: str,
    content: bytes,
    expected: list[bytes | TooLong],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_reader, "MAX_LINE_BYTES", 8)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKS[suffix](content))

    assert list(bounded_lines(path)) == expected


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_bytes_are_told_from_a_disk_that_cannot_be_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"no such format")

    with pytest.raises(DAMAGED):
        list(bounded_lines(path))
    with pytest.raises(FileNotFoundError):
        list(bounded_lines(tmp_path / f"none{suffix}"))
    assert not issubclass(FileNotFoundError, DAMAGED)


@pytest.mark.parametrize("damage", [b"garbage", b"\0" * 64], ids=["letters", "zeros"])
@pytest.mark.parametrize("kind", [".gz", ".zst"])
def test_lines_before_damage_are_not_lost_with_it(tmp_path: Path, kind: str, damage: bytes) -> None:
    lines = [b"%d %s\n" % (number, b"x" * 500) for number in range(60)]
    path = tmp_path / f"a{kind}"
    path.write_bytes(PACKS[kind](b"".join(lines)) + damage)

    found: list[bytes | TooLong] = []
    with contextlib.suppress(*DAMAGED):  # zeros behind a gzip member are padding
        found += bounded_lines(path)

    assert found == lines


@pytest.mark.parametrize("kind", [".gz", ".zst"])
@pytest.mark.parametrize("cut", [1, 5, 3_000])
def test_a_file_that_ends_too_early_is_damaged(tmp_path: Path, kind: str, cut: int) -> None:
    path = tmp_path / f"a{kind}"
    packed = PACKS[kind](
        b"".join(b"%s\n" % random.Random(n).randbytes(100).hex().encode() for n in range(90))
    )
    path.write_bytes(packed + packed[:-cut])

    with pytest.raises(EOFError):
        list(bounded_lines(path))


def test_frames_behind_one_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    path.write_bytes(
        zstandard.compress(b"a\nb") + skippable + zstandard.compress(b"") + zstandard.compress(b"c\n")
    )

    assert list(bounded_lines(path)) == [b"a\n", b"bc\n"]
