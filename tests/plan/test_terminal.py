"""The plan in a terminal: the answer first, aligned, with units."""

from dataclasses import replace

from anadil.plan.calibration import Calibration
from anadil.plan.schema import LayoutOption
from anadil.plan.view import answer_sentence, calibration_sentence, cost_lines, plan_lines
from tests.kit import plans


def test_the_answer_comes_first() -> None:
    shown = " ".join(plan_lines(plans.with_memory(1, verdict="tight"))[:3])

    assert shown == (
        "azerbaijani-1b. Tight: 36.8 GiB per device (safe up to 37.5 GiB of 39.4 GiB) on 2 x p4d.24xlarge "
        "(16 x A100 40 GB); about 10 h 6 min (between 5 h 7 min and 15 h 5 min) and USD 444 on demand "
        "(between USD 225 and USD 663)."
    )


def test_the_headlines_carry_their_units_and_ranges() -> None:
    shown = plan_lines(plans.plan())

    assert shown[4:9] == [
        "  layout  FSDP 16, batch 14 per device and 224 in all, 2,048 tokens a sequence",
        "  rate    at best 468,933 tokens/s, 29,308 per device, 74.0 % of the peak",
        "  work    20,000 steps, 9.175 B tokens, 3.670 epochs, 6.78e19 FLOP",
        "  time    10 h 6 min, between 5 h 7 min and 15 h 5 min",
        "  cost    USD 444 on demand, between USD 225 and USD 663",
    ]


def test_a_plan_that_short_runs_have_corrected_leads_with_its_prediction() -> None:
    calibration = Calibration(run="s3://b/model/1", machines="16 x A100", factor=0.6, low=0.5, high=0.7)
    plan = replace(plans.plan(), calibration=calibration)

    said = answer_sentence(plan)

    assert "; 5 h 7 min (between 5 h 7 min and 15 h 5 min) and USD 225 on demand (between USD 225" in said
    assert "about" not in said
    assert calibration_sentence(plan) == (
        "Calibrated: rates are the predicted ones times 0.6000, as the training of s3://b/model/1 reached on 16 x A100."
    )
    assert plan.expected_cost == plan.cost.on_demand.predicted
    assert "predicted cost" in cost_lines(plan)[1]
    assert "cost at best" in cost_lines(plans.plan())[1]


def test_every_line_fits_the_terminal_of_a_very_large_run() -> None:
    plan = plans.plan()
    assert plan.search is not None
    first = plan.search.best[0]
    wide = replace(first.layout, data=2_048, shard=128, tensor=8, context=2, pipeline=16)
    large = LayoutOption(
        layout=replace(wide, micro_batch_size=1_024),
        total_bytes=first.total_bytes,
        verdict="fits",
        tokens_per_s_per_device=874.0,
        hours=1_390.4,
        cost=12_687_000.0,
    )
    price = replace(plan.cost.on_demand, predicted=12_687_000.0, low=9e6, high=21e6)

    shown = plan_lines(
        replace(
            plan,
            search=replace(plan.search, best=(large, *plan.search.best)),
            cost=replace(plan.cost, on_demand=price),
            phases=(plan.phases[0], replace(plan.phases[1], tokens_per_s=14_282_400.0)),
        )
    )

    assert max(map(len, shown)) <= 100
    assert [line for line in shown if line != line.rstrip()] == []


def test_the_bar_is_that_of_the_largest_part() -> None:
    barred = [line for line in plan_lines(plans.plan()) if line.endswith("#" * 20)]

    assert [line.split()[0] for line in barred] == ["activations", "matrix"]


def test_the_plans_own_layout_has_a_star() -> None:
    starred = [line for line in plan_lines(plans.plan()) if line.startswith("* ")]

    assert len(starred) == 1
    assert starred[0].startswith("* FSDP 16")
    assert "36.8 GiB" in starred[0]


def test_a_layout_that_differs_in_one_setting_is_not_the_plans_own() -> None:
    plan = plans.plan()
    other = replace(plan.layout.layout, recompute="full")

    shown = plan_lines(replace(plan, layout=replace(plan.layout, layout=other)))

    assert not [line for line in shown if line.startswith("* ")]


def test_why_is_told_and_wrapped() -> None:
    shown = plan_lines(plans.plan())
    start = shown.index("  parallelism: FSDP 16")

    assert shown[start + 1 : start + 3] == [
        "      36.8 GiB, 29,308 tokens/s a device; with a copy of the parameters on each data-parallel",
        "      device 59.9 GiB, does not fit",
    ]


def test_a_plan_that_does_not_fit_says_what_it_would_take() -> None:
    plan = plans.with_memory(1, verdict="no")
    price = replace(plan.cost.on_demand, predicted=None, low=None, high=None)

    said = answer_sentence(replace(plan, cost=replace(plan.cost, on_demand=price)))

    assert said.startswith("Does not fit: 36.8 GiB per device")
    assert said.endswith("it would take about 10 h 6 min (between 5 h 7 min and 15 h 5 min).")


def test_what_is_not_known_is_a_dash_or_left_out() -> None:
    shown = "\n".join(plan_lines(plans.unknown_speed()))

    assert "on 2 x p4d.24xlarge\n(16 x A100 40 GB); \N{EM DASH}.\n" in shown
    assert "None" not in shown
    assert "nan" not in shown
    assert not [text for text in ("Best layouts", "computed in", "Cost", "Prices:") if text in shown]


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    shown = "\n".join(plan_lines(plans.with_text("az\x1b[2J\r\nroot\x07")))

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert shown.startswith("az [2J root. Fits")
