"""The plan in a terminal: the answer first, aligned, with units, and never a crash."""

import re

import pytest

from anadil.plan.view import values
from anadil.plan.view.summary import answer, checked, lead
from anadil.plan.view.tables import layouts
from anadil.plan.view.terminal import lines
from tests.kit import plans


def test_the_answer_comes_first() -> None:
    shown = " ".join(lines(plans.plan())[:3])

    assert shown == (
        "azerbaijani-1b. Tight: 36.35 GiB per device (safe up to 36.00 GiB of 39.39 GiB) on 2 x "
        "p4d.24xlarge (16 x A100 40 GB); about 10 h 51 min (between 6 h 24 min and 15 h 18 min) and USD 477 on "
        "demand (between USD 281 and USD 672)."
    )


def test_the_headlines_carry_their_units_and_ranges() -> None:
    shown = lines(plans.plan())

    assert shown[4:10] == [
        "  layout   FSDP 16, batch 14 per device and 224 in all, 2,048 tokens a sequence",
        "  rate     at best 282,400 tokens/s, 17,650 per device, 40.0 % of the peak",
        "  work     20,000 steps, 9.175 B tokens, 3.67 epochs, 6.1e19 FLOP",
        "  time     10 h 51 min, between 6 h 24 min and 15 h 18 min",
        "  cost     USD 477 on demand, between USD 281 and USD 672",
        "  checked  the real model's step allocates 34.37 GiB, -0.18 % from the formulas (21 s)",
    ]


def test_a_plan_that_short_runs_have_corrected_leads_with_its_prediction() -> None:
    plan = plans.plan() | {"calibration": {"factor": 0.6, "measured": 3}}

    said = answer(plan)

    assert "; 8 h 33 min (between 6 h 24 min and 15 h 18 min) and USD 376 on demand (between USD 281" in said
    assert "about" not in said
    assert lead(plan, "cost.on_demand") == 375.96


def test_every_line_fits_the_terminal_of_a_very_large_run() -> None:
    plan = plans.plan()
    plan["search"]["best"][0] |= {
        "name": "HSDP 16 x 128 x TP 8 x CP 2 x PP 16",
        "hours": 1_390.4,
        "cost": 12_687_000,
        "tokens_per_s_per_device": 874,
        "micro_batch_size": 1_024,
    }
    plan["cost"] |= {"on_demand": 12_687_000.0, "on_demand_low": 9e6, "on_demand_high": 21e6}
    plan["phases"][1] |= {"trains": "adapters of every layer", "tokens_per_s": 14_282_400.0}

    shown = lines(plan)

    assert max(map(len, shown)) <= 100
    assert [line for line in shown if line != line.rstrip()] == []


def test_columns_are_aligned() -> None:
    shown = lines(plans.plan())
    start = next(place for place, line in enumerate(shown) if line.startswith("Memory of one device"))

    ends = {line.index("GiB") for line in shown[start + 14 : start + 17]}

    assert len(ends) == 1


def test_the_bar_is_that_of_the_largest_part() -> None:
    barred = [line for line in lines(plans.plan()) if line.endswith("#" * 20)]

    assert [line.split()[0] for line in barred] == ["activations", "matrix"]


def test_the_plans_own_layout_has_a_star() -> None:
    starred = [line for line in lines(plans.plan()) if line.startswith("* ")]

    assert len(starred) == 1
    assert starred[0].startswith("* FSDP 16")
    assert "36.35 GiB" in starred[0]


def test_a_layout_that_differs_in_one_setting_is_not_the_plans_own() -> None:
    plan = plans.plan()
    plan["layout"]["activation_checkpointing"] = "full"

    assert layouts(plan).marked is None


def test_why_is_told_and_wrapped() -> None:
    shown = lines(plans.plan())
    start = shown.index("  activation_checkpointing: none")

    assert shown[start + 1 : start + 3] == [
        "      everything fits; recomputing would cost 22 % of the rate and free 17.9 GiB that nothing",
        "      needs",
    ]


def test_a_plan_that_does_not_fit_says_what_it_would_take() -> None:
    plan = plans.plan()
    plan["phases"][1]["memory"]["verdict"] = "no"
    plan["cost"]["on_demand"] = None

    said = answer(plan)

    assert said.startswith("Does not fit: 36.35 GiB per device")
    assert said.endswith("it would take about 10 h 51 min (between 6 h 24 min and 15 h 18 min).")


def test_a_plan_of_nothing_is_dashes() -> None:
    shown = lines({})

    assert shown[0].startswith("\N{EM DASH}. Not known whether it fits")
    assert "None" not in "\n".join(shown)


@pytest.mark.parametrize("value", [None, "x", 0, -1, [], {}, float("nan"), True, [None]])
def test_a_section_of_any_kind_does_not_stop_the_table(value: object) -> None:
    for key, section in plans.plan().items():
        inner: dict[str, object] = section if isinstance(section, dict) else {}

        for changed in (value, *(inner | {name: value} for name in inner)):
            shown = "\n".join(lines(plans.plan() | {key: changed}))

            assert "None" not in shown
            assert not re.search(r"\bnan\b", shown)


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    plan = plans.plan()
    plan["recipe"] = "az\x1b[2J\r\nroot"
    plan["assumptions"] = ["\x1b]0;title\x07 done"]

    shown = "\n".join(lines(plan))

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert shown.startswith("az [2J root. Tight")


def test_no_check_and_no_search_say_nothing() -> None:
    plan = plans.plan() | {"exact": None, "search": None}

    assert checked(plan) == ""
    assert not [line for line in lines(plan) if "Best layouts" in line or "computed in" in line]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (values.gib(39.39 * 1024**3), "39.39 GiB"),
        (values.gib(51_200_000), "48.8 MiB"),
        (values.gib(0), "0 B"),
        (values.gb(14_135_353_344), "14.1 GB"),
        (values.gb(2_430e9), "2.43 TB"),
        (values.gb(999_999_999), "1 GB"),
        (values.gb(420e9), "420 GB"),
        (values.gb_per_s(None), "\N{EM DASH}"),
        (values.dollars(687_000.4), "USD 687,000"),
        (values.dollars(21.96), "USD 21.96"),
        (values.seconds(0.0384), "38.4 ms"),
        (values.seconds(0.99999), "1.00 s"),
        (values.seconds(1.3), "1.30 s"),
        (values.seconds(600), "10 min"),
        (values.seconds(0), "0 s"),
        (values.days(390), "390 h (16.2 days)"),
        (values.hours(4.34), "4 h 20 min"),
        (values.percent(0.0011), "0.11 %"),
        (values.percent(0.4), "40.0 %"),
        (values.count(20_000.0, "steps"), "20,000 steps"),
        (values.count(True), "\N{EM DASH}"),
        (values.short_count(1_177_946_112), "1.178 B"),
        (values.flop(6.1e19), "6.1e19 FLOP"),
        (values.span(1, None, values.hours), ""),
        (values.text("a" * 400, 5), "aaaa\N{HORIZONTAL ELLIPSIS}"),
    ],
)
def test_values_are_told_with_their_units(said: str, text: str) -> None:
    assert said == text
