"""Pages of listed hosts are left out."""

from pathlib import Path

import pytest

from anadil.clean.url_lists import UrlLists, read_url_lists
from anadil.core.errors import DataError

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

    assert [lists.is_blocked(f"https://{host}") for host in ("casino.example", "spam.example")] == [
        True,
        True,
    ]
    assert lists.is_blocked("http://news.example/bet/1")
    assert not lists.is_blocked("http://good.casino.example")


def test_a_directory_without_lists_is_refused_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"clean.url_lists: .* neither `domains` nor `urls`.*gambling"):
        read_url_lists([tmp_path])
