import math
from dataclasses import replace

import pytest

from anadil.plan.calibration import Measurement, Prediction, calibrate, predicted
from anadil.plan.instances import machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import peak_memory
from anadil.plan.speed import speed
from tests.kit.plans import ONE

LAYOUT = Layout(data=8, micro_batch_size=4)
P5 = machine("p5.48xlarge")
RUN = Measurement(
    status="ok",
    device="H100",
    shape=ONE,
    layout=LAYOUT,
    work=Work(sequence_length=2_048),
    versions={"torch": "2.13.0"},
    step_s=1.0,
    tokens_per_s_per_device=8_000.0,
    allocated_bytes=40_000,
    reserved_bytes=45_000,
)


def predict(_: Measurement) -> Prediction:
    return Prediction(tokens_per_s_per_device=10_000.0, allocated_bytes=39_000)


def test_nothing_measured_changes_nothing() -> None:
    others = [
        replace(RUN, device="A100 80 GB"),
        replace(RUN, shape=replace(ONE, layers=17)),
        replace(RUN, status="out of memory", tokens_per_s_per_device=None),
    ]

    assert calibrate([], predict, device="H100", shape=ONE) is None
    assert calibrate(others, predict, device="H100", shape=ONE) is None


def test_the_factor_is_the_geometric_mean_and_the_range_that_of_the_runs() -> None:
    runs = [RUN, replace(RUN, tokens_per_s_per_device=5_000.0)]

    found = calibrate([*runs, replace(RUN, device="A100 80 GB")], predict, device="H100", shape=ONE)

    assert found is not None
    assert (found.measured, found.low, found.high) == (2, 0.5, 0.8)
    assert math.isclose(found.factor, math.sqrt(0.5 * 0.8))


def test_memory_is_compared_for_each_run() -> None:
    on_cpu = replace(RUN, allocated_bytes=None, reserved_bytes=None, rss_rise_bytes=38_000)
    silent = replace(on_cpu, rss_rise_bytes=None)

    found = calibrate([RUN, on_cpu, silent], predict, device="H100", shape=ONE)

    assert found is not None
    assert [each.memory_difference_bytes for each in found.compared] == [1_000, -1_000, None]
    row = found.as_dict()["runs"][0]
    assert (row["memory_bytes"], row["predicted_memory_bytes"]) == (40_000, 39_000)


def test_a_perfect_prediction_has_the_factor_one() -> None:
    rate = speed(ONE, LAYOUT, RUN.work, P5, 1).tokens_per_s_per_device
    run = replace(RUN, tokens_per_s_per_device=rate)

    found = calibrate([run], lambda each: predicted(each, P5), device="H100", shape=ONE)

    assert found is not None
    assert (found.factor, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.compared[0].prediction.allocated_bytes == peak_memory(ONE, LAYOUT, run.work).allocated


def test_a_run_on_two_machines_is_predicted_for_two() -> None:
    run = replace(RUN, layout=replace(LAYOUT, data=16))

    assert predicted(run, P5).tokens_per_s_per_device < predicted(RUN, P5).tokens_per_s_per_device
