import json
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from anadil.cli.calibrate.local import measure_layouts
from anadil.cli.calibrate.results import MARK, device_of, load_measurements, results_in
from anadil.cli.calibrate.spec import RunSpec, as_json
from anadil.core.errors import RecipeError
from anadil.plan.calibration import Measurement, calibrate, predicted
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
    return measure_layouts([LAYOUT], recipe(), SHAPE, WORK, HERE, runs=runs, steps=2)


def command(*more: str) -> list[str]:
    spec = RunSpec.of(LAYOUT, recipe("all"), SHAPE, WORK, "CPU, of a test", steps=1)
    return [sys.executable, "-m", "anadil.cli.calibrate", *spec.arguments(), *more]


@pytest.mark.slow
def test_each_phase_kind_is_measured_on_the_real_trainer(measured: list[Measurement]) -> None:
    assert [each.work.trains for each in measured] == ["embeddings", "all"]
    for each in measured:
        assert (each.status, each.layout, each.shape, each.steps) == ("ok", LAYOUT, SHAPE, 2)
        assert each.device == device_of(HERE)
        assert each.step_s is not None
        assert each.tokens_per_s_per_device == pytest.approx(4 * 16 / each.step_s)
        assert (each.allocated_bytes, each.reserved_bytes) == (None, None)
        assert each.rss_rise_bytes


@pytest.mark.slow
def test_measurements_calibrate_predictions(measured: list[Measurement]) -> None:
    found = calibrate(measured, lambda each: predicted(each, HERE), device=device_of(HERE), shape=SHAPE)

    assert found is not None
    assert found.measured == 2
    assert 0 < found.low <= found.factor <= found.high


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(
    measured: list[Measurement], runs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("anadil.cli.calibrate.local.QUIET", 1e9)  # whatever else this machine did meanwhile

    again = measure_layouts([LAYOUT], recipe(), SHAPE, WORK, HERE, runs=runs, steps=2, timeout_s=0.01)

    assert again == measured
    assert len(load_measurements(runs)) == 2
    assert "1 of 1): measured before" in caplog.text


def test_a_run_that_takes_too_long_is_a_result_and_not_kept(tmp_path: Path) -> None:
    found = measure_layouts([LAYOUT], recipe("all"), SHAPE, WORK, HERE, runs=tmp_path, timeout_s=0.2)

    assert [(each.status, each.message) for each in found] == [("timeout", "not done after 0.2 s")]
    assert load_measurements(tmp_path) == []


def test_what_cannot_run_here_is_left_out_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    p5 = machine("p5.48xlarge")

    assert measure_layouts([Layout(data=8)], recipe(), SHAPE, WORK, p5, runs=tmp_path) == []
    assert measure_layouts([Layout(data=2)], recipe(), SHAPE, WORK, HERE, runs=tmp_path) == []
    assert measure_layouts([LAYOUT], recipe(), SHAPE, replace(WORK, loss="logits"), HERE, runs=tmp_path) == []

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "DDP 8 is not measured: this machine has CPU, not H100; measure on a p5.48xlarge by its jobs",
        "DDP 2 is not measured: it takes 2 devices and this machine has 1; measure by its jobs",
        "one device is not measured: this version's trainer never holds all logits",
    ]


@pytest.mark.slow
def test_two_processes_measure_together(tmp_path: Path) -> None:
    words = command("--layout", as_json(replace(LAYOUT, data=2)))[2:]
    code = Fork(partial(run_module, *words), tmp_path / "log").wait()

    told = (tmp_path / "log").read_text(encoding="utf-8")
    assert code == 0, told
    assert told.count(MARK) == 1
    (one,) = results_in(told)
    assert one.step_s is not None
    assert one.tokens_per_s_per_device == pytest.approx(4 * 16 / one.step_s)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--layout", '{"micro_batch": 4}'], '--layout {"micro_batch": 4}: micro_batch: Unexpected'),
        (["--layout", "no"], "--layout no: all of it: Invalid JSON"),
        (["--work", '{"trains": "all"}'], "sequence_length: is missing"),
        (["--steps", "0"], "--steps 0: time at least one step"),
    ],
)
def test_a_wrong_command_line_is_told(more: list[str], says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        RunSpec.parse([*command()[3:], *more])

    assert says in str(caught.value)


def test_the_command_line_and_what_it_asks_for_are_the_same() -> None:
    spec = RunSpec.parse(command()[3:])

    assert RunSpec.parse(spec.arguments()) == spec
    assert spec.trains == ("all",)
    assert json.loads(as_json(spec.layout))["recompute"] == "full"


def test_left_out_the_shape_is_that_of_the_recipe() -> None:
    spec = RunSpec.parse(["--recipe", "azerbaijani-1b", "--layout", "{}"])

    assert (spec.shape.hidden, spec.shape.vocabulary) == (2_048, 100_096)  # a multiple of 128
    assert (spec.work, spec.trains) == (None, ("embeddings", "all"))
