"""Pages that would stall the parser are refused, and pages of sloppy authors are not."""

import time
from pathlib import Path

import pytest

from anadil.clean.extract.bomb import Excess, excess
from anadil.clean.extract.extract import main_text
from anadil.text.language import load_language
from tests.kit.child import peak_memory
from tests.kit.texts import ANOTHER, AZERBAIJANI

az = load_language("az")
ARTICLE = f"<h1>Bakıda külək</h1><p>{AZERBAIJANI}</p><p>{ANOTHER}</p>"

BOMBS = {
    "depth": "<div>" * 20_000,
    "tags": "<b>x</b>" * 200_000,
    "flat": "<br>" * 400_000,
    "comments": "<!---->" * 200_000,
    "attributes": "<div " + " ".join(f'a{n}="1"' for n in range(100_000)) + ">",
    "attributes with quotes in their names": "<div " + " ".join(f"a{n}'" for n in range(100_000)) + ">",
    "size": "<p>" + "a" * 2_500_000,
    "depth behind end tags of nothing": "<div></x>" * 20_000,
    "depth behind a comment that is over": "<!-->" + "<div>" * 20_000,
    "depth behind a script that is over": "<script>a</script >" + "<div>" * 20_000,
    "depth in a style sheet of a drawing": "<svg><style>" + "<g>" * 20_000,
    "depth behind an empty drawing": "<svg/>" + "<div>" * 20_000,
    "depth behind a quote that opens nothing": "<p don't>" + "<div>" * 20_000,
    "depth in upper case": "<DIV>" * 20_000,
    "styles that are opened again": "<p>"
    + "".join(f"<b id=x{n}>" for n in range(900))
    + "</p>"
    + "<p>x</p>" * 20_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_page_that_would_stall_the_parser_is_refused_quickly(bomb: str) -> None:
    started = time.process_time()

    assert excess(f"<html><body>{bomb}<p>{AZERBAIJANI}")
    assert time.process_time() - started < 6


@pytest.mark.parametrize(
    ("bomb", "told"),
    [
        ("depth", Excess("depth", 20_002, 3_000)),
        ("tags", Excess("tags", 100_001, 100_000)),
        ("attributes", Excess("attributes", 100_000, 1_000)),
        ("size", Excess("characters", 2_500_003, 2_000_000)),
        ("styles that are opened again", Excess("copies_of_style", 300_700, 300_000)),
    ],
)
def test_a_refused_page_tells_the_limit_that_it_exceeds(bomb: str, told: Excess) -> None:
    assert excess(BOMBS[bomb]) == told


def test_refusing_a_page_needs_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(BOMBS["styles that are opened again"], encoding="utf-8")
    code = """
import sys
from pathlib import Path
from anadil.clean.extract.bomb import excess
print(excess(Path(sys.argv[1]).read_text()) is not None)
"""

    peak, printed = peak_memory(code, tmp_path / "a.html")

    assert printed == "True"
    assert peak < 150


LOOP = "for(var i=0;i<o.length;i++){s+='<div class=\"x\">'+(a<b?\"it's\":'<p>')}"
SCRIPT = f"<script>{LOOP * 1_500}</script>"
SLOPPY = {
    "paragraphs": "<p>" * 5_000,
    "rows": "<table>" + "<tr><td>1" * 3_000 + "</table>",
    "image": f'<img src="data:image/png;base64,{"A" * 500_000}">',
    "path": f'<svg><path d="{"M 1 2 " * 50_000}"/></svg>',
    "colspan": "<td colspan=1000000 rowspan=1000000>x</td>",
    "entities": "&amp;" * 100_000,
    "unclosed": "<a" * 40_000,
    "quote": '<p title="' + "<b>" * 3_000,
    "script": SCRIPT,
    "script in upper case": SCRIPT.replace("script>", "SCRIPT>"),
    "script with an open quote": "<script>var a = 'it\\'s <b>' + \"" + "<div " * 3_000 + "</script>",
    "script full of less-than signs": "<script>" + "a<b;" * 150_000 + "</script>",
    "json": '<script type="application/json">{"a": "' + "<div><span>" * 3_000 + '"}</script>',
    "style": "<style>" + "a<b{}" * 3_000 + "</style>",
    "textarea": "<textarea>" + "<div>" * 3_000 + "</textarea>",
    "comment": "<!-- " + "<div>" * 3_000 + " -->",
    "conditional comment": "<!--[if lt IE 9]>" + "<div>" * 3_000 + "<![endif]-->",
    "apostrophe in a tag": "<p don't>" + "<span>it's</span>" * 5_000,
    "quote too much": '<a href="/x"">' + "<a href='/y'>x</a>" * 5_000,
    "quotes in a value": "<a onclick=\"f('<div>')\" title='\"'>x</a>" * 5_000,
    "arrow without quotes": "<a href=/x?a=b=c'd>x</a>" * 5_000,
    "unclosed spans": "<div><span>x" * 10 + "<span>" * 1_514 + "x",
    "spans left open in divs": "<div><span>x</div>" * 5_000,
    "spans left open in paragraphs": "<p><span>x" * 5_000,
    "marks without an end": "".join(f'<a id="x{n}"/><p>x</p><p>x</p>' for n in range(1_500)),
    "fonts left open": "<td><font color=red>x</td>" * 200,
    "drawings": "<svg><g><path/><title>x</title></g></svg>" * 3_000,
    "a drawing with a style sheet": "<svg><style>a>b{}</style><g/></svg>" * 3_000,
}


@pytest.mark.parametrize("harmless", SLOPPY.values(), ids=SLOPPY)
def test_a_sloppy_page_is_no_bomb_and_is_extracted_quickly(harmless: str) -> None:
    whole = f"<html><body><div>{ARTICLE}</div>{harmless}</body></html>"
    started = time.process_time()

    refused = excess(whole)
    text = main_text(whole, az)

    assert not refused
    assert time.process_time() - started < 5
    assert AZERBAIJANI in text


def test_a_wordpress_page_with_programs_in_its_lines_is_read() -> None:
    page = (
        '<html lang="az"><head><script>window._wpemojiSettings={"baseUrl":"https://s.w.org"};'
        '!function(e,a,t){var n,r,o,i=a.createElement("canvas");for(r=Array("flag","emoji4"),o=0;o<r.length;o++)'
        "t.supports[r[o]]='<p>'}(window,document,window._wpemojiSettings);</script></head>"
        '<body class="post-template single"><a onclick=\'return !1\' href="#">x</a>'
        f"<script>/* <![CDATA[ */ var l10n={{\"a\":\"it's\"}};for(i=0;i<9;i++){{document.write('<'+'div>')}}/* ]]> */</script>"
        f"<article>{ARTICLE}</article></body></html>"
    )

    assert not excess(page)
    assert main_text(page, az) == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"
