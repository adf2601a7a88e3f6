import pytest

from anadil.clean.extract.extract import Extraction, main_text
from anadil.clean.extract.raised import raised_as_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language import load_language
from tests.kit.clean_stage import page
from tests.kit.texts import ANOTHER, AZERBAIJANI

az, ja = load_language("az"), load_language("ja")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("Sayı 4·10<sup>7</sup> idi", "Sayı 4·10⁷ idi"),
        ("<i>y</i><sup>n+1</sup>", "<i>y</i>ⁿ⁺¹"),
        ("10<sup><b>9</b></sup>", "10⁹"),
        ("16<sup>2</sup>-ci maddə", "16²-ci maddə"),
        ("<sup>238</sup>U", "²³⁸U"),
        ("101<sub>2</sub>, CO<sub>2</sub>, log<sub>2</sub>16", "101₂, CO2, log₂16"),
        ("21<sup>st</sup>, XIX<sup>e</sup>", "21st, XIXe"),
        ("25<sup>o</sup>C", "25°C"),
        ("5<sup>3</sup>/<sub>4</sub> və 2<sup>3</sup>&frasl;<sub>7</sub>", "5¾ və 2 3/7"),
        ("<msup><mn>10</mn><mrow><mo>-</mo><mn>6</mn></mrow></msup>", "10⁻⁶"),
        ("7·10<span class='x sup'>9</span> və v<span class=sub>0</span>", "7·10⁹ və v0"),
        ("y<font style='vertical-align: super; font-size: 60%'>4</font>", "y⁴"),
        ("10<sup>10<sup>10<sup>34</sup></sup></sup>", "10^(10^(10³⁴))"),
        ("g<sup>(n)</sup>(0)", "g⁽ⁿ⁾(0)"),
        ("<math><msqrt><mn>3</mn></msqrt></math>", "<math>√3</math>"),
        ("<msqrt><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow></msqrt>", "√(a+1)"),
        ("<mroot><mn>16</mn><mn>4</mn></mroot>", "⁴√16"),
        ("<msubsup><mi>y</mi><mn>0</mn><mn>3</mn></msubsup>", "y₀³"),
        ("<mfrac><mn>1</mn><msqrt><mn>2</mn></msqrt></mfrac>", "1/(√2)"),
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
        "<sup>3, 5</sup>",
        "<sup>(a)</sup>",
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
