"""Fields of text that are no prose."""

import html
from collections import Counter

import pytest

from anadil.clean.extract.text_formats import is_page, without_format, without_tags
from anadil.clean.filters.judge_record import Settings, prepare_record
from anadil.clean.read.readers import RawRecord
from anadil.recipe.sections import Recipe

SENTENCE = "Kənd məktəbinin köhnə binası payız aylarında soyuq olurdu."
SRT = "1\n00:00:01,120 --> 00:00:04,480\n<i>Kənd məktəbinin</i>\n\n2\n00:00:05,000 --> 00:00:07,000\nköhnə binası.\n- Hə!\n"
VTT = "WEBVTT\n\nNOTE x\ny\n\n00:01.000 --> 00:04.000 align:start\n<c>Salam</c>\n\n00:04.000 --> 00:06.000\nSalam\ndünya.\n"
WIKI = (
    "{{Kənd\n|rayon = [[Qax rayonu|Qax]]\n|ad = {{nbsp}}\n}}\n'''Kənd''' – [[Qax rayonu]]nda [[kənd|kəndlər]]dəndir.<ref>a</ref>\n"
    "[[Şəkil:Qax.jpg|thumb|Qax [[şəhər]]i]]\n== Tarix ==\n{| class=x\n| 1\n|}\n* bir\n\n== Mənbə ==\n{{istinad}}\n[[Kateqoriya:Qax]]"
)
PICTURE = "![şəkil](data:image/png;base64," + 40 * "iVBOR" + ")"
PAGES = "\f".join(
    f"Kitabın adı\n\n{end} bir\n{end} iki\n\n{number}\n" for number, end in enumerate("abc", 12)
)

