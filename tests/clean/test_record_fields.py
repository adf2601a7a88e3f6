"""Text and address of a record under the keys of many data sets."""

from typing import Any

import pytest

from anadil.clean.read.record_fields import address_columns, address_of, text_of

PAGE = "https://ev.example/a?b=c"


@pytest.mark.parametrize(
    "row",
    [
        {"url": PAGE, "u": "https://other.example"},
        {"u": PAGE},
        {"URL": PAGE},
        {"source_url": PAGE},
        {"pageUrl": PAGE},
        {"metadata": {"url": PAGE}},
        {"metadata": {"warc_headers": {"warc-target-uri": PAGE}}},
        {"WARC-Target-URI": PAGE},
        {"image_url": "https://cdn.example/a.png", "license": "https://cc.example/by", "link": PAGE},
        {"source": PAGE},
        {"id": PAGE},
        {"url": None, "meta": {"url": PAGE}},
        {"url": b"https://ev.example/a?b=c"},
    ],
)
def test_the_address_of_a_record_is_found_under_other_keys_too(row: dict[str, Any]) -> None:
    assert address_of(row) == PAGE


@pytest.mark.parametrize(
    "row",
    [
        {"source": "news", "id": "a.b"},
        {"image_url": "https://cdn.example/a.png"},
        {"links": ["https://a.example"]},
        {"link": "see below", "license_url": "https://cc.example"},
        {"a": {"b": {"c": {"d": {"url": PAGE}}}}},
    ],
)
def test_what_is_not_the_address_of_the_page_is_not_taken_for_it(row: dict[str, Any]) -> None:
    assert address_of(row) == ""


def test_a_host_alone_is_an_address_where_no_better_one_is_given() -> None:
    assert address_of({"domain": "ev.example"}) == "ev.example"
    assert address_of({"domain": "ev.example", "page_url": PAGE}) == PAGE


def test_columns_of_addresses_are_the_surest_first_and_no_lists() -> None:
    paths = ["id", "meta.url", "text", "links.list.element.url", "source_url", "domain", "image_url"]

    assert address_columns(paths) == ["meta.url", "source_url", "domain"]
    assert address_columns([*paths, "url"]) == ["url"]


def test_a_path_leads_into_tables_and_a_key_with_a_dot_goes_before() -> None:
    assert text_of({"document": {"text": "bir"}}, "document.text") == "bir"
    assert text_of({"document.text": "iki", "document": {"text": "bir"}}, "document.text") == "iki"
    assert text_of({"a.b": {"c": "üç"}}, "a.b.c") == "üç"
    assert text_of({"document": None}, "document.text") is None
    with pytest.raises(ValueError, match=r"no key 'document.text' \(clean.text_field\) among 'document'"):
        text_of({"document": {"body": "bir"}}, "document.text")
