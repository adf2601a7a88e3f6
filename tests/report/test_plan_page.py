"""The page of a plan: inert, true to the plan, and never stopped by a field that is not known."""

import re
from dataclasses import replace

import pytest

from anadil.plan.memory_limit import FitVerdict
from anadil.report.charts import Bar, Line, Point, Stack, scatter_chart, stacked_chart
from anadil.report.plan_page import render_plan
from anadil.report.run import MAX_PAGE_BYTES
from tests.kit import plans
from tests.report.test_page import HOSTILE, Page

LIMIT = Bar("limit", 36)


@pytest.fixture(scope="module")
def page() -> str:
    return render_plan(plans.plan())


def without_style(page: str) -> str:
    return re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    found = Page(page)

    assert found.mistakes == []
    assert found.open == []
    assert re.findall(r"(?:src|srcset|action|data|poster)\s*=|url\(|@import|https?:|//\w", page) == []
    assert "script" not in found.tags
    assert {link[1:] for link in found.named("href")} <= set(found.named("id"))
    assert len(page.encode()) < MAX_PAGE_BYTES


def test_the_answer_comes_first(page: str) -> None:
    said = (
        "Fits: 36.8 GiB per device (safe up to 37.5 GiB of 39.4 GiB) on 2 x p4d.24xlarge "
        "(16 x A100 40 GB); about 10 h 6 min (between 5 h 7 min and 15 h 5 min) and USD 444 on demand "
        "(between USD 225 and USD 663)."
    )

    assert f'<p class="verdict passed">{said}</p>' in page
    large = re.findall(r'<dd class="big">(.*?)</dd>', page)
    assert large == ["36.8 GiB", "468,933", "10 h 6 min", "USD 444"]


def test_charts_speak_to_screen_readers(page: str) -> None:
    found = Page(page)

    assert found.tags.count("svg") == found.named("role").count("img") == 3
    assert found.tags.count("caption") == found.tags.count("table")
    assert "whole model: 36.8 GiB; device 39.4 GiB; safe up to 37.5 GiB" in page


def test_the_table_of_memory_is_the_legend_of_its_chart(page: str) -> None:
    colours = set(re.findall(r'<rect class="part (k\d)"', page))

    keys = set(re.findall(r'<span class="key (k\d)"></span>', page))

    assert colours == keys


def test_the_chosen_layout_is_marked_once(page: str) -> None:
    assert page.count('<span class="badge chosen">chosen</span>') == 1
    assert page.count('class="ring"') == 1


@pytest.mark.parametrize(("verdict", "style"), [("fits", "passed"), ("tight", "tight"), ("no", "failed")])
def test_the_verdict_is_that_of_the_phase_that_is_worst_off(verdict: FitVerdict, style: str) -> None:
    page = render_plan(plans.with_memory(0, verdict=verdict))

    assert f'<p class="verdict {style}">' in page


def test_what_is_not_known_is_a_dash() -> None:
    page = without_style(render_plan(plans.unknown_speed()))

    assert Page(page).mistakes == []
    assert "None" not in page
    assert not re.search(r"\bnan\b", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str, page: str) -> None:
    found = Page(render_plan(plans.with_text(text)))

    assert found.mistakes == []
    assert set(found.tags) <= set(Page(page).tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.tags.count("style") == 1


def test_a_large_search_stays_a_small_page() -> None:
    plan = plans.plan()
    assert plan.search is not None
    large = replace(plan.search, frontier=plan.search.frontier * 3_000, best=plan.search.best * 500)

    assert len(render_plan(replace(plan, search=large)).encode()) < MAX_PAGE_BYTES


def test_the_same_plan_gives_the_same_bytes(page: str) -> None:
    assert render_plan(plans.plan()) == page


def test_a_stack_over_its_limit_stays_in_the_picture() -> None:
    stack = Stack(label="all", total="50 GiB", parts=(Bar(label="a", value=30), Bar(label="b", value=20)))

    svg = stacked_chart([stack], title="Memory", unit="GiB", marks=[LIMIT])

    ends = [float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)]
    assert max(ends) <= 480
    assert "Memory. GiB. all: 50 GiB; limit" in svg


def test_charts_of_nothing_are_empty() -> None:
    line = Line(label="frontier", points=())

    assert stacked_chart([], title="Memory", unit="GiB") == ""
    assert scatter_chart([], line, limit=LIMIT, title="Rate", units=("GiB", "tokens/s")) == ""


def test_one_dot_has_a_scale() -> None:
    dot = Point(label="<FSDP>", x=3.0, y=0.0)

    svg = scatter_chart(
        [], Line("frontier", ()), limit=LIMIT, title="Rate", units=("GiB", "tokens/s"), chosen=dot
    )

    assert "nan" not in svg
    assert "<FSDP>" not in svg
