"""One table as lines of a terminal, as HTML and as Markdown."""

from dataclasses import replace

from markupsafe import Markup

from anadil.core.table import Table

TABLE = Table(
    "Şəhərlər", ("şəhər", "əhali", "su"), [("Bakı", "2,300", "Xəzər"), ("Şuşa", "5", "")], words=(2,)
)


def test_numbers_are_aligned_to_the_right_and_words_to_the_left() -> None:
    assert TABLE.lines() == ["şəhər  əhali  su", "Bakı   2,300  Xəzər", "Şuşa       5"]
    assert replace(TABLE, marked=1).lines("  ")[1:] == ["  Bakı   2,300  Xəzər", "* Şuşa       5"]


def test_a_list_of_names_and_values_has_no_header() -> None:
    table = Table("", ("", "value"), [("run", "finished"), ("stage", "clean")])

    assert table.lines() == ["run    finished", "stage  clean"]
    assert '<thead class="unseen">' in table.html()


def test_no_cell_steers_a_terminal_or_ends_a_row() -> None:
    table = Table("a", ("x", "y"), [("\x1b[31m", "1\n2")])

    assert table.lines() == ["x            y", "\\x1b[31m  1\\n2"]


def test_text_is_never_markup_unless_it_was_made_as_such() -> None:
    table = Table("<a>", ("x",), [("<b>&'\"",), (Markup("<i>İ</i>"),)], note="<n>")

    assert "&lt;b&gt;&amp;&#39;&#34;" in table.html()
    assert "<i>İ</i>" in table.html()
    assert 'aria-label="&lt;a&gt;"' in table.html()
    assert "&lt;n&gt;" in table.html()
    assert table.markdown().splitlines()[3] == "| &lt;b&gt;&amp;&#39;&#34; |"


def test_a_page_without_a_style_sheet_gets_the_style_in_its_cells() -> None:
    page = TABLE.html(inline=True)

    assert 'class="words"' not in page
    assert page.count("text-align:right") == 3


def test_markdown_escapes_its_signs_and_says_that_there_are_no_rows() -> None:
    assert TABLE.markdown().splitlines()[1:3] == ["| şəhər | əhali | su |", "| --- | ---: | --- |"]
    assert Table("a", ("x",), [("1|2*",)]).markdown().splitlines()[3] == r"| 1\|2\* |"
    assert replace(TABLE, rows=()).markdown() == "\nNone.\n"
    assert replace(TABLE, rows=()).markdown("") == replace(TABLE, rows=()).html() == ""
