import time
from dataclasses import replace

import pytest

from anadil.clean.extract.extract import (
    MAX_FOREIGN_CHARS,
    MIN_OWN_LETTERS,
    Extraction,
    main_text,
    may_be_in_language,
)
from anadil.clean.extract.page_markup import raised_as_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language import load_language
from tests.kit.clean_stage import page
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, TURKISH

az, ja = load_language("az"), load_language("ja")
FEW_OWN_LETTERS = (
    "Bizim aramızda olan insanlar kitabxanada bir saat danışdılar, sonra yağış başladı və hamı dağıldı; "
    "çıxışlar bu ay jurnalda çap olunacaq."
)


def test_the_article_is_kept_and_the_rest_of_the_page_is_not() -> None:
    assert main_text(page(AZERBAIJANI, ANOTHER).decode(), az) == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


@pytest.mark.parametrize("mark", ['<a id="{}"/>', "<A name='x{}' >", "<a id={} class=m></a>"])
def test_a_mark_without_an_address_is_no_link(mark: str) -> None:
    sections = [f"<h2>{mark.format(n)}Bölmə {n}</h2><p>{AZERBAIJANI}</p><p>{ANOTHER}</p>" for n in range(3)]

    found = main_text(page(*sections).decode(), az)

    assert found.split("\n") == [
        "Bakıda külək", *(line for n in range(3) for line in (f"Bölmə {n}", AZERBAIJANI, ANOTHER))
    ]  # fmt: skip


@pytest.mark.parametrize("link", ["<a\nHREF='/{}'>", '<a class="m" href=/x/{}/>', "<a id=x{0} href=/{0}>"])
def test_an_anchor_with_an_address_is_a_link_wherever_that_stands(link: str) -> None:
    links = " ".join(f"{link.format(n)}Oxşar xəbər nömrə {n}</a>" for n in range(5))

    assert "Oxşar" not in main_text(page(AZERBAIJANI, links, ANOTHER).decode(), az)


def test_entities_and_inline_markup_become_text() -> None:
    marked = f"<b>Diqqət</b>: 3 &lt; 5 &amp; <a href=/x>keçid</a>. {AZERBAIJANI}"

    assert main_text(page(marked).decode(), az).split("\n")[1].startswith("Diqqət: 3 < 5 & keçid. Dünən")


def test_readings_of_japanese_characters_are_left_out() -> None:
    ruby = "<ruby>下人<rp>（</rp><rt>げにん</rt><rp>）</rp></ruby>が雨やみを待っていた。" + JAPANESE

    assert main_text(page(ruby, head="<html lang=ja>").decode(), ja).endswith(
        "下人が雨やみを待っていた。" + JAPANESE
    )


SHORT_PARAGRAPHS = [AZERBAIJANI[: AZERBAIJANI.index(" ", 60)] for _ in range(1)] + [
    "Kənd yolu bağlıdır, sakinlər piyada gedir",
    "Sabah hava buludlu olacaq, yağış gözlənilir",
]


@pytest.mark.parametrize(("mode", "is_found"), [("fast", False), ("balanced", True), ("precision", True)])
def test_a_page_of_short_paragraphs_is_read_by_the_second_extractor(
    mode: ExtractMode, is_found: bool
) -> None:
    html = page(*SHORT_PARAGRAPHS).decode()

    assert (SHORT_PARAGRAPHS[1] in main_text(html, az, Extraction(mode=mode))) == is_found


def test_an_earlier_page_does_not_change_a_later_one() -> None:
    html = page(*SHORT_PARAGRAPHS).decode()

    assert len({main_text(html, az, Extraction(mode="precision")) for _ in range(6)}) == 1


