import logging
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli.calibrate.runs import (
    default_folder,
    load_measurement,
    load_measurements,
    measurement_path,
    read_logs,
    result_line,
    save_measurement,
    versions,
)
from anadil.core.errors import DataError
from anadil.plan.calibration import device_of
from anadil.plan.cpu_speed import cpu_model
from anadil.plan.instances import machine
from tests.kit.calibration import LAYOUT, WORK, measurement


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    one = measurement()

    save_measurement(one, tmp_path / "runs")

    again = measurement_path(replace(one, status="out of memory", step_s=None), tmp_path / "runs")
    assert load_measurement(again) == one
    assert load_measurements(tmp_path / "runs") == [one]


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "A100 80 GB"},
        {"layout": replace(LAYOUT, recompute="none")},
        {"work": replace(WORK, trains="embeddings")},
        {"versions": versions() | {"torch": "2.99.0"}},
    ],
)
def test_another_device_layout_work_or_version_is_another_measurement(
    changed: dict[str, object], tmp_path: Path
) -> None:
    save_measurement(measurement(), tmp_path)

    assert load_measurement(measurement_path(measurement(**changed), tmp_path)) is None


def test_a_damaged_file_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = measurement()
    save_measurement(one, tmp_path)
    path = measurement_path(one, tmp_path)
    path.write_text(path.read_text()[:100])

    assert load_measurements(tmp_path) == []
    assert f"{path}: not a measurement (damaged, or of another version); it is not used" in caplog.text


def test_a_place_that_cannot_be_written_costs_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")

    save_measurement(measurement(), tmp_path / "file" / "runs")

    assert "the measurement cannot be saved" in caplog.text


def test_measurements_lie_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANADIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert default_folder() == tmp_path / "anadil" / "measurements"


def test_a_cpu_is_named_by_its_model(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7R13\n")

    assert cpu_model(info) == "AMD EPYC 7R13"
    assert cpu_model(tmp_path / "none")
    assert device_of(machine("p5.48xlarge")) == "H100"
    assert "+" not in versions()["torch"]  # nor does the build of torch count


def test_results_are_found_in_what_kubectl_printed(tmp_path: Path) -> None:
    one, other = measurement(), measurement(work=replace(WORK, trains="embeddings"))
    log = tmp_path / "job.log"
    log.write_text(
        '{"ts":"2026-01-01T00:00:00Z","msg":"starting"}\nNCCL version 2.27\n'
        f"[pod/anadil-measure-1-worker-0/pytorch] 2026-01-01T00:00:01Z {result_line([one, other])}\nbye\n"
    )

    found = read_logs([log], tmp_path / "runs")

    assert found == [one, other]
    assert {each.work.trains for each in load_measurements(tmp_path / "runs")} == {"all", "embeddings"}


def test_a_log_without_results_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "job.log"
    log.write_text(result_line([measurement()])[:-30])

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(DataError, match="holds no results; give what `kubectl"),
    ):
        read_logs([log], tmp_path)

    assert "a line of results cannot be read" in caplog.text
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_logs([tmp_path / "none"], tmp_path)
