import time

import pytest

from anadil.clean.extract.extract import Extraction, extract_page, main_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language import load_language
from tests.kit.texts import ANOTHER, AZERBAIJANI

az = load_language("az")
MODES: tuple[ExtractMode, ...] = ("fast", "balanced", "precision")
DEPTHS = (0, 1, 2, 4, 9)
LINES = [
    "Kitabları götürən hər kəs adını dəftərə yazır.",
    "Oxu zalında telefonla danışmaq olmaz",
    "Köhnə qəzetlər yalnız binanın içində oxunur.",
    "Gecikən kitab üçün cərimə tutulmur.",
]
WORDS = (
    "legal", "related", "featured", "jp", "social-sciences", "popular", "recommended", "promoted", "sponsored",
    "trending", "share", "follow", "email", "search", "sidebar", "article-author", "post-meta", "comments", "reply",
    "gallery", "carousel", "collapsed", "feedback", "copyright", "breadcrumb-like", "menu", "modal", "donate",
)  # fmt: skip


def article(*blocks: str, depth: int = 2, root: str = "article") -> str:
    """A page whose article is so many elements deep."""
    inner = f"<h1>Kitabxana qaydaları</h1>{''.join(blocks)}"
    return f"<html><body>{'<div>' * depth}<{root}>{inner}</{root}>{'</div>' * depth}</body></html>"


