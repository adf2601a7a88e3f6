"""Pages of listed hosts are left out."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from anadil.clean.filters.lists import UrlLists, read_url_lists
from anadil.core.errors import DataError
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, stats

LISTS = UrlLists(["casino.example", "news.example/bet", "co.uk.example"], ["good.casino.example"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://casino.example/", True),
        ("http://www.CASINO.example:8080/a?b=c#d", True),
        ("https://user:secret@play.casino.example./x", True),
        ("casino.example", True),
        ("https://notcasino.example/", False),
        ("https://good.casino.example/x", False),
        ("https://very.good.casino.example/", False),
        ("https://news.example/bet/today", True),
        ("https://news.example/bet", True),
        ("https://news.example/better", False),
        ("https://news.example/", False),
        ("https://example/", False),
        ("", False),
        ("not an address", False),
        ("https://" + "a." * 500 + "casino.example/" + "b/" * 500, True),
        ("https://\ud800.example/", False),
    ],
)
def test_a_listed_host_or_path_is_blocked_with_all_below_it(url: str, expected: bool) -> None:
    assert LISTS.is_blocked(url) == expected


def test_categories_are_directories_of_domains_and_urls(tmp_path: Path) -> None:
    category = tmp_path / "gambling"
    category.mkdir()
    (category / "domains").write_text("casino.example\n# more\n\n", encoding="utf-8-sig")
    (category / "urls").write_bytes(b"news.example/bet/\nbad\xff.example\n")
    own = tmp_path / "own.txt"
    own.write_text("https://spam.example/\n", encoding="utf-8")

    lists = read_url_lists([category, own], allowed=["https://good.casino.example"])

    assert all(map(lists.is_blocked, ("casino.example", "spam.example", "http://news.example/bet/1")))
    assert not lists.is_blocked("http://good.casino.example")


def test_a_directory_without_lists_is_refused_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"clean.url_lists: .* neither `domains` nor `urls`.*gambling"):
        read_url_lists([tmp_path])


def test_a_category_is_read_as_ut1_hands_it_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "gambling.tar.gz", "w:gz") as archive:
        for name, content in (
            ("domains", b"casino.example\n"),
            ("urls", b"news.example/bet\n"),
            ("usage", b"x"),
        ):
            member = tarfile.TarInfo(f"gambling/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    lists = read_url_lists([tmp_path / "gambling.tar.gz"])

    assert lists.is_blocked("https://www.casino.example/1")
    assert lists.is_blocked("https://news.example/bet")
    assert not lists.is_blocked("https://x/")


def test_entries_that_are_no_hosts_are_said_and_too_many_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "list.txt"
    path.write_text("bad.example\ngood.example\ntwo words\n")

    read_url_lists([path])

    assert "list.txt: 1 entries are neither host nor address, such as 'two words'" in caplog.text
    path.write_text("host,category\nbad.example,ads\n")
    with pytest.raises(
        DataError, match=r"clean.url_lists: 2 of 2 entries of list.txt are neither a host nor"
    ):
        read_url_lists([path])


def test_records_without_an_address_are_said_where_a_list_blocks_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "list.txt").write_text("bad.example\n")
    rows = [{"text": text, "source_uri": f"http://bad.example/{n}"} for n, text in enumerate(texts(3))]
    rows += [{"text": text} for text in texts(9)[3:]]
    raw = tmp_path / "a.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))

    corpus = clean(tmp_path, raw, url_lists=[str(tmp_path / "list.txt")])

    assert stats(corpus)["dropped"]["blocked"] == 3
    assert "clean.url_lists: 6 of 9 records name no address" in caplog.text


@pytest.mark.parametrize("content", [b"", b"# hosts\n\n! more\n", gzip.compress(b""), b"\xef\xbb\xbf\n"])
def test_a_list_without_entries_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(content)

    with pytest.raises(
        DataError, match=r"clean.url_lists: .*/list holds no entry and would block nothing; give a host"
    ):
        read_url_lists([path])


def test_one_file_of_a_category_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "domains").write_text("bad.example\n")
    (tmp_path / "urls").write_text("")

    assert read_url_lists([tmp_path]).is_blocked("http://bad.example")


@pytest.mark.parametrize(
    ("line", "blocked"),
    [
        ('"bad.example",', ["bad.example"]),
        ("'bad.example'", ["bad.example"]),
        ("address=/bad.example/0.0.0.0", ["bad.example"]),
        ("server=/bad.example/worse.example/", ["bad.example", "worse.example"]),
        ("0.0.0.0 bad.example worse.example # both", ["bad.example", "worse.example"]),
        ("bad.example\t# ads", ["bad.example"]),
        ("127.0.0.1 localhost\n||ads.example^\n*.spam.example", ["ads.example", "spam.example"]),
        ("şans.example", ["şans.example", "xn--ans-rza.example"]),
        ("xn--80aodfsg.xn--p1ai", ["казино.рф", "КАЗИНО.рф", "xn--80aodfsg.xn--p1ai"]),
    ],
)
def test_entries_are_read_in_the_layouts_and_letters_of_hosts(
    line: str, blocked: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "list"
    path.write_text(line + "\n", encoding="utf-8")

    lists = read_url_lists([path])

    assert [lists.is_blocked(f"https://a.{host}/b") for host in blocked] == [True] * len(blocked)
    assert not lists.is_blocked("https://good.example/bad.example")


@pytest.mark.parametrize(
    "content", [b"\x1f\x9d\x90b\xc2\x84\n", "şans.example\n".encode("cp1254"), b"a=b\n{x}\n"]
)
def test_what_is_no_list_of_hosts_in_utf_8_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"clean.url_lists: .*list"):
        read_url_lists([path])
