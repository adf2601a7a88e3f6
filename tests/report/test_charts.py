import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.core.table import Table
from anadil.page import charts
from anadil.page.charts import (
    KEYS,
    PALETTE,
    Band,
    Bar,
    Estimate,
    Line,
    _labels,
    bars,
    colours_of,
    histogram_chart,
    intervals,
    lines,
    log_ticks,
    nice_ticks,
    smoothed,
    thinned,
)
from anadil.page.format import (
    cell,
    clip,
    evenly,
    figure,
    plain_value,
    setting,
    short_figure,
    signed_percent,
)

numbers = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(numbers, numbers)
def test_ticks_enclose_the_values(one: float, other: float) -> None:
    low, high = sorted((one, other))

    ticks = nice_ticks(low, high)

    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] - slack <= low
    assert high <= ticks[-1] + slack
    assert 2 <= len(ticks) <= 9


def test_labels_of_ticks_differ() -> None:
    for low, high in ((2.3456, 2.34561), (1_000_000, 1_000_010), (0.99999, 1.00001), (-1e-9, 1e-9)):
        labels = _labels(nice_ticks(low, high))
        assert len(set(labels)) == len(labels) > 2


def test_a_name_has_one_colour_in_whatever_order_and_company() -> None:
    names = ["web", "news", "az", "en"]

    assert colours_of(names) == colours_of(names[::-1])
    assert len(set(colours_of(map(str, range(10))).values())) == 10
    assert len(colours_of(map(str, range(40)))) == 40
    assert colours_of(["az"])["az"] == colours_of(["az", "xyz"])["az"]


def test_logarithmic_ticks_enclose_and_a_mean_does_not_lean_to_the_start() -> None:
    assert log_ticks(0.3, 4.5) == [0.2, 0.5, 1, 2, 5]
    assert log_ticks(1e-5, 3)[::6] == [1e-5, 10]
    assert [y for _, y in smoothed([(x, 4.0) for x in range(9)], 3)] == pytest.approx([4.0] * 9)
    assert smoothed([(0, 0.0), (1, 3.0)], 1)[1][1] == pytest.approx(2.0)


def test_ticks_are_round() -> None:
    assert nice_ticks(3.42, 11.1) == [2, 4, 6, 8, 10, 12]
    assert nice_ticks(0, 0.0032) == [0, 0.001, 0.002, 0.003, 0.004]


@pytest.mark.parametrize(
    ("points", "pattern", "count"),
    [
        (((1, 1e-4), (2, 1e-4)), "nan", 0),
        (((1, 3.0),), "<circle", 1),
        (((1, 3.0), (9, 2.0)), "<circle", 2),
        (((1, 3.0), (9, 2.0)), "<polyline", 0),
        (
            ((1, 9.0), (2, 4.5)),
            'aria-label="Loss. loss: from 9.000 to 4.500, lowest 4.500, highest 9.000"',
            1,
        ),
    ],
)
def test_a_short_line_is_drawn_as_what_was_measured(
    points: tuple[tuple[float, float], ...], pattern: str, count: int
) -> None:
    chart = lines("Loss", "nats", [Line("loss", points)])

    assert chart
    assert chart.svg.count(pattern) == count


def test_an_interval_shows_zero_and_a_histogram_every_bin() -> None:
    estimates = [Estimate(label="adapted", value=-1.1, low=-1.2, high=-1.0)]
    gain = intervals("Gain", "bits", estimates, Table("Gain", (), ()))
    bins = histogram_chart([0, 1, 2.5], [("kept", [3, 1]), ("dropped", [0, 4])], title="<words>")

    assert gain
    assert 'class="zero"' in gain.svg
    assert "<title>1 to 2.500: 1 kept, 4 dropped</title>" in bins
    assert bins.count("<rect") == 4
    assert "<words>" not in bins


def test_no_data_is_no_chart() -> None:
    assert lines("Loss", "nats", [Line(label="loss", points=())]) is None
    assert bars("Rules", "documents", [], Table("Rules", (), ())) is None
    assert intervals("Gain", "bits", [], Table("Gain", (), ())) is None


def test_thinning_keeps_the_spike_and_the_order() -> None:
    points = [(float(x), math.sin(x / 50)) for x in range(10_000)]
    points[4_321] = (4_321.0, 40.0)

    kept = thinned(points)

    assert len(kept) <= 600
    assert (4_321.0, 40.0) in kept
    assert list(kept) == sorted(kept)


def test_every_place_lies_in_the_picture() -> None:
    bands = [Band(label="embeddings", start=0, end=60), Band(label="whole model", start=60, end=300)]
    line = Line(label="loss", points=tuple((float(x), 9 - x / 50) for x in range(1, 300, 7)))

    chart = lines("Loss", "nats per token", [line], bands)

    assert chart
    (points,) = re.findall(r'points="([^"]+)"', chart.svg)
    places = [tuple(map(float, place.split(","))) for place in points.split()]
    assert all(0 <= x <= 480 and 0 <= y <= 262 for x, y in places)
    assert ">embeddings</text>" in chart.svg
    assert ">whole model</text>" in chart.svg


def test_labels_are_escaped() -> None:
    chart = bars("<b>", "<i>", [Bar(label="<script>", value=1)], Table("", (), ()))

    assert chart
    assert "<script" not in chart.svg
    assert "<b>" not in chart.svg


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (True, "—"),
        (0, "0"),
        (1_234_567, "1,234,567"),
        (2.9132, "2.913"),
        (0.5989, "0.5989"),
        (9.99999, "10.000"),
        (-1.1684, "−1.168"),
        (43_210.7, "43,211"),
        (0.0001, "1e-4"),
        (-0.00021, "−2.1e-4"),
        (6.415e-18, "0"),
    ],
)
def test_figures_have_four_digits(value: object, text: str) -> None:
    assert figure(value) == text


def test_numbers_by_their_use() -> None:
    assert short_figure(20_000) == "20k"
    assert short_figure(2.5e-5) == "2.5e-5"
    assert setting(1.0) == "1"
    assert setting(0.05) == "0.05"
    assert cell("loop_rate", 0.1667) == "16.7 %"
    assert cell("num_tokens", 91_224) == "91,224"
    assert plain_value("/home/leyla/data/news.jsonl:17") == "news.jsonl:17"
    assert plain_value("0f" * 32) == "0f0f0f0f0f0f0f0f…"
    assert signed_percent(-40.11) == "−40.1 %"


def test_a_clipped_text_says_how_much_is_missing() -> None:
    assert clip("kitablardan", 5) == "kitab … (6 more characters)"
    assert clip("kitab", 5) == "kitab"


def test_even_choice_keeps_both_ends() -> None:
    assert evenly(list(range(100)), 4) == [0, 33, 66, 99]


def test_a_key_in_a_table_has_the_colour_of_its_line() -> None:
    style = (Path(charts.__file__).parent / "style.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--([\w-]+): (#\w+);", style)))  # the first of a name counts
    lines, keys = (
        {int(number): light[name] for number, name in re.findall(pattern, style)}
        for pattern in (r"\.line\.c(\d) { stroke: var\(--([\w-]+)\)", r"\.k(\d) { fill: var\(--([\w-]+)\)")
    )

    assert {each: keys[KEYS[each]] for each in PALETTE} == {each: lines[each] for each in PALETTE}
