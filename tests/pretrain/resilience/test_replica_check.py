import json
import logging
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import DistNetworkError, DistStoreError

from anadil.core.errors import PreflightError, RetryableError
from anadil.model.process_group import Group, peers
from anadil.pretrain import prepare
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.resilience import burn_in as tests
from anadil.pretrain.resilience.burn_in import (
    BurnInResult,
    burn_in,
    burn_in_enabled,
    check_replicas,
    checksum,
    peers_of,
    refuse_failed,
    slow,
    summary,
)
from anadil.pretrain.run import run
from tests.pretrain.resilience.test_watchdog import start, told_by


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("num", [1, 4_096, 10_001])
def test_every_single_flipped_bit_changes_the_checksum(dtype: torch.dtype, num: int) -> None:
    tensor = (torch.arange(num) % 97).to(dtype)
    before = int(checksum(tensor))
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.view(integer)
    found = []

    for place in {0, num // 2, num - 1}:
        for bit in range(8 * tensor.element_size() - 1):
            bits[place] ^= 1 << bit
            found.append(int(checksum(tensor)))
            bits[place] ^= 1 << bit

    assert before not in found
    assert int(checksum(tensor)) == before


def test_places_signs_and_no_number_are_bits_too_and_gaps_of_a_view_are_not() -> None:
    tensor = torch.arange(10_000.0)
    swapped = tensor.clone()
    swapped[[17, 18]] = tensor[[18, 17]]

    assert int(checksum(tensor)) != int(checksum(swapped))
    assert int(checksum(torch.tensor([0.0]))) != int(checksum(torch.tensor([-0.0])))
    assert int(checksum(torch.tensor([float("nan")]))) == int(checksum(torch.tensor([float("nan")])))
    view = torch.arange(100.0).view(10, 10).T
    assert int(checksum(view)) == int(checksum(view.contiguous()))


def test_one_process_has_nothing_to_compare() -> None:
    assert peers_of(Mesh()) == []

    check_replicas({"a": torch.ones(3)}, [], Group(), step=1)


def test_an_error_of_ones_own_is_not_laid_to_others() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), peers(0):
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize(
    "error",
    [
        DistStoreError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
        DistNetworkError("failed to recv, got 0 bytes"),
        RuntimeError("Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc] Connection refused"),
        RuntimeError("Broken pipe"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_machine_that_is_gone_while_the_processes_meet_is_no_bug(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet(_: torch.device) -> None:
        raise error

    monkeypatch.setattr(prepare, "group", meet)
    monkeypatch.setattr(prepare, "uses_liger", lambda *_: False)
    monkeypatch.setenv("RANK", "1")

    with pytest.raises(RetryableError, match="rank 1 has lost another process of the job"):
        run(Mock())


def test_a_broken_gpu_is_named_and_the_run_may_be_started_again() -> None:
    with (
        pytest.raises(
            RetryableError, match=r"rank 3 on .*: the GPU failed .*uncorrectable ECC.*out of service"
        ),
        peers(3),
    ):
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCompile with")


def test_a_programs_own_error_on_a_gpu_stays_a_bug() -> None:
    with pytest.raises(torch.AcceleratorError), peers(3):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


@pytest.mark.slow
def test_three_processes_agree_on_who_is_wrong(tmp_path: Path) -> None:
    processes = start("checked", tmp_path, 3)

    told = [told_by(each) for each in processes]

    assert processes[2].poll() == -signal.SIGKILL, told
    said, other = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1))
    assert {name: said[name] for name in said if name != "lost"} == {
        name: other[name] for name in other if name != "lost"
    }
    assert said["equal"] == "fine: None"
    assert said["one"].startswith("5: silent corruption: after step 200 the parameters of rank 1 on ")
    assert "differ from the 2 other copies at model.norm.weight (1 of 3 tensors)" in said["one"]
    assert "Take that node out of service" in said["one"]
    assert "differ at model.norm.weight (1 of 3 tensors), and none of them has a majority" in said["each"]
    assert said["two groups"] == "fine: None"
    assert said["burn-in"].startswith("fine: 3 processes, matmul ")
    assert "all-reduce" in said["burn-in"]
    assert said["micro-batch"] == "fine: 3"
    for one in (said, other):
        assert one["lost"].startswith("138: rank ")
        assert "has lost another process of the job (" in one["lost"]


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
