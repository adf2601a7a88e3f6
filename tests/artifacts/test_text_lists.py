"""Lists are read as they are handed out, or refused by name."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard

from anadil.artifacts import text_lists
from anadil.artifacts.text_lists import list_lines
from anadil.core.errors import DataError
from anadil.core.format import MIB
from tests.kit.child import peak_memory

FILES = {"casino/domains": b"bad.example\n", "casino/urls": b"a.example/x\n", "casino/usage": b"black\n"}
KEY = "clean.url_lists"


def tarred(files: Mapping[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        folder = tarfile.TarInfo("casino")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize(
    "pack",
    [
        tarred,
        lambda files: tarred(files, tarfile.PAX_FORMAT),
        lambda files: gzip.compress(tarred(files)),
        lambda files: zstandard.compress(tarred(files)),
        zipped,
    ],
)
def test_an_archive_gives_the_files_that_are_named_whatever_it_is_called(
    tmp_path: Path, pack: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    path = tmp_path / "list"
    path.write_bytes(pack(FILES))

    assert list(list_lines(path, KEY, ("domains", "urls"))) == [b"bad.example", b"a.example/x"]
    assert sorted(list_lines(path, KEY)) == [b"a.example/x", b"bad.example", b"black"]


def test_an_archive_without_the_files_that_are_named_gives_all_that_hold_data(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"README.md": b"# A list\n", "hosts.txt": b"bad.example\n"}))

    assert list(list_lines(tmp_path / "a.zip", KEY, ("domains",))) == [b"bad.example"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_packed_or_plain_list_gives_its_entries(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a.txt").write_bytes(pack(b"\xef\xbb\xbf# words\n\n  bir \r\niki"))

    assert list(list_lines(tmp_path / "a.txt", KEY)) == [b"bir", b"iki"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bz2.compress(b"a"), "is not a list that is read .*bzip2 -d a.txt"),
        (lzma.compress(b"a"), "is not a list that is read .*xz -d a.txt"),
        (b"a\0b\n", "is not text: it holds zero bytes"),
        ("bir\n".encode("utf-16"), "is in UTF-16; convert it"),
        (b"a" * 70_000, "holds a line over 64.0 KiB"),
        (gzip.compress(b"bir\n" * 99)[:-9], "is damaged"),
        (gzip.compress(tarred(FILES)[:1030]), "is damaged"),
        (gzip.compress(tarred(FILES)[:700]), "is damaged"),
        (b"PK\x03\x04" + b"a" * 50, "is damaged"),
        (b"PAR1" + b"a" * 50, "is not a list that is read"),
        (b"a\n" * 30, "holds more than .* entries"),
    ],
)
def test_what_is_no_list_of_text_is_refused_by_name(
    tmp_path: Path, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lists, "MAX_ENTRIES", 20)
    (tmp_path / "a.txt").write_bytes(content)

    with pytest.raises(DataError, match=f"clean.url_lists: a.txt {why}"):
        list(list_lines(tmp_path / "a.txt", KEY))


def test_a_list_that_unpacks_without_end_takes_no_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b"a" * MIB)
    code = """
import sys
from pathlib import Path
from anadil.artifacts.text_lists import list_lines
from anadil.core.errors import DataError
try:
    print(sum(1 for _ in list_lines(Path(sys.argv[1]), "clean.ng_words")))
except DataError as error:
    print(error)
"""
    peak, printed = peak_memory(code, tmp_path / "a.gz")

    assert "holds" in printed
    assert peak < 100
