"""Which domain a document belongs to."""

import pytest

from anadil.text.corpus import Document
from anadil.text.domains import MAX_DOMAINS, OTHER, domains_of, site_of


def domains(*places: tuple[str, str]) -> tuple[str, ...]:
    """Of documents by (source, address), all of one size."""
    documents = [Document(id="", text="", source=source, url=url, lang="az") for source, url in places]
    return domains_of(documents, [1] * len(documents))


def test_a_file_is_a_domain_of_its_own_whatever_packs_it() -> None:
    sources = (
        "s3://raw/az/law.jsonl.zst:17",
        "/data/news.2.jsonl:3",
        "/data/book one.txt",
        "/data/page.html",
    )
    assert domains(*((source, "") for source in sources)) == ("law", "news.2", "book one", "page")


def test_a_crawl_is_split_by_host_and_a_file_of_one_host_is_not() -> None:
    assert domains(
        ("web.warc.gz:0", "https://www.bbc.com/azeri/1"),
        ("web.warc.gz:900", "https://xeber.az:8080/2"),
        ("web.warc.gz:950", "http://["),
        ("docs.jsonl:1", "https://github.com/one"),
        ("docs.jsonl:2", "https://github.com/two"),
    ) == ("bbc.com", "xeber.az", "web", "docs", "docs")


def test_a_file_of_several_sources_is_split_by_what_its_records_name() -> None:
    assert domains(
        ("all.jsonl:1 legal codes", "https://a.az/"), ("all.jsonl:2 FLORES (devtest)", "https://b.az/")
    ) == ("legal codes", "FLORES (devtest)")


@pytest.mark.parametrize(("number", "own"), [(MAX_DOMAINS, MAX_DOMAINS), (MAX_DOMAINS + 1, MAX_DOMAINS - 1)])
def test_the_smallest_of_many_domains_share_one(number: int, own: int) -> None:
    documents = [
        Document(id="", text="", source=f"{place:02}.txt", url="", lang="az") for place in range(number)
    ]

    found = domains_of(documents, [number - place for place in range(number)])

    assert found[:own] == tuple(f"{place:02}" for place in range(own))
    assert set(found[own:]) <= {OTHER}


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("www.sport.xeber.az", "xeber.az"), ("xeber.com.az", "xeber.com.az"), ("a.b.xeber.com.az", "xeber.com.az"), ("com.az", "com.az"),
        ("en.wikipedia.org", "wikipedia.org"), ("localhost", "localhost"), ("10.0.0.7", "10.0.0.7"), ("", ""),
    ],
)  # fmt: skip
def test_a_site_is_the_domain_that_somebody_has_registered(host: str, site: str) -> None:
    assert site_of(host) == site
