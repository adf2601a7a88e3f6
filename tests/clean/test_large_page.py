import json
import time
from pathlib import Path

import pytest

from anadil.clean.extract.bomb import MAX_HTML_BYTES, without_data
from anadil.clean.extract.extract import extract_page
from anadil.clean.filters.judge_record import ExtractedDocument, Settings, prepare_record
from anadil.clean.read.readers import RawRecord
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, page, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

MUCH = "x" * MAX_HTML_BYTES
STATE = json.dumps({"a": [MUCH]})


def prepare(html: bytes) -> ExtractedDocument:
    recipe = Recipe.model_validate({"language": "az"})
    return prepare_record(RawRecord(source="a.html", html=html), Settings(recipe=recipe))


@pytest.mark.parametrize(
    "ballast",
    [
        f"<img src='data:image/png;base64,{MUCH}'>",
        f'<div data-state="{STATE.replace(chr(34), "&quot;")}"></div>',
        f"<script>window.state = {STATE};</script>",
        f"<STYLE>.a {{ background: url({MUCH}) }}</STYLE>",
        f"<!-- {MUCH} -->",
        f"<svg><path d='{MUCH}'/></svg>",
        f'<input type=hidden name=__VIEWSTATE value = "{MUCH}">',
        "<nav><ul>"
        + "".join(f"<li><a href=/bolme/{n}>Bölmə {n}</a></li>" for n in range(60_000))
        + "</ul></nav>",
        (" " * 60 + "\n") * 40_000,
        "&nbsp;" * 400_000,
        "<SELECT name=city>"
        + "".join(f"<option value={n}>Şəhər {n}</option>" for n in range(70_000))
        + "</SELECT>",
        f"<form><textarea rows=9>{MUCH}</textarea></form>",
    ],
    ids=[
        "picture", "attribute", "program", "style", "comment", "drawing", "state", "menu", "blanks",
        "entities", "options", "field",
    ],
)  # fmt: skip
def test_an_article_in_a_large_page_is_read(ballast: str) -> None:
    prepared = prepare(page(AZERBAIJANI, ballast, ANOTHER))

    assert prepared.reason is None
    assert prepared.document.text == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_large_page_in_utf_16_is_read(codec: str) -> None:
    prepared = prepare(page(AZERBAIJANI, f"<script>a = '{MUCH}'</script>", ANOTHER).decode().encode(codec))

    assert prepared.reason is None
    assert prepared.is_recoded
    assert prepared.document.text == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


def test_prose_of_a_large_menu_is_counted() -> None:
    links = "".join(f"<li><a href=/bolme/{n}>Bölmə {n}</a></li>" for n in range(60_000))
    menu = f"<nav>{links}<p>{ANOTHER}</p></nav>"

    assert extract_page(without_data(page(AZERBAIJANI, menu, AZERBAIJANI)).decode(), load_language("az")).lost


@pytest.mark.parametrize("begin", ["<nav>", "<select ", "<textarea>", " " * 39 + "x", "&nbsp", "<nav><p>"])
def test_beginnings_without_an_end_take_no_time(begin: str) -> None:
    started = time.process_time()

    without_data((begin * (3_000_000 // len(begin))).encode())

    assert time.process_time() - started < 4


def test_a_page_of_too_much_text_is_refused() -> None:
    prepared = prepare(page(AZERBAIJANI, "<!-- -->", *[ANOTHER] * 5_000))

    assert prepared.reason == "page_limits"
    assert prepared.sample["statistic"] == "bytes"


def test_prose_that_an_extractor_discards_is_in_the_stats(tmp_path: Path) -> None:
    section = f"<section class=related><p>{ANOTHER}</p></section>"
    html = tmp_path / "a.html"
    html.write_bytes(page(AZERBAIJANI, section, AZERBAIJANI.replace("Dünən", "Bu gün")))

    corpus = clean(tmp_path, html, write_jsonl(tmp_path / "b.jsonl", texts(4)))

    found = stats(corpus)["extraction"]
    assert found.pop("characters") > len(ANOTHER)
    assert found == {
        "lost_by_name": 0, "lost_by_resiliparse": 0, "pages": 1, "pages_by_resiliparse": 1,
        "restored_after_resiliparse": len(ANOTHER),
    }  # fmt: skip
