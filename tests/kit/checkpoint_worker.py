"""Processes that train together over gloo, for the tests of checkpoints."""

import os
import signal
import time
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
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint import dcp
from anadil.pretrain.checkpoint.folder import CheckpointFolder, local_folder
from anadil.pretrain.checkpoint.storage import newest_of
from anadil.pretrain.parallel.fsdp import local_part
from anadil.pretrain.state import State

ORIGIN = {"recipe seed": "7"}
MOMENTS = ("step", "exp_avg", "exp_avg_sq")

Work = Callable[[Path, Group], None]


def together(rank: int, work: Work, folder: Path) -> None:
    """Do `work` on each rank of `tests.kit.ranks.in_ranks`; no warning is let through."""
    warnings.simplefilter("error")
    host = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    work(folder, Group(rank=rank, local_rank=rank, size=dist.get_world_size(), host=host))


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
    saved = CheckpointFolder(folder / "shared", group, ORIGIN, 2)
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
    saved = CheckpointFolder(folder / "shared", group, ORIGIN, 2)
    found = saved.newest()
    assert found is not None
    assert found.state.step == 3
    assert found.metadata.state_dict_metadata.keys() == tensors.keys()
    saved.load(found, tensors)
    _assert_same(folder, whole(tensors))
    saved.close()


def load_replicated(folder: Path, group: Group) -> None:
    before = torch.load(folder / "before.pt", weights_only=True)
    tensors = {name: torch.full_like(tensor, 9.0) for name, tensor in before.items()}
    saved = CheckpointFolder(folder / "shared", group, ORIGIN, 2)
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
    local = CheckpointFolder(place, group, ORIGIN, 3, per_process=True)
    durable = CheckpointFolder(folder / "durable", group, ORIGIN, 3)
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
    saved = CheckpointFolder(folder / f"machine-{group.rank}", group, ORIGIN, 3)
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
    saved = CheckpointFolder(folder / "shared", group, ORIGIN, 3)
    saved.save(State(step=1, tokens=0, seconds=0.0), tensors)
    saved.wait()
    if group.rank == 1:
        pytest.MonkeyPatch().setattr(dcp, "write_tensors", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    began = time.monotonic()
    saved.save(State(step=2, tokens=0, seconds=0.0), tensors)
    with pytest.raises(RetryableError, match="step 2 is not written and the one before it is kept"):
        saved.wait()
    assert time.monotonic() - began < 10
    assert [path.name for path in (folder / "shared").iterdir()] == ["step-00000001"]
