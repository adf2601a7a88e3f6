"""Processes that train together over gloo, for the tests of checkpoints.

python checkpoint_worker.py SCENARIO FOLDER

One process loads torch and forks the ranks, before it has any thread.
"""

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from anadil.core.errors import PreflightError, RetryableError
from anadil.pretrain.checkpoint import manager
from anadil.pretrain.checkpoint.dcp import local_part
from anadil.pretrain.checkpoint.manager import CheckpointManager, local_folder
from anadil.pretrain.checkpoint.state import State
from anadil.pretrain.checkpoint.tiers import newest_of
from anadil.pretrain.parallel.process_group import Group

ORIGIN = {"recipe seed": "7"}
MOMENTS = ("step", "exp_avg", "exp_avg_sq")

Work = Callable[[Path, Group], None]


def in_ranks(size: int, folder: Path, work: Work, *, killed: int | None = None) -> None:
    """Do `work` in `size` forks; every one but `killed` has to succeed."""
    rendezvous = folder / f"rendezvous-{time.monotonic_ns()}"
    children = [os.fork() or _rank(rank, size, rendezvous, folder, work) for rank in range(size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    wanted = [-signal.SIGKILL if rank == killed else 0 for rank in range(size)]
    assert codes == wanted, f"{work.__name__} on {size}: {codes}"


def _rank(rank: int, size: int, rendezvous: Path, folder: Path, work: Work) -> int:
    try:
        warnings.simplefilter("error")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
        host = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        work(folder, Group(rank=rank, local_rank=rank, size=size, host=host))
    except BaseException:  # noqa: BLE001  nothing may leave the fork
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model with odd shapes, after two optimizer steps on gradients out of its weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(13, 6), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.sin(parameter.detach() * 3)
        optimizer.step()
    return model, optimizer


def content(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and moments by name."""
    named = dict(model.named_parameters())
    moments = {
        f"{moment} {name}": optimizer.state[parameter][moment]
        for name, parameter in named.items()
        for moment in MOMENTS
    }
    return {**named, **moments}


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor as one process would hold it."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }


def save_sharded(folder: Path, group: Group) -> None:
    tensors = content(*model_and_optimizer(seed=1))
    before = {name: tensor.detach().clone() for name, tensor in whole(tensors).items()}
    saved = CheckpointManager(folder / "shared", group, ORIGIN, 2)
    assert saved.newest() is None
    saved.save(State(step=3, tokens=30, seconds=1.0), tensors)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()  # training goes on: what is written must be the copy
    saved.close()
    if group.is_first:
        torch.save(before, folder / "before.pt")


def load_sharded(folder: Path, group: Group) -> None:
    tensors = content(*model_and_optimizer(seed=2))
    saved = CheckpointManager(folder / "shared", group, ORIGIN, 2)
    found = saved.newest()
    assert found is not None
    assert found.state.step == 3
    assert found.names == tensors.keys()
    saved.load(found, tensors)
    _assert_same(folder, whole(tensors))
    saved.close()


def load_replicated(folder: Path, group: Group) -> None:
    before = torch.load(folder / "before.pt", weights_only=True)
    tensors = {name: torch.full_like(tensor, 9.0) for name, tensor in before.items()}
    saved = CheckpointManager(folder / "shared", group, ORIGIN, 2)
    found = saved.newest()
    assert found is not None
    saved.load(found, tensors)
    _assert_same(folder, tensors)
    saved.close()


def _assert_same(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    before = torch.load(folder / "before.pt", weights_only=True)
    assert before.keys() == tensors.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, tensors[name]), name


def own_disks(folder: Path, group: Group) -> None:
    """Each rank on a disk of its own; one loses a checkpoint, then all but an old one."""
    tensors = content(*model_and_optimizer(seed=1))
    place = local_folder(folder / f"disk-{group.rank}", ORIGIN, "shard 2", group)
    local = CheckpointManager(place, group, ORIGIN, 3, own=True)
    durable = CheckpointManager(folder / "durable", group, ORIGIN, 3)
    expected = {}
    for step in (2, 4, 6):
        with torch.no_grad():
            tensors["0.weight"].add_(1.0)
        expected[step] = tensors["0.weight"].detach().clone()
        local.save(State(step=step, tokens=0, seconds=0.0), tensors)
        if step == 2:
            durable.save(State(step=step, tokens=0, seconds=0.0), tensors)
    local.wait()
    durable.wait()
    if group.rank == 1:
        file = place / "step-00000006" / "__0_0.distcp"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    best = newest_of([local, durable])
    assert best is not None
    assert best[0] is local
    assert best[1].state.step == 4
    local.load(best[1], tensors)
    assert torch.equal(local_part(tensors["0.weight"]), local_part(expected[4]))
    assert (place / "step-00000006.damaged").exists() == (group.rank == 1)
    group.wait()
    if group.rank == 0:
        (place / "step-00000004").rename(place / "gone")
        (place / "step-00000002").rename(place / "gone-too")
    best = newest_of([local, durable])
    assert best is not None
    assert best[0] is durable
    durable.load(best[1], tensors)
    assert torch.equal(local_part(tensors["0.weight"]), local_part(expected[2]))
    local.close()
    durable.close()


def disk_not_shared(folder: Path, group: Group) -> None:
    """A directory that is another one on each node: said at the first save."""
    saved = CheckpointManager(folder / f"machine-{group.rank}", group, ORIGIN, 3)
    tensors = content(*model_and_optimizer(seed=1))
    saved.save(State(step=1, tokens=0, seconds=0.0), tensors)
    with pytest.raises(PreflightError, match=r"put storage\.root on a file system that all nodes share"):
        saved.wait()
    group.wait()
    assert not list((folder / "machine-0").iterdir())
    saved.close()


def killed_writer(folder: Path, group: Group) -> None:
    """Rank 1 dies while it writes; rank 0 says so soon, and the checkpoint before is left."""
    tensors = content(*model_and_optimizer(seed=1))
    saved = CheckpointManager(folder / "shared", group, ORIGIN, 3)
    saved.save(State(step=1, tokens=0, seconds=0.0), tensors)
    saved.wait()
    if group.rank == 1:
        pytest.MonkeyPatch().setattr(
            manager, "write_tensors", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
    started = time.monotonic()
    saved.save(State(step=2, tokens=0, seconds=0.0), tensors)
    with pytest.raises(RetryableError, match="step 2 is not written and the one before it is kept"):
        saved.wait()
    print(f"abort latency: {time.monotonic() - started:.2f} s")
    assert time.monotonic() - started < 10
    assert [path.name for path in (folder / "shared").iterdir()] == ["step-00000001"]


def main(scenario: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if scenario == "reshard":
        in_ranks(2, folder, save_sharded)
        in_ranks(1, folder, load_sharded)
        in_ranks(4, folder, load_sharded)
        in_ranks(2, folder, load_replicated)
    else:
        in_ranks(2, folder, own_disks)
        in_ranks(2, folder, disk_not_shared)
        in_ranks(2, folder, killed_writer, killed=1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
