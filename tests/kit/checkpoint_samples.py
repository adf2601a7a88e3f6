"""Checkpoints of one process with tensors that their step decides, for the tests of checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from anadil.pretrain.state import State

ORIGIN = {"recipe seed": "7", "input tokens": "abc"}
NAME = "model.embed_tokens.weight"

Make = Callable[..., CheckpointFolder]


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    """Parameters and moments as training has them after a step."""
    random_numbers = torch.Generator().manual_seed(step)
    weight = torch.randn(12, 4, generator=random_numbers)
    return {
        NAME: weight,
        "model.norm.weight": torch.randn(4, generator=random_numbers).bfloat16(),
        f"step {NAME}": torch.tensor(float(step)),
        f"exp_avg {NAME}": weight * 0.1,
        f"exp_avg_sq {NAME}": weight.square(),
    }


def state_of(step: int) -> State:
    return State(step=step, tokens=step * 100, seconds=step / 2)


def save(checkpoints: CheckpointFolder, *steps: int) -> None:
    for step in steps:
        checkpoints.save(state_of(step), tensors_of(step))
    checkpoints.wait()


def loaded(checkpoints: CheckpointFolder) -> tuple[State, dict[str, torch.Tensor]]:
    found = checkpoints.newest()
    assert found is not None
    tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(0).items()}
    checkpoints.load(found, tensors)
    return found.state, tensors


def assert_newest(checkpoints: CheckpointFolder, step: int) -> None:
    state, tensors = loaded(checkpoints)
    assert state == state_of(step)
    expected = tensors_of(step)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def maker(folder: Path) -> Iterator[Make]:
    """Makes `CheckpointFolder` of one process, and closes them: the body of a fixture."""
    made = []

    def build(
        origin: dict[str, str] = ORIGIN, keep: int = 3, place: Path = folder, **more: Any
    ) -> CheckpointFolder:
        made.append(CheckpointFolder(place, Group(), origin, keep, **more))
        return made[-1]

    yield build
    for checkpoints in made:
        checkpoints.close()
