import json
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from anadil.cli.calibrate.runs import (
    MARK,
    RunSpec,
    load_measurements,
    measure_layouts,
    results_in,
    run_spec,
    spec_from,
)
from anadil.core.errors import RecipeError
from anadil.plan.calibration import Measurement, calibrate, device_of
from anadil.plan.instances import machine, this_machine
from anadil.plan.layout import Layout
from tests.kit.calibration import LAYOUT, SHAPE, WORK, recipe
from tests.kit.ranks import Fork, run_module

HERE = this_machine()
pytestmark = pytest.mark.skipif(HERE.device != "CPU", reason="expects a machine without a GPU")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def measured(runs: Path) -> list[Measurement]:
    os.environ["OMP_NUM_THREADS"] = "1"
    return measure_layouts(specs(LAYOUT), HERE, runs)


SPEC = run_spec(LAYOUT, recipe("all"), SHAPE, WORK, "CPU, of a test", steps=1)


def specs(layout: Layout, *kinds: str, steps: int = 2) -> list[RunSpec]:
    return [run_spec(layout, recipe(*kinds), SHAPE, WORK, device_of(HERE), steps=steps)]


@pytest.mark.slow
def test_each_phase_kind_is_measured_on_the_real_trainer(measured: list[Measurement]) -> None:
    assert [each.work.trains for each in measured] == ["embeddings", "all"]
    for each in measured:
        assert (each.status, each.layout, each.shape, each.steps) == ("ok", LAYOUT, SHAPE, 2)
        assert each.device == device_of(HERE)
        assert each.step_s is not None
        assert each.tokens_per_s_per_device == pytest.approx(4 * 16 / each.step_s)
        assert each.allocated_bytes is None


@pytest.mark.slow
def test_measurements_calibrate_predictions(measured: list[Measurement]) -> None:
    found = calibrate(measured, HERE, SHAPE)

    assert found is not None
    assert len(found.runs) == 2
    assert 0 < found.low <= found.factor <= found.high


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(
    measured: list[Measurement], runs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("anadil.cli.calibrate.runs.QUIET", 1e9)  # whatever else this machine did meanwhile

    again = measure_layouts(specs(LAYOUT), HERE, runs, timeout_s=0.01)

    assert again == measured
    assert len(load_measurements(runs)) == 2
    assert "1 of 1): measured before" in caplog.text


def test_a_run_that_takes_too_long_is_no_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert measure_layouts(specs(LAYOUT, "all"), HERE, tmp_path, timeout_s=0.2) == []

    assert "not done after 0.2 s" in caplog.text
    assert load_measurements(tmp_path) == []


def test_what_cannot_run_here_is_left_out_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    p5 = machine("p5.48xlarge")

    assert measure_layouts(specs(Layout(data=8)), p5, tmp_path) == []
    assert measure_layouts(specs(Layout(data=2)), HERE, tmp_path) == []

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "DDP 8 is not measured: this machine has CPU, not H100; measure on a p5.48xlarge by its jobs",
        "DDP 2 is not measured: it takes 2 devices and this machine has 1; measure by its jobs",
    ]


@pytest.mark.slow
def test_two_processes_measure_together(tmp_path: Path) -> None:
    words = ("anadil.cli.calibrate", replace(SPEC, layout=replace(LAYOUT, data=2)).as_json())
    code = Fork(partial(run_module, *words), tmp_path / "log").wait()

    told = (tmp_path / "log").read_text(encoding="utf-8")
    assert code == 0, told
    assert told.count(MARK) == 1
    (one,) = results_in(told)
    assert one.step_s is not None
    assert one.tokens_per_s_per_device == pytest.approx(4 * 16 / one.step_s)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no", "no: the JSON: Invalid JSON"),
        ("{}", "layout: is missing"),
        (replace(SPEC, steps=0).as_json(), "steps 0: time at least one step"),
    ],
)
def test_a_wrong_argument_is_told(text: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        spec_from(text)

    assert says in str(caught.value)


def test_the_argument_and_what_it_asks_for_are_the_same() -> None:
    spec = spec_from(SPEC.as_json())

    assert spec_from(spec.as_json()) == spec
    assert (spec.layout, spec.shape, spec.work, spec.trains) == (LAYOUT, SHAPE, WORK, ("all",))
    assert json.loads(SPEC.as_json())["layout"]["recompute"] == "full"
