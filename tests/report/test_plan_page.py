"""The page of a plan: inert, true to the plan, and never stopped by a field that is not known."""

import re
from typing import Any

import pytest

from anadil.report.charts import Bar, Line, Mark, Point, Stack, scatter_chart, stacked_chart
from anadil.report.plan_page import render_plan
from anadil.report.run import MAX_PAGE_BYTES
from tests.kit import plans
from tests.report.test_page import HOSTILE, Page, hostile


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
        "Tight: 36.35 GiB per device (safe up to 36.00 GiB of 39.39 GiB) on 2 x p4d.24xlarge "
        "(16 x A100 40 GB); about 10 h 51 min (between 6 h 24 min and 15 h 18 min) and USD 477 on demand "
        "(between USD 281 and USD 672)."
    )

    assert f'<p class="verdict tight">{said}</p>' in page
    assert re.findall(r'<dd class="big">(.*?)</dd>', page) == [
        "36.35 GiB",
        "282,400",
        "10 h 51 min",
        "USD 477",
    ]


def test_charts_speak_to_screen_readers(page: str) -> None:
    found = Page(page)

    assert found.tags.count("svg") == found.named("role").count("img") == 3
    assert found.tags.count("caption") == found.tags.count("table")
    assert "whole model: 36.35 GiB; device 39.39 GiB; safe up to 36.00 GiB" in page


def test_the_table_of_memory_is_the_legend_of_its_chart(page: str) -> None:
    colours = set(re.findall(r'<rect class="part (k\d)"', page))

    keys = set(re.findall(r'<span class="key (k\d)"></span>', page))

    assert colours == keys


def test_the_chosen_layout_is_marked_once(page: str) -> None:
    assert page.count('<span class="badge chosen">chosen</span>') == 1
    assert page.count('class="ring"') == 1


@pytest.mark.parametrize(("verdict", "style"), [("fits", "passed"), ("no", "failed")])
def test_the_verdict_is_that_of_the_phase_that_is_worst_off(verdict: str, style: str) -> None:
    plan = plans.plan()
    plan["phases"][0]["memory"]["verdict"] = verdict
    plan["phases"][1]["memory"]["verdict"] = "fits"

    page = render_plan(plan)

    assert f'<p class="verdict {style}">' in page


def test_a_plan_of_nothing_is_a_page_of_dashes() -> None:
    page = render_plan({})

    assert Page(page).mistakes == []
    assert "Not known whether it fits" in page
    assert "<table" not in page
    assert "None" not in page


def leaves(node: Any, value: object) -> Any:
    """The same JSON with every text and number replaced."""
    if isinstance(node, dict):
        return {key: leaves(inner, value) for key, inner in node.items()}
    return [leaves(inner, value) for inner in node] if isinstance(node, list) else value


@pytest.mark.parametrize("value", [None, "x", 0, -1, [], float("nan"), True, [None], {"a": None}])
def test_a_field_of_any_kind_does_not_stop_the_page(value: object) -> None:
    for key, section in plans.plan().items():
        for changed in (value, leaves(section, value)):
            page = without_style(render_plan(plans.plan() | {key: changed}))

            assert "None" not in page, key
            assert not re.search(r"\bnan\b", page), key


@pytest.mark.parametrize("value", [None, "x", -1, {"a": -1.5}, [3]])
def test_a_part_of_a_phase_of_any_kind_does_not_stop_the_page(value: object) -> None:
    for key, section in plans.plan()["phases"][0]["memory"].items():
        for changed in (value, leaves(section, value)):
            plan = plans.plan()
            plan["phases"][0]["memory"][key] = changed

            assert "None" not in without_style(render_plan(plan)), key


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str, page: str) -> None:
    plan = hostile(plans.plan(), text)
    plan["phases"][0]["memory"]["parts"] = {text: 5 * plans.GIB}
    plan["phases"][1]["memory"]["outside"] |= {text: 3}
    plan["phases"][1]["step_parts_s"] = {text: 1.0}

    found = Page(render_plan(plan))

    assert found.mistakes == []
    assert set(found.tags) <= set(Page(page).tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.tags.count("style") == 1


def test_a_large_search_stays_a_small_page() -> None:
    plan = plans.plan()
    plan["search"]["frontier"] *= 3_000
    plan["search"]["best"] *= 500
    plan["assumptions"] *= 5_000

    assert len(render_plan(plan).encode()) < MAX_PAGE_BYTES


def test_the_same_plan_gives_the_same_bytes(page: str) -> None:
    assert render_plan(plans.plan()) == page


def test_a_stack_over_its_limit_stays_in_the_picture() -> None:
    stack = Stack(label="all", total="50 GiB", parts=(Bar(label="a", value=30), Bar(label="b", value=20)))

    svg = stacked_chart([stack], title="Memory", unit="GiB", marks=[Mark(label="limit", value=36)])

    ends = [float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)]
    assert max(ends) <= 480
    assert "Memory. GiB. all: 50 GiB; limit" in svg


def test_charts_of_nothing_are_empty() -> None:
    line = Line(label="frontier", points=())

    assert stacked_chart([], title="Memory", unit="GiB") == ""
    assert scatter_chart([], line, title="Rate", units=("GiB", "tokens/s")) == ""


def test_one_dot_has_a_scale() -> None:
    dot = Point(label="<FSDP>", x=3.0, y=0.0)

    svg = scatter_chart(
        [], Line(label="frontier", points=()), title="Rate", units=("GiB", "tokens/s"), chosen=dot
    )

    assert "nan" not in svg
    assert "<FSDP>" not in svg
