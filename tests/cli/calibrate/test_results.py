import logging
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli.calibrate.runs import (
    default_folder,
    find_measurement,
    keep_measurement,
    load_measurements,
    measurement_key,
    read_logs,
    result_line,
    versions,
)
from anadil.core.errors import DataError
from anadil.plan.calibration import device_of
from anadil.plan.cpu_speed import cpu_model
from anadil.plan.instances import machine
from tests.kit.calibration import LAYOUT, WORK, measurement


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    one = measurement()

    keep_measurement(one, tmp_path / "runs")

    assert find_measurement(replace(one, status="out of memory", step_s=None), tmp_path / "runs") == one
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
    keep_measurement(measurement(), tmp_path)

    assert find_measurement(measurement(**changed), tmp_path) is None


def test_a_damaged_file_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = measurement()
    keep_measurement(one, tmp_path)
    path = tmp_path / f"{measurement_key(one)}.json"
    path.write_text(path.read_text()[:100])

    found = find_measurement(one, tmp_path)

    assert (found, load_measurements(tmp_path)) == (None, [])
    assert f"{path}: no measurement (damaged, or of another version); it is not used" in caplog.text


def test_a_place_that_cannot_be_written_costs_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")

    keep_measurement(measurement(), tmp_path / "file" / "runs")

    assert "the measurement cannot be saved" in caplog.text


def test_the_folder_follows_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANADIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "anadil" / "measurements"

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "anadil" / "measurements"


def test_a_cpu_is_named_by_its_model(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7R13\n")

    assert cpu_model(info) == "AMD EPYC 7R13"
    assert cpu_model(tmp_path / "none")
    assert device_of(machine("p5.48xlarge")) == "H100"


def test_the_build_of_torch_is_no_other_version() -> None:
    assert "+" not in versions()["torch"]


def test_results_are_found_in_what_kubectl_printed(tmp_path: Path) -> None:
    one, other = measurement(), measurement(work=replace(WORK, trains="embeddings"))
    log = tmp_path / "job.log"
    log.write_text(
        '{"ts":"2026-01-01T00:00:00Z","msg":"starting"}\nNCCL version 2.27\n'
        f"[pod/anadil-measure-1-worker-0/pytorch] 2026-01-01T00:00:01Z {result_line([one, other])}\nbye\n"
    )

    found = read_logs([log], tmp_path / "runs")

    assert found == [one, other]
    assert sorted(load_measurements(tmp_path / "runs"), key=measurement_key) == sorted(
        found, key=measurement_key
    )


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