RTF_OF_FONTS = (
    r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0\fnil\fcharset162 A;}{\f1\fcharset204 B;}}\f0 ya\'fe{\footnote \'fe}{\field{\*\fldinst X}"
    r"{\fldrslt  link}} \uc2\u12354\'82\'a0{\nonshppict 89}\f1 \'c4\'e0" + "\\\nson}"
)
CHAPTER = (
    "\\chapter{Kənd}\nBir \\footnote{a {b}} \\href{http://x}{\\emph{ad}} $x$ \\item[$\\beta$] \\(\\alpha\\) \\cite{a}.\n\\footnotesize Son"
    "\\begin{longtable}{l}\na & b\n\\end{longtable}\x01"
)
LINE = "kənd məktəbinin köhnə binası payız aylarında soyuq olurdu və uşaqlar"
BODIES = ["\n".join(f"{LINE} {page}{chr(97 + at)}" for at in range(12)) for page in "qrst"]
RTF = (
    r"{\rtf1\ansi\ansicpg1254\deff0{\fonttbl{\f0 Arial;}}{\*\generator X;}\pard\b Birinci\b0  \ldblquote c\'fcml\u601?\rdblquote  \'deki "
    r"\u8211\'96 \u601 ?.\par \u304?kinci\line\{c\}\par{\header Ba\'fel\'fdk}}"
)
TEX = (
    "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\begin{document} % x\n\\section{Kənd məktəbi}\\label{a}\n\n"
    'Köhnə \\emph{bina}~5 \\% bahadır\\cite[s.~5]{b}, \\c{s}\\"{o}yle \\textbf{„\\.Iki“} \\& bir.\n'
    "\\begin{equation}\nx^2\n\\end{equation}\n\\begin{itemize}\n\\item bir\n\\item iki\n\\end{itemize}\n\\end{document}\n"
)


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("subtitles", SRT, "Kənd məktəbinin köhnə binası.\n- Hə!"),
        ("subtitles", VTT, "Salam dünya."),
        ("subtitles", "[00:00.000 --> 00:04.000]  Bu gün\n[00:04.000 --> 00:08.000]  soyuqdur.", "Bu gün soyuqdur."),
        ("subtitles", "0:00:01.000,0:00:04.000\nBu gün\n\n0:00:04.000,0:00:05.000\nsoyuqdur.", "Bu gün soyuqdur."),
        ("subtitles", "{1}{50}Bu|gün\n{51}{90}soyuqdur.", "Bu gün soyuqdur."),
        ("lyrics", "[ar:Kim]\n[00:12.00]Ay işığı\n[00:15.30]düşür suya\n", "Ay işığı\ndüşür suya"),
        ("bbcode", "[b]Salam[/b], [url=http://x.az]bura[/url][img]http://a/b.png[/img]!", "Salam, bura!"),
        ("wikitext", WIKI, "Kənd – Qax rayonunda kəndlərdəndir.\n\nTarix\n\nbir"),
        ("embedded_pictures", f"{SENTENCE}\n{PICTURE}", f"{SENTENCE}\n"),
        ("pdf_pages", PAGES, "a bir\na iki\nb bir\nb iki\nc bir\nc iki"),
        ("pdf_pages", "\n".join(f"{body}\n\n{at}\nKənd məktəbi\n" for at, body in enumerate(BODIES)), "\n".join(BODIES)),
        ("rtf", RTF, "Birinci “cümlə” Şki – ə.\nİkinci\n{c}"),
        ("rtf", RTF_OF_FONTS, "yaş link あДа\nson"),
        ("tex", CHAPTER, "Kənd\nBir ad x \\(\\alpha\\).\nSon"),
        ("subtitles", "0:00\nsalam dostlar\n0:04\nbu gün\n1:02:03\nsoyuqdur", "salam dostlar bu gün soyuqdur"),
        ("embedded_pictures", f"{SENTENCE}\niVBORw0K{60 * 'a'}\n{60 * 'a'}\na==\n{SENTENCE}", f"{SENTENCE}\n\n{SENTENCE}"),
        ("markdown_links", "[Bakı][1], [Qax]{.a} ![b](c 1.jpg)[d](<e f>){:rel=x}[2].\n\n[1]: https://x.az 'a'\n[qax]: /b\n", "Bakı, Qax{.a} d[2].\n\n"),
        ("tex", "\\magnification=\\magstep1\n\\beginsection Kənd\\par\n\\noindent {\\it Bina}.\n\\centerline{\\bf Son}\n\\bye", "Kənd\n\nBina.\nSon"),
        ("tex", TEX, "Kənd məktəbi\n\nKöhnə bina 5 % bahadır, şöyle „İki“ & bir.\n\nbir\niki"),
        ("org", "#+TITLE: Kənd\n* Giriş :a:\n:PROPERTIES:\n:ID: 1\n:END:\n*Bina* [[https://x.az][bura]].[fn:1]\n#+BEGIN_SRC c\nx\n#+END_SRC\nSon.", "Giriş\nBina bura.\nSon."),
        ("rst", "Kənd\n====\n\n.. _a:\n\n*Bina* [1]_, :ref:`b <c>` `d <https://x.az>`_.\n\n.. note:: Qeyd.\n\n.. code-block:: c\n\n   x\n\nSon.", "Kənd\n\nBina, b d.\n\nQeyd.\n\nSon."),
        ("asciidoc", "= Kənd\n:toc: left\n\n== Giriş\n\n*Bina* ucafootnote:[a], https://x.az[b].\n[source,c]\n----\nx\n----\nSon.", "Kənd\n\nGiriş\n\nBina uca, b.\nSon."),
        ("jira", "h1. Kənd\n*Bina* {color:red}c{color} [b|https://x.az].\n{code}\nx\n{code}\n* bir\n||a||\n!a.png!", "Kənd\nBina c b.\n\nbir"),
        ("quoted_printable", "Content-Transfer-Encoding: quoted-printable\n\nK=C9=99nd =3D=\n b=C4=B1r.", "Kənd = bır."),
        ("markdown_links", '[Bakı](https://x.az/a_(b) "ad") və [![](/a.png)](b.html) `[a](/b)` bax.', "Bakı və  `[a](/b)` bax."),
    ],
)  # fmt: skip
def test_a_text_in_a_format_becomes_what_it_says(name: str, text: str, plain: str) -> None:
    shown, formats = without_format(text)
    parts = {"rtf_parts": (RTF, RTF_OF_FONTS).count(text), "tex_parts": 2 * (text in (TEX, CHAPTER))}
    assert (shown, formats) == (plain, +Counter({name: 1, **parts}))


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        "if [[ -z $a ]]; then echo {{ x }}; x[[1]]; fi",
        "10:00, 12:30 görüş\n11:00, 13:30 nahar",
        f"Belə yazılır:\n```\n{SRT}\n[[a]] {{{{b}}}} [b]c[/b]\n```\n" + 20 * f"{SENTENCE}\n",
        "[b] səsi və [i] səsi",
        "a[b::2] == c{d}; x|http y=20 z=C9\n:a: b\n* bir\n== iki",
        "a[i](x) və [qeyd](bax) yazılır; \\section{a} bölmə başlayır.",
        f"{SENTENCE}\n\n    {TEX}\n{SENTENCE}",
        f"{SENTENCE}\n```\n{CHAPTER}\n```\n",
        2 * f"{SENTENCE} $x^2$\n\\begin{{align}}\na&=b\n\\end{{align}}\n",
        "\n".join(f"{body}\n\nə\n\nş\n- Qax\nBelə yazılır:" for body in BODIES),
        "\n".join(f"{LINE} {LINE[:8]}\n{LINE[::-1]}{verse}\nGəl, ay bahar, gəl" for verse in range(40)),
    ],
)
def test_prose_and_code_stay(text: str) -> None:
    assert without_format(text) == (text, Counter())
    assert not is_page(text)


def test_the_sides_of_a_pair_lose_the_tags_of_subtitles() -> None:
    assert without_tags("<i>Salam</i> {\\an8}&lt;b&gt;dünya&lt;/b&gt; 1 < 2") == "Salam dünya 1 < 2"


@pytest.mark.parametrize("is_escaped", [False, True])
@pytest.mark.parametrize(("as_is", "formats"), [(False, {"page": 1}), (True, {})])
def test_a_page_in_a_field_of_text_is_extracted_unless_texts_stay(
    as_is: bool, formats: dict[str, int], is_escaped: bool
) -> None:
    page = f"<!DOCTYPE html><html><body><nav><a href=/>Menu</a></nav><script>var x=1</script><article><p>{4 * SENTENCE}</p></article></body></html>"
    page = html.escape(page) if is_escaped else page
    recipe = Recipe.model_validate({"language": "az", "clean": {"as_is": as_is}})
    prepared = prepare_record(RawRecord(source="a.jsonl:1", text=page), Settings(recipe=recipe))
    assert prepared.formats == formats
    assert ("var x" in prepared.text) == ("Menu" in prepared.text) == as_is