FIRST, LAST = f"<p>{AZERBAIJANI}</p>", f"<p>{ANOTHER}</p>"
LIST = f"<ul>{''.join(f'<li>{line}</li>' for line in LINES)}</ul>"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", ["ul", "UL"])
def test_a_bullet_list_in_an_article_stays_at_any_depth(mode: ExtractMode, depth: int, name: str) -> None:
    html = article(FIRST, LIST.replace("ul>", f"{name}>"), LAST, depth=depth, root="main")

    assert "\n".join(LINES) in main_text(html, az, Extraction(mode=mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["time", "label", "abbr", "data", "output", "TIME", "dfn", "bdi", "var", "meter"]
)
def test_an_element_inside_a_sentence_is_part_of_it(mode: ExtractMode, name: str) -> None:
    sentence = (
        f"Sərgi <{name} title=x>7 aprel 2019-cu il</{name}> günü açıldı və iki ay davam etdi. {ANOTHER}"
    )

    text = main_text(article(FIRST, f"<p>{sentence}</p>", FIRST), az, Extraction(mode=mode))

    assert "Sərgi 7 aprel 2019-cu il günü açıldı" in text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("word", WORDS)
def test_a_class_word_alone_drops_no_prose_within_an_article(mode: ExtractMode, word: str) -> None:
    section = f"<section class='{word}'><p>{ANOTHER}</p><p>{LINES[0]}</p></section>"

    text = main_text(article(FIRST, section, FIRST.replace("Dünən", "Bu gün")), az, Extraction(mode=mode))

    assert text.index("Dünən") < text.index(ANOTHER) < text.index(LINES[0]) < text.index("Bu gün")


@pytest.mark.parametrize("word", ["legal", "related", "featured", "social-sciences", "jp"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_class_word_drops_no_prose_at_the_edge_of_an_article(word: str, is_first: bool) -> None:
    section = f"<section class='{word}'><p>{ANOTHER}</p></section>"
    more = f"<p>{AZERBAIJANI.replace('Dünən', 'Bu gün')}</p>"
    blocks = (section, FIRST, more) if is_first else (FIRST, more, section)

    assert ANOTHER in main_text(article(*blocks), az)


@pytest.mark.parametrize(
    "outside",
    [
        f"<div class='related'><h3><a href=/1>{LINES[1]}</a></h3><p>{LINES[0]}</p><h3><a href=/2>Yeni il</a></h3></div>",
        f"<div class='site-footer'><p>Bütün hüquqlar qorunur. {LINES[2]}</p></div>",
        f"<div class='comments'><p>{ANOTHER}</p></div>",
        f"<div class='cookie-consent'><p>{ANOTHER}</p></div>",
        f"<nav><ul><li>{ANOTHER}</li></ul></nav>",
        "<ul class=menu>" + "".join(f"<li><a href=/{n}>Bölmə nömrə {n}</a></li>" for n in range(9)) + "</ul>",
    ],
    ids=["teasers", "footer", "comments", "cookies", "nav", "menu"],
)
def test_what_stands_outside_of_the_article_is_not_put_back(outside: str) -> None:
    html = article(FIRST, FIRST.replace("Dünən", "Bu gün")).replace("</body>", f"{outside}</body>")

    assert main_text(html, az) == main_text(html.replace(outside, ""), az)


QUESTIONS = ("Kitabxana neçədə açılır?", "Üzvlük haqqı nə qədərdir?")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "item",
    [
        "<h3><button aria-expanded=false>{}</button></h3><div>{}</div>",
        "<h2 class=accordion-header><button type=button class=accordion-button><span>{}</span></button></h2><div>{}</div>",
        "<button aria-controls=p1>{}</button><div id=p1><p>{}</p></div>",
        "<details><summary>{}</summary>{}</details>",
        "<ul><li><button>{}</button><p>{}</p></li></ul>",
        f"<h4><button data-on='[&>svg]' class='{'px-3 ' * 400}'><span>{{}}</span><svg>{'<path/>' * 200}</svg></button></h4><p>{{}}</p>",
        "<h3><a href='#a'><b>{}</b></a></h3><div>{}</div>",
        "<p><A ROLE=button HREF=#a>{}</A></p><div>{}</div>",
        "<input type=checkbox id=q><label for=q>{}</label><div><p>{}</p></div>",
    ],
)
def test_a_question_that_opens_its_answer_stays_above_it(mode: ExtractMode, item: str) -> None:
    html = article(
        *(item.format(*pair) for pair in zip(QUESTIONS, (AZERBAIJANI, ANOTHER), strict=True)), root="main"
    )

    text = main_text(html, az, Extraction(mode=mode))

    places = [text.index(each) for each in (QUESTIONS[0], AZERBAIJANI, QUESTIONS[1], ANOTHER)]
    assert places == sorted(places)
    assert [text.count(each) for each in QUESTIONS] == [1, 1]


def test_a_table_of_contents_of_questions_is_no_text() -> None:
    contents = "".join(f"<li><a href='#q{n}'>{each}</a></li>" for n, each in enumerate(QUESTIONS))
    answers = f"<h2>{QUESTIONS[0]}</h2>{LAST}<h2>{QUESTIONS[1]}</h2>{LAST.replace('Nənəm', 'Babam')}"

    lines = main_text(article(f"<ul>{contents}</ul>", FIRST, answers), az).split("\n")

    assert [lines.count(each) for each in QUESTIONS] == [1, 1]


def test_buttons_that_open_no_text_are_no_text() -> None:
    html = article(
        FIRST, "<button aria-expanded=false>Menyu</button><button>Paylaşmaq üçün sıxın</button>", LAST
    )

    assert main_text(html, az) == f"Kitabxana qaydaları\n{AZERBAIJANI}\n{ANOTHER}"


def test_what_an_extractor_discards_is_counted() -> None:
    section = f"<section class=legal><p>{ANOTHER}</p></section>"
    comments = f"<div class=comments><p>{ANOTHER.replace('Nənəm', 'Babam')}</p></div>"
    html = article(FIRST, section, FIRST.replace("Dünən", "Bu gün"), comments)

    found = extract_page(html, az, Extraction(mode="fast"))

    assert (found.restored, found.lost) == (len(ANOTHER), len(ANOTHER))
    assert found.counts["restored_after_resiliparse"] == found.counts["lost_by_resiliparse"] == len(ANOTHER)


def test_thousands_of_comments_cost_no_square_of_time() -> None:
    section = f"<section class=legal><p>{ANOTHER}</p></section>"
    comments = "".join(f"<div class=comment><p>{n}. {LINES[0]}</p></div>" for n in range(3_000))
    html = article(section, FIRST, FIRST.replace("Dünən", "Bu gün"), comments)
    started = time.process_time()

    text = main_text(html, az, Extraction(mode="fast"))

    assert time.process_time() - started < 5
    assert ANOTHER in text


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


SHORT = f"<h2>Ərzaqlar</h2><ul>{''.join(f'<li>{line}</li>' for line in ('Un', LINES[0], 'Duz'))}</ul>"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "body",
    [f"{FIRST}{SHORT}", f"{SHORT}<h2>Hazırlanması</h2>{FIRST}", f"{FIRST}<section>{SHORT}</section>{LAST}"],
)
def test_a_list_below_a_heading_stays_whole(mode: ExtractMode, body: str) -> None:
    text = main_text(f"<html><body><h1>Plov</h1>{body}</body></html>", az, Extraction(mode=mode))

    assert f"Ərzaqlar\nUn\n{LINES[0]}\nDuz" in text


@pytest.mark.parametrize(
    ("marked", "shown", "num_deleted"),
    [
        ("O dedi: <q class=a>Gəl</Q> və getdi", "O dedi: “Gəl” və getdi", 0),
        ("Qiymət <del>20</del> <ins>15</ins> manatdır", "Qiymət 15 manatdır", 2),
        ("Qiymət <s>20 <b>manat</b></s> <STRIKE>18</STRIKE> 15 manatdır", "Qiymət 15 manatdır", 10),
    ],
)
def test_quoted_text_keeps_its_marks_and_deleted_text_goes(marked: str, shown: str, num_deleted: int) -> None:
    extracted = extract_page(article(FIRST, f"<p>{marked}. {ANOTHER}</p>"), az)

    assert shown in extracted.text
    assert extracted.counts["deleted"] == num_deleted
