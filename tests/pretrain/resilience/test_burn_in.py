import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import PreflightError, RetryableError
from anadil.model.process_group import Group
from anadil.pretrain.resilience import burn_in as tests
from anadil.pretrain.resilience.burn_in import (
    BurnInResult,
    burn_in,
    burn_in_enabled,
    refuse_failed,
    slow,
    summary,
)

CPU = torch.device("cpu")


def found(rank: int, **more: Any) -> BurnInResult:
    return BurnInResult(rank=rank, host=f"node-{rank}", **{"device": "NVIDIA H100", "digest": 5, **more})


@pytest.mark.parametrize(
    ("setting", "device", "expected"),
    [("auto", "cpu", False), ("auto", "cuda", True), ("always", "cpu", True), ("never", "cuda", False)],
)
def test_auto_tests_gpus_only(setting: Any, device: str, expected: bool) -> None:
    assert burn_in_enabled(setting, torch.device(device)) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sound_machine_passes_and_leaves_nothing_behind(
    tmp_path: Path, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        [result] = burn_in(Group(), CPU, dtype, tmp_path, str(tmp_path / "archive"))

    assert not result.wrong
    assert not result.retry
    assert set(result.rates) == {"matmul", "disk"}
    assert min(result.rates.values()) > 0
    assert "burn-in: 1 process, matmul " in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_device_that_multiplies_wrongly_is_named_and_the_job_started_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tests.TOLERANCE, torch.float32, 0.0)

    with pytest.raises(RetryableError) as caught:
        burn_in(Group(), CPU, torch.float32, tmp_path)

    text = str(caught.value)
    assert text.startswith("burn-in: rank 0 on ")
    assert "CPU multiplies wrongly (relative error " in text
    assert "Take that node out of service and run the same command again" in text


def test_the_machine_s_own_disk_is_tested_too_and_made_as_its_first_checkpoint_would(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()

    [result] = burn_in(Group(), CPU, torch.float32, tmp_path / "work", local=tmp_path / "nvme/anadil")

    assert set(result.rates) == {"matmul", "disk", "local disk"}
    assert "local disk " in summary([result])
    assert list((tmp_path / "nvme").rglob("*")) == [tmp_path / "nvme/anadil"]


@pytest.mark.parametrize(
    ("work", "places", "words"),
    [
        ("none", {}, r"/.*/none: cannot be written .*No such file"),
        ("", {"local": "file"}, r".*/file: cannot be written .*choose another pretrain.copies.local_path"),
        ("", {"archive": "file"}, r"pretrain.copies.archive: .*file"),
        ("", {"archive": "s3://none-such-bucket/archive"}, r"pretrain\.copies\.archive: .*none-such"),
    ],
)
def test_a_place_that_cannot_be_written_is_for_somebody_to_mend(
    tmp_path: Path, bucket: str, work: str, places: dict[str, str], words: str
) -> None:
    (tmp_path / "file").touch()
    given: Any = {key: uri if "://" in uri else tmp_path / uri for key, uri in places.items()}
    given |= {"archive": str(given["archive"])} if "archive" in given else {}

    with pytest.raises(PreflightError, match=f"rank 0 on .*: {words}"):
        burn_in(Group(), CPU, torch.float32, tmp_path / work, **given)


def test_the_archive_may_be_a_bucket(tmp_path: Path, bucket: str) -> None:
    [result] = burn_in(Group(), CPU, torch.float32, tmp_path, f"{bucket}/archive")

    assert not result.wrong


def test_the_device_with_another_product_than_equal_ones_is_named() -> None:
    results = [found(0), found(1, digest=6), found(2), found(3, device="NVIDIA A100", digest=7)]

    with pytest.raises(RetryableError) as caught:
        refuse_failed(results)

    assert "rank 1 on node-1: NVIDIA H100 gives another product than the NVIDIA H100 of the other" in str(
        caught.value
    )
    assert "node-3" not in str(caught.value)


def test_a_slow_device_is_a_warning() -> None:
    rates = [100.0, 98.0, 40.0, 101.0]

    lines = slow([found(rank, rates={"matmul": rate}) for rank, rate in enumerate(rates)])

    assert lines == [
        "rank 2 on node-2 is slow: matmul 40 TFLOP/s, the median is 99; it will hold up all others"
    ]


def test_the_summary_has_the_median_of_each_test() -> None:
    results = [found(0, rates={"matmul": 700.0, "all-reduce": 300.0}), found(1, rates={"matmul": 710.0})]

    assert summary(results) == "2 processes, matmul 705 TFLOP/s, all-reduce 300 GB/s"