@pytest.mark.parametrize("mode", ["fast", "precision"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_tables_are_kept_or_dropped(mode: ExtractMode, is_kept: bool) -> None:
    table = "<table><tr><th>Şəhər</th><th>Əhali</th></tr><tr><td>Gəncə</td><td>335 600</td></tr></table>"
    html = page(AZERBAIJANI, ANOTHER, table).decode()

    text = main_text(html, az, Extraction(mode=mode, tables=is_kept))

    assert any(line.split() == ["Gəncə", "335", "600"] for line in text.split("\n")) == is_kept
    assert AZERBAIJANI in text


@pytest.mark.parametrize("mode", ["fast", "precision"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_code_at_the_end_is_kept_as_it_is_or_dropped(mode: ExtractMode, is_kept: bool) -> None:
    html = page(AZERBAIJANI, ANOTHER, "<pre>def salam():\n    return 1</pre>").decode()

    text = main_text(html, az, Extraction(mode=mode, code=is_kept))

    assert ("def salam():\n    return 1" in text) == is_kept
    assert ("salam" in text) == is_kept


@pytest.mark.parametrize(
    ("expected", "head", "text"),
    [
        (True, "<html>", AZERBAIJANI), (True, "<html lang='az-AZ'>", ENGLISH), (False, "<html>", ENGLISH),
        (False, "<html lang=tr>", TURKISH), (True, "<html>", ENGLISH * 8 + AZERBAIJANI * 2),
    ],
)  # fmt: skip
def test_a_page_is_worth_extracting_if_it_may_hold_the_language(expected: bool, head: str, text: str) -> None:
    body = f"{head}<body><script>var a = 'function';</script><p>{text}</p></body></html>"

    assert may_be_in_language(body, az) == expected


def test_a_page_may_hold_a_language_that_the_identifier_does_not_know() -> None:
    body = f"<html lang=tr><body><p>{TURKISH}</p></body></html>"

    assert may_be_in_language(body, replace(az, labels=frozenset()))


def test_a_page_of_code_with_japanese_comments_may_be_japanese() -> None:
    body = "<html lang=en><body><pre>" + "int main() { return value; } " * 200 + JAPANESE + "</pre>"

    assert may_be_in_language(body, ja)


@pytest.mark.parametrize("spell", ["entities", "cp1251"])
def test_a_long_page_whose_letters_are_entities_or_misread_may_hold_the_language(spell: str) -> None:
    text = "".join(
        f"&#{ord(char)};" if spell == "entities" and not char.isascii() else char for char in AZERBAIJANI
    )
    if spell != "entities":
        text = AZERBAIJANI.encode().decode(spell, errors="replace")
    body = "<html><body>" + f"<p>{text}</p>" * 200 + "</body></html>"

    assert not {"ə", "Ə"} & set(body)
    assert may_be_in_language(body, az)


def test_a_page_with_a_letter_of_the_language_is_read_to_its_ends() -> None:
    own = f"<p>{FEW_OWN_LETTERS}</p>" * 28
    foreign = f"<p>{ENGLISH}</p>" * (2 * MAX_FOREIGN_CHARS // len(ENGLISH))

    assert 0 < own.count("ə") < MIN_OWN_LETTERS
    assert may_be_in_language(f"<html><body>{own}{foreign}</body></html>", az)
    assert not may_be_in_language(f"<html><body>{own.replace('ə', '')}{foreign}</body></html>", az)


def test_control_characters_do_not_stop_the_prefilter() -> None:
    assert may_be_in_language(f"<html><p>\x00\x08{AZERBAIJANI}\ufdd0</p>", az)


def test_a_page_that_the_prefilter_cannot_read_is_left_to_the_check_of_its_text() -> None:
    assert may_be_in_language(f"<html><p>{ENGLISH}\U0001fffe</p>", az)


ARTICLE = f"<article><h1>Bakıda külək</h1><p>{AZERBAIJANI}</p><p>{ANOTHER}</p></article>"
MENU = "<nav><a href=/>Ana səhifə</a></nav>"
FOOTER = "<footer>Bütün hüquqlar qorunur.</footer>"


@pytest.mark.parametrize(
    "whole",
    [
        '<html><body><form id=aspnetForm><input type=hidden value="'
        + "x" * 3_000
        + '">{}</form></body></html>',
        "<html><body><div class='page has-breadcrumbs'>{}</div></body></html>",
        "<html><body class='breadcrumb-on cookies-not-set social'>{}</body></html>",
        "<html><body><div id=w class=social-theme><form><div class=breadcrumbs-2>{}</div></form></div></body></html>",
        "<html><body><script>" + "var a = '<form>';" * 3_000 + "</script><form>{}</form></body></html>",
    ],
    ids=["form", "breadcrumbs", "body", "nested", "script"],
)
def test_what_holds_most_of_the_page_is_kept_whatever_it_is_called(whole: str) -> None:
    assert main_text(whole.format(MENU + ARTICLE + FOOTER), az) == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


@pytest.mark.parametrize(
    "part",
    [
        "<form>Saytda axtarış üçün açar sözləri bura yazın və sonra düyməni sıxın.</form>",
        "<div class=breadcrumb>Əsas səhifə / Xəbərlər / Hava haqqında bütün yazılar buradadır.</div>",
        "<div class=social-links>Bu yazını dostlarınızla paylaşın və bizi hər yerdə izləyin.</div>",
        f"<div class=cookie-wall>{TURKISH * 5}</div>",
        f"<footer>{TURKISH * 5}</footer>",
    ],
    ids=["form", "breadcrumb", "social", "cookie", "footer"],
)
def test_what_is_no_content_is_still_left_out(part: str) -> None:
    page = f"<html><body>{part}{ARTICLE}{part}</body></html>"

    assert main_text(page, az) == f"Bakıda külək\n{AZERBAIJANI}\n{ANOTHER}"


def test_many_skipped_elements_in_each_other_cost_little_time() -> None:
    started = time.process_time()

    main_text("<html><body>" + "<div class=social>x" * 2_500 + AZERBAIJANI * 500, az)

    assert time.process_time() - started < 9


@pytest.mark.parametrize(
    "many", ["<!-- {} -->", '<a title="{}">x</a>', "<xmp>{}</xmp>", "<iframe>{}</iframe>"]
)
@pytest.mark.parametrize(
    "begin", ["<script>", "<style >", "<!--", "<", "<a ", "<a x ", "<button '", "<button>?", "<a href=#>?"]
)
def test_many_beginnings_without_an_end_take_no_time(many: str, begin: str) -> None:
    text = page(AZERBAIJANI).decode()
    started = time.process_time()

    found = main_text(text.replace("</body>", many.format(begin * 12_000) + "</body>"), az)

    assert time.process_time() - started < 6
    assert AZERBAIJANI[:50] in found


az, ja = load_language("az"), load_language("ja")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("Sayı 4·10<sup>7</sup> idi", "Sayı 4·10⁷ idi"),
        ("<i>y</i><sup>n+1</sup>", "<i>y</i>ⁿ⁺¹"),
        ("16<sup>2</sup>-ci maddə", "16²-ci maddə"),
        ("101<sub>2</sub>, CO<sub>2</sub>, log<sub>2</sub>16", "101₂, CO2, log₂16"),
        ("25<sup>o</sup>C", "25°C"),
        ("5<sup>3</sup>/<sub>4</sub> və 2<sup>3</sup>&frasl;<sub>7</sub>", "5¾ və 2 3/7"),
        ("<msup><mn>10</mn><mrow><mo>-</mo><mn>6</mn></mrow></msup>", "10⁻⁶"),
        ("7·10<span class='x sup'>9</span> və v<span class=sub>0</span>", "7·10⁹ və v0"),
        ("y<font style='vertical-align: super; font-size: 60%'>4</font>", "y⁴"),
        ("10<sup>10<sup>10<sup>34</sup></sup></sup>", "10^(10^(10³⁴))"),
        ("<math><msqrt><mn>3</mn></msqrt></math>", "<math>√3</math>"),
        ("<msqrt><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow></msqrt>", "√(a+1)"),
        ("<msubsup><mi>y</mi><mn>0</mn><mn>3</mn></msubsup>", "y₀³"),
    ],
)
def test_a_number_keeps_its_value_where_figures_are_raised_or_lowered(raised: str, expected: str) -> None:
    assert raised_as_text(raised) == expected


@pytest.mark.parametrize(
    "mark",
    [
        "<sup>[4]</sup>",
        "<sup class=reference id=cite_ref-2><a href='#cite_note-2'><span>[</span>2<span>]</span></a></sup>",
        '<sup><a href="#fn7">7</a></sup>',
        "<sup>*</sup>",
    ],
)
def test_the_mark_of_a_footnote_does_not_stick_to_its_word(mark: str) -> None:
    assert raised_as_text(f"Bu kitabxana{mark} köhnədir.") == "Bu kitabxana köhnədir."


def test_numbers_behind_words_are_footnotes_where_they_begin_with_one() -> None:
    notes = "Kitabxana<sup>1</sup> ilə muzey<sup>2</sup> 30 m<sup>2</sup> tutur.<sup>3</sup>"

    assert raised_as_text(notes) == "Kitabxana ilə muzey 30 m² tutur."
    assert raised_as_text("8 kvadrat metr<sup>2</sup>") == "8 kvadrat metr²"


def test_a_page_with_footnotes_keeps_the_exponents_of_units_in_words() -> None:
    notes = "Yağış kəsdi<sup>1</sup>. Bağ 90 metr<sup>2</sup>, 6 kilometr<sup>2</sup> və 4 m<sup>3</sup> idi."

    assert raised_as_text(notes) == "Yağış kəsdi. Bağ 90 metr², 6 kilometr² və 4 m³ idi."


@pytest.mark.parametrize(
    "marked", ["ev<sup>1</sup>", "daş<sup>1</sup>", "daş<sup>12</sup>", "kitab<sup>7</sup>"]
)
def test_one_footnote_alone_is_known_where_no_unit_has_such_an_exponent(marked: str) -> None:
    assert raised_as_text(f"Bu {marked} köhnədir.") == f"Bu {marked[: marked.index('<')]} köhnədir."


@pytest.mark.parametrize("mode", ["fast", "balanced", "precision"])
def test_every_extractor_gets_raised_figures_as_characters(mode: ExtractMode) -> None:
    html = page(AZERBAIJANI, f"Bu il 7·10<sup>8</sup> ton taxıl yığıldı. {ANOTHER}", AZERBAIJANI).decode()

    assert "Bu il 7·10⁸ ton taxıl yığıldı." in main_text(html, az, Extraction(mode=mode))
