from dataclasses import replace

import pytest
from markupsafe import Markup

from anadil.core import format as core
from anadil.core.table import Table

DASH = "\N{EM DASH}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (core.human_figure(1_234_567), "1,234,567"),
        (core.human_figure(9_999.6), "10,000"),
        (core.human_figure(1.23456), "1.235"),
        (core.human_figure(0.0001), "1e-4"),
        (core.human_figure(None), DASH),
        (core.human_figure(float("nan")), "nan"),
        (core.human_figure(True), "True"),
        (core.human_figure("replace-100000"), "replace-100000"),
        (core.human_count(20_000.0, "steps"), "20,000 steps"),
        (core.human_count(None, "steps"), DASH),
        (core.with_article("model"), "a model"),
        (core.with_article("adapter"), "an adapter"),
        (core.with_article("merged"), "a merged model"),
        (core.with_article("scores"), "scores"),
        (core.short_count(1_177_946_112), "1.178 B"),
        (core.short_count(999), "999"),
        (core.human_parameters(70_553_706_496), "70.6B"),
        (core.human_percent(0.0011), "0.110 %"),
        (core.human_percent(0), "0 %"),
        (core.human_bytes(0), "0 B"),
        (core.human_bytes(1536), "1.5 KiB"),
        (core.human_bytes(5 * 1024**4), "5.0 TiB"),
        (core.stored_bytes(2_430e9), "2.43 TB"),
        (core.stored_bytes(999_999_999), "1.00 GB"),
        (core.stored_bytes(12), "12 B"),
        (core.human_bandwidth(50e9), "50.0 GB/s"),
        (core.human_bandwidth(None), DASH),
        (core.human_dollars(687_000.4), "USD 687,000"),
        (core.human_dollars(21.96), "USD 21.96"),
        (core.human_seconds(0), "0 s"),
        (core.human_seconds(0.0384), "38.4 ms"),
        (core.human_seconds(0.99999), "1.00 s"),
        (core.human_seconds(42.4), "42 s"),
        (core.human_seconds(200), "3 min 20 s"),
        (core.human_seconds(600), "10 min"),
        (core.human_seconds(3599.6), "1 h"),
        (core.human_seconds(18_600), "5 h 10 min"),
        (core.human_seconds(390 * 3600), "390 h"),
        (core.human_hours(4.34), "4 h 20 min"),
        (core.hours_and_days(390), "390 h (16.2 days)"),
        (core.human_flop(6.1e19), "6.1e19 FLOP"),
        (core.human_range(1, 2, core.human_hours), "1 h to 2 h"),
        (core.human_range(1, None, core.human_hours), ""),
        (core.one_line("a" * 400, 5), "aaaa\N{HORIZONTAL ELLIPSIS}"),
        (core.one_line("az\x1b[2J\r\nroot"), "az [2J root"),
    ],
)
def test_a_quantity_is_written_by_its_one_rule(text: str, expected: str) -> None:
    assert text == expected


def test_an_amount_of_kubernetes_is_a_number() -> None:
    written = ("500m", "2", "16Gi", "1.5k", "1G")
    assert [core.amount(text) for text in written] == [0.5, 2, 16 * core.GIB, 1_500, 10**9]


def test_a_number_of_things_has_its_noun_in_the_right_form() -> None:
    assert [core.counted(number, "file") for number in (0, 1, 2, 1200)] == [
        "0 files",
        "1 file",
        "2 files",
        "1,200 files",
    ]
    assert [core.counted(number, "process") for number in (1, 3)] == ["1 process", "3 processes"]


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


def test_markdown_escapes_its_signs_and_says_that_there_are_no_rows() -> None:
    assert TABLE.markdown().splitlines()[1:3] == ["| şəhər | əhali | su |", "| --- | ---: | --- |"]
    assert Table("a", ("x",), [("1|2*",)]).markdown().splitlines()[3] == r"| 1\|2\* |"
    assert replace(TABLE, rows=()).markdown() == "\nNone.\n"
    assert replace(TABLE, rows=()).markdown("") == replace(TABLE, rows=()).html() == ""
