"""The gradient's length over all processes, whatever the layout of its parts."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from anadil.pretrain.parallel.mesh import Mesh

MARGIN = 1e-6
"""Added to the norm before dividing. Source: torch.nn.utils.clip_grad_norm_."""

# One kernel for many tensors, as in clip_grad_norm_; neither has a public name.
_scale_all_: Any = torch._foreach_mul_
_norms_of_all: Any = torch._foreach_norm  # noqa: SLF001


@torch.no_grad()
def clip_gradients_(parameters: Iterable[torch.nn.Parameter], max_norm: float, mesh: Mesh) -> float:
    """Scale gradients in place so that their common norm is at most `max_norm`; the norm before.

    Each process passes the parameters of its stage, whose gradients are summed over the batch
    already: plain tensors are equal on every process of the stage, DTensors lie as they say. One
    number is exchanged. Where the norm is no number, the gradients stay as they are.

    Args:
        parameters: Parameters, tied ones once; those without a gradient are passed over.
        max_norm: `pretrain.max_grad_norm`.
        mesh: Where this process stands.
    """
    gradients = []
    copies = []
    for parameter in parameters:
        if parameter.grad is not None:
            gradient, shards = _local(parameter)
            gradients.append(gradient)
            copies.append(_stage_size(mesh) / shards)
    norm = math.sqrt(_sum_of_squares(gradients, copies, mesh))
    if norm + MARGIN > max_norm and math.isfinite(norm):
        _scale_all_(gradients, max_norm / (norm + MARGIN))
    return norm


def _local(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, int]:
    """This process's part of a gradient, and in how many parts it lies."""
    gradient = parameter.grad
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        return gradient, 1
    if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        # Tensor parallelism without FSDP leaves sums over tokens for their user to add up.
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    mesh = gradient.device_mesh
    sizes = [mesh.size(i) for i, placement in enumerate(gradient.placements) if not placement.is_replicate()]
    return gradient.to_local(), math.prod(sizes)


def _stage_size(mesh: Mesh) -> int:
    """Processes that hold the same layers; each number of a part lies on this many over its parts."""
    return mesh.replicas * mesh.shard * mesh.tensor


def _norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The norm of each tensor.

    A CPU adds the squares of a whole tensor up in FP32, which is 4 % low over 260 million numbers, and less so over
    the parts of a layout. There each row is added up in FP32 and the rows in FP64.
    """
    if gradients[0].is_cuda:
        return list(_norms_of_all(gradients, 2, torch.float32))
    norm = torch.linalg.vector_norm
    return [
        norm(norm(each, dim=-1, dtype=torch.float32) if each.dim() > 1 else each, dtype=torch.float64)
        for each in gradients
    ]


def _sum_of_squares(gradients: list[torch.Tensor], copies: list[float], mesh: Mesh) -> float:
    """Over all numbers of all stages, each counted once, the same on every process."""
    device = mesh.parameters.device_type if mesh.parameters is not None else "cpu"
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device if gradients else device)
    if gradients:
        norms = torch.stack(_norms(gradients)).double()
        total += (norms.square() / norms.new_tensor(copies)).sum()
    if not mesh.is_alone:
        dist.all_reduce(total)
    return total.item()
