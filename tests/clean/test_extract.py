import time

import pytest

from anadil.clean.extract import decoded, is_bomb, main_text, may_be
from anadil.languages import language
from tests.clean.harness import page
from tests.clean.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, TURKISH

az, ja = language("az"), language("ja")


def test_the_article_is_kept_and_the_rest_of_the_page_is_not() -> None:
    assert main_text(page(AZERBAIJANI, ANOTHER).decode(), az) == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


def test_a_block_of_links_is_dropped() -> None:
    links = " ".join(f'<a href="/{n}">Oxşar xəbər nömrə {n}</a>' for n in range(5))

    assert "Oxşar" not in main_text(page(AZERBAIJANI, links, ANOTHER).decode(), az)


def test_entities_and_inline_markup_become_text() -> None:
    marked = f"<b>Diqqət</b>: 3 &lt; 5 &amp; <a href=/x>keçid</a>. {AZERBAIJANI}"

    assert main_text(page(marked).decode(), az).split("\n")[1].startswith("Diqqət: 3 < 5 & keçid. Dünən")


def test_readings_of_japanese_characters_are_left_out() -> None:
    ruby = "<ruby>下人<rp>（</rp><rt>げにん</rt><rp>）</rp></ruby>が雨やみを待っていた。" + JAPANESE

    assert main_text(page(ruby, head="<html lang=ja>").decode(), ja).endswith(
        "下人が雨やみを待っていた。" + JAPANESE
    )


@pytest.mark.parametrize(
    ("expected", "head", "text"),
    [
        (True, "<html>", AZERBAIJANI),
        (True, "<html lang='az-AZ'>", ENGLISH),
        (False, "<html>", ENGLISH),
        (False, "<html lang=tr>", TURKISH),
        (True, "<html>", ENGLISH * 8 + AZERBAIJANI * 2),
    ],
)
def test_a_page_is_worth_extracting_if_it_may_hold_the_language(expected: bool, head: str, text: str) -> None:
    body = f"{head}<body><script>var a = 'function';</script><p>{text}</p></body></html>"

    assert may_be(body, az) == expected


def test_a_page_of_code_with_japanese_comments_may_be_japanese() -> None:
    body = "<html lang=en><body><pre>" + "int main() { return value; } " * 200 + JAPANESE + "</pre>"

    assert may_be(body, ja)


def test_control_characters_do_not_stop_the_prefilter() -> None:
    assert may_be(f"<html><p>\x00\x08{AZERBAIJANI}\ufdd0</p>", az)


@pytest.mark.parametrize(
    ("data", "charset", "expected", "is_utf8"),
    [
        ("şəhər".encode(), "iso-8859-1", "şəhər", True),
        ("\ufeffşəhər".encode(), "", "şəhər", True),
        ("şehir, ağaç".encode("cp1254"), "windows-1254", "şehir, ağaç", False),
        (
            b"<meta charset=windows-1254>" + "şehir".encode("cp1254"),
            "",
            "<meta charset=windows-1254>şehir",
            False,
        ),
        (
            b"<meta charset=utf-8>" + JAPANESE.encode("shift_jis"),
            "utf-8",
            f"<meta charset=utf-8>{JAPANESE}",
            False,
        ),
    ],
)
def test_the_encoding_is_found_whatever_is_declared(
    data: bytes, charset: str, expected: str, is_utf8: bool
) -> None:
    assert decoded(data, charset) == (expected, is_utf8)


ATTRIBUTES = "<div " + " ".join(f'a{n}="1"' for n in range(100_000)) + ">"


@pytest.mark.parametrize(
    "bomb",
    [
        "<div>" * 20_000,
        "<b>x</b>" * 200_000,
        "<br>" * 400_000,
        ATTRIBUTES,
        "<p>" + "a" * 2_500_000,
    ],
    ids=["depth", "tags", "flat", "attributes", "size"],
)
def test_a_page_that_would_stall_the_parser_is_recognized(bomb: str) -> None:
    assert is_bomb(f"<html><body>{bomb}<p>{AZERBAIJANI}")


@pytest.mark.parametrize(
    "harmless",
    [
        "<p>" * 5_000,
        "<table>" + "<tr><td>1" * 3_000 + "</table>",
        f'<img src="data:image/png;base64,{"A" * 500_000}">',
        f'<svg><path d="{"M 1 2 " * 50_000}"/></svg>',
        "<td colspan=1000000 rowspan=1000000>x</td>",
        "&amp;" * 100_000,
        "<a" * 40_000,
        '<p title="' + "<b>" * 3_000,
    ],
    ids=["paragraphs", "rows", "image", "path", "colspan", "entities", "unclosed", "quote"],
)
def test_a_large_but_harmless_page_is_extracted_quickly(harmless: str) -> None:
    whole = f"<html><body><p>{AZERBAIJANI}</p>{harmless}</body></html>"
    started = time.process_time()

    refused = is_bomb(whole)
    main_text(whole, az)

    assert not refused
    assert time.process_time() - started < 1
