import pytest

from anadil.clean.extract.extract import Extraction, extract_page, main_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language import load_language
from tests.clean.test_page_prose import LINES, MODES, article
from tests.kit.texts import ANOTHER, AZERBAIJANI

az = load_language("az")
OPENING, CLOSING = f"<p>{AZERBAIJANI}</p>", f"<p>{AZERBAIJANI.replace('Dünən', 'Bu gün')}</p>"
MORE = ANOTHER.replace("Nənəm", "Babam")
PROSE = f"<p>{ANOTHER}</p><p>{MORE}</p>"
PLACES = ((1, 0, 2), (0, 1, 2), (0, 2, 1))
COOKIES = ("cookie-recipe", "cookies", "box cookie")


def around(part: str, place: tuple[int, ...]) -> str:
    return article(
        *(sorted(zip(place, (OPENING, part, CLOSING), strict=True))[number][1] for number in range(3))
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "figure",
    ["<figure class=quote><blockquote>{}</blockquote></figure>", "<FIGURE><section>{}</section></FIGURE>",
     "<figure><img src=a.png><figcaption>{}</figcaption></figure>"],
)  # fmt: skip
def test_prose_in_a_figure_is_kept(mode: ExtractMode, place: tuple[int, ...], figure: str) -> None:
    text = main_text(around(figure.format(PROSE), place), az, Extraction(mode=mode))

    assert f"{ANOTHER}\n{MORE}" in text
    assert "Dünən" in text
    assert "Bu gün" in text


CODE = "for n in range(3):\n    print(n)"
NUMBERED = "<table><tr><td class=lines><pre>1\n2</pre></td><td><div><pre>{}</pre></div></td></tr></table>"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "figure", ["<figure><pre><code>{}</code></pre></figure>", f"<figure>{NUMBERED}</figure>", NUMBERED]
)
def test_code_in_a_figure_and_beside_numbers_of_its_lines_is_kept(
    mode: ExtractMode, place: tuple[int, ...], figure: str
) -> None:
    text = main_text(around(figure.format(CODE), place), az, Extraction(mode=mode))

    assert CODE in text
    assert "\n1\n" not in text


@pytest.mark.parametrize("place", PLACES)
def test_a_table_in_a_figure_is_kept(place: tuple[int, ...]) -> None:
    table = "<figure><table><tr><td>Şəhər</td><td>Sakinləri</td></tr><tr><td>Lerik</td><td>8 min</td></tr></table></figure>"

    assert ["Lerik", "8 min"] in [
        list(filter(None, line.split("\t"))) for line in main_text(around(table, place), az).split("\n")
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "start",
    ["footer", "nav", "noscript", "template", "dialog", "div role=dialog", "div role=search", "textarea", "object", "video", "audio",
     "select", "iframe", "div class=cookie-consent"],
)  # fmt: skip
def test_prose_that_goes_with_its_element_is_counted(
    mode: ExtractMode, place: tuple[int, ...], start: str
) -> None:
    html = around(f"<{start}>{PROSE}</{start.split(maxsplit=1)[0]}>", place)

    found = extract_page(html, az, Extraction(mode=mode))

    assert ANOTHER not in found.text
    assert found.counts["lost_by_name"] == found.dropped == found.lost == len(ANOTHER + MORE)


def test_a_button_with_paragraphs_is_a_card_of_the_article() -> None:
    assert f"{ANOTHER}\n{MORE}" in main_text(article(OPENING, f"<button>{PROSE}</button>", CLOSING), az)


@pytest.mark.parametrize(
    "repeated", ["<noscript>{}</noscript>", "<template>{}</template>", "<nav><template>{}</template></nav>"]
)
def test_text_that_is_kept_too_is_not_lost(repeated: str) -> None:
    assert not extract_page(article(OPENING, PROSE, CLOSING, repeated.format(PROSE)), az).lost


def test_lists_of_links_and_short_texts_of_menus_are_no_prose() -> None:
    links = "".join(
        f"<li><a href=/{n}><b>Xəbər {n}</b><p>{line}</p></a></li>" for n, line in enumerate(LINES * 9)
    )
    parts = f"<nav><ul>{links}</ul></nav><footer><p>{LINES[0]}</p></footer><noscript>JavaScript lazımdır.</noscript>"

    assert not extract_page(article(OPENING, CLOSING, parts), az).lost


def test_a_caption_of_a_line_is_counted() -> None:
    caption = "Kitabxananın köhnə binası, 1931-ci il"

    found = extract_page(
        article(OPENING, f"<figure><img src=a.png><figcaption>{caption}</figcaption></figure>", CLOSING), az
    )

    assert caption not in found.text
    assert found.lost == len(caption)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", COOKIES)
def test_cookies_are_a_subject_of_an_article_too(
    mode: ExtractMode, place: tuple[int, ...], name: str
) -> None:
    section = f"<section class='{name}' id='{name}'>{PROSE}</section>"

    assert f"{ANOTHER}\n{MORE}" in main_text(around(section, place), az, Extraction(mode=mode))


@pytest.mark.parametrize("name", [*COOKIES, "cookie-banner"])
def test_a_banner_of_cookies_outside_of_the_article_goes(name: str) -> None:
    html = article(OPENING, CLOSING).replace("</body>", f"<div class='{name}'>{PROSE}</div></body>")

    assert main_text(html, az) == main_text(article(OPENING, CLOSING), az)


INGREDIENTS = ("Bir qaşıq bal", "Qoz", "Yarım kilo alma", "Darçın")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("head", ["", "<h3>Nə lazımdır</h3>"])
def test_a_list_of_few_words_stays_at_the_edge_of_an_article(
    mode: ExtractMode, place: tuple[int, ...], head: str
) -> None:
    items = f"{head}<ul>{''.join(f'<li>{each}</li>' for each in INGREDIENTS)}</ul>"

    assert "\n".join(INGREDIENTS) in main_text(around(items, place), az, Extraction(mode=mode))


def test_a_list_away_from_the_text_is_counted() -> None:
    items = f"<p>Yan sütun</p><p>Seçmələr</p><ul>{''.join(f'<li>{each}</li>' for each in INGREDIENTS)}</ul><p>Son</p>"

    found = extract_page(article(OPENING, CLOSING, items), az, Extraction(mode="fast"))

    assert INGREDIENTS[0] not in found.text
    assert found.lost == len("".join(INGREDIENTS))
