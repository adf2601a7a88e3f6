import json
from pathlib import Path

import pytest

from anadil.clean.bomb import MAX_HTML_BYTES
from anadil.clean.judge_record import Prepared, Settings, prepare_record
from anadil.clean.readers import RawRecord
from anadil.recipe.sections import Recipe
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, page, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

MUCH = "x" * MAX_HTML_BYTES
STATE = json.dumps({"a": [MUCH]})


def prepare(html: bytes) -> Prepared:
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
    ],
    ids=["picture", "attribute", "program", "style", "comment", "drawing", "state"],
)
def test_an_article_in_a_large_page_is_read(ballast: str) -> None:
    prepared = prepare(page(AZERBAIJANI, ballast, ANOTHER))

    assert prepared.reason is None
    assert prepared.document.text == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


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
