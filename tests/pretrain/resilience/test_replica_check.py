import json
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import DistNetworkError, DistStoreError

from anadil.core.errors import RetryableError
from anadil.model.process_group import Group, peers
from anadil.pretrain import prepare
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.resilience.replica_check import check_replicas, checksum, peers_of
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


def test_numbers_that_changed_places_change_the_checksum() -> None:
    tensor = torch.arange(10_000.0)
    swapped = tensor.clone()
    swapped[[17, 18]] = tensor[[18, 17]]

    assert int(checksum(tensor)) != int(checksum(swapped))


def test_no_number_and_minus_zero_are_bits_too() -> None:
    assert int(checksum(torch.tensor([0.0]))) != int(checksum(torch.tensor([-0.0])))
    assert int(checksum(torch.tensor([float("nan")]))) == int(checksum(torch.tensor([float("nan")])))


def test_a_tensor_that_is_a_view_with_gaps_can_be_summed() -> None:
    tensor = torch.arange(100.0).view(10, 10)

    assert int(checksum(tensor.T)) == int(checksum(tensor.T.contiguous()))


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
