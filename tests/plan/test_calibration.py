import math
from dataclasses import replace

import pytest

from anadil.plan.calibration import Measurement, calibrate
from anadil.plan.instances import machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import peak_memory
from anadil.plan.speed import speed
from tests.kit.plans import ONE

LAYOUT = Layout(data=8, micro_batch_size=4)
WORK = Work(sequence_length=2_048)
P5 = machine("p5.48xlarge")
RATE = speed(ONE, LAYOUT, WORK, P5, 1).tokens_per_s_per_device
RUN = Measurement(
    status="ok",
    device="H100",
    shape=ONE,
    layout=LAYOUT,
    work=WORK,
    versions={"torch": "2.13.0"},
    step_s=1.0,
    tokens_per_s_per_device=0.8 * RATE,
    allocated_bytes=40_000,
)


def test_nothing_measured_changes_nothing() -> None:
    others = [
        replace(RUN, device="A100 80 GB"),
        replace(RUN, shape=replace(ONE, layers=17)),
        replace(RUN, status="out of memory", tokens_per_s_per_device=None),
    ]

    assert calibrate([], P5, ONE) is None
    assert calibrate(others, P5, ONE) is None


def test_the_factor_is_the_geometric_mean_and_the_range_that_of_the_runs() -> None:
    runs = [RUN, replace(RUN, tokens_per_s_per_device=0.5 * RATE), replace(RUN, device="A100 80 GB")]

    calibration = calibrate(runs, P5, ONE)

    assert calibration is not None
    assert len(calibration.runs) == 2
    assert (calibration.low, calibration.high) == pytest.approx((0.5, 0.8))
    assert calibration.factor == pytest.approx(math.sqrt(0.5 * 0.8))


def test_memory_is_compared_for_each_run() -> None:
    calibration = calibrate([RUN, replace(RUN, allocated_bytes=None)], P5, ONE)

    assert calibration is not None
    expected = peak_memory(ONE, LAYOUT, WORK).allocated
    row, silent = calibration.as_dict()["runs"]
    assert (row["memory_bytes"], row["predicted_memory_bytes"]) == (40_000, expected)
    assert (row["memory_difference_bytes"], silent["memory_difference_bytes"]) == (40_000 - expected, None)


def test_a_run_on_two_machines_is_predicted_for_two() -> None:
    run = replace(RUN, layout=replace(LAYOUT, data=16), tokens_per_s_per_device=RATE)

    calibration = calibrate([run], P5, ONE)

    assert calibration is not None
    assert calibration.low > 1  # two machines talk over the network
