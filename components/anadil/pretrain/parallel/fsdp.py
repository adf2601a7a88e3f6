"""FSDP2: parameters, gradients and optimizer state spread over processes, gathered layer by layer."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from anadil.pretrain.parallel.mesh import Mesh


def shard(
    model: nn.Module, layers: Sequence[nn.Module], mesh: Mesh, policy: MixedPrecisionPolicy, *,
    prefetch: int = 1, reshard: bool = True, ends: Sequence[nn.Module] = (),
) -> None:  # fmt: skip
    """Shard a model over processes: each layer is a group, the rest another; replicas sum gradients too (HSDP).

    Its `forward` reads the head's weight itself, which is whole inside of it. `layers` are called once in a forward pass,
    in this order, and hold no tied table. `prefetch` layers are gathered ahead; `reshard` frees each after its pass.
    `ends` are embeddings, norm and head of a model with two tables. The first is gathered for its lookup alone, the others
    from the norm's forward pass to its backward pass.
    """
    assert mesh.parameters is not None
    names = ("replicate", "shard") if mesh.replicas > 1 else ("shard",)
    devices = mesh.parameters[names]
    for layer in layers:
        fully_shard(layer, mesh=devices, mp_policy=policy, reshard_after_forward=reshard)
    if ends:
        embeddings, *last = ends
        lookup: Any = fully_shard(embeddings, mesh=devices, mp_policy=policy)
        # A lookup's gradient needs no table.
        lookup.set_unshard_in_backward(False)
        # Nobody calls the head as a module, so FSDP2 ends this group's forward pass with the root's (torch 2.13).
        fully_shard(last, mesh=devices, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=devices, mp_policy=policy)
    _gather_ahead(layers, prefetch)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Summed, not averaged: losses are divided by the tokens of the whole batch.
            module.set_gradient_divide_factor(1.0)
            # Without it a divisor of 1 becomes a scaled sum, which gloo does not have.
            module.set_force_sum_reduction_for_comms(True)
    model.register_forward_hook(_let_go)


def _gather_ahead(layers: Sequence[nn.Module], prefetch: int) -> None:
    """Let each layer, when it is gathered, start to gather the next `prefetch` ones of the same pass, after `fully_shard`."""
    # 1 is left to FSDP2, which gathers the next layer beside this one's kernels, in both passes; 0 only stops it from
    # gathering the next one early in the backward pass.
    if prefetch == 1:
        return
    changed: list[Any] = list(layers)
    for number, layer in enumerate(changed):
        layer.set_modules_to_forward_prefetch(changed[number + 1 : number + 1 + prefetch])
        before = changed[max(0, number - prefetch) : number]
        # An empty list would stand for FSDP2's own way; the layer itself is there already.
        layer.set_modules_to_backward_prefetch(before[::-1] or [layer])


def _let_go(model: nn.Module, _inputs: object, _output: object) -> None:
    """Free gathered parameters when no backward pass follows that would free them."""
    # Parameters learn whether they need a gradient when they are gathered (torch 2.13). Those gathered in a
    # validation would be trained as in the phase before.
    if not torch.is_grad_enabled():
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def policy_of(state: str, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Gather BF16 and sum gradients in FP32 where weights are FP32 and products BF16; else as they are."""
    if state == "fp32" and dtype == torch.bfloat16:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def last_pass(model: nn.Module, *, is_last: bool) -> None:
    """Sum gradients over replicas only in the last backward pass of a step."""
    changed: Any = model
    if isinstance(model, FSDPModule):
        changed.set_requires_all_reduce(is_last)
        changed.set_is_last_backward(is_last)


class Replicas:
    """Sums gradients over the processes that hold the same parameters, which must do the same passes.

    A gradient is sent the moment it is whole, in the last backward pass of a step.
    """

    # Tried: torch's composable `replicate` on FSDP, and `fully_shard` with one shard (torch 2.13). Losses and
    # gradients are the same to the bit, but each holds a second copy of the parameters while it trains and
    # takes a quarter more of the CPU's time for a step.
    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Any) -> None:
        """Watch the gradients of `parameters`, which `group` sums; None where there is one process."""
        self._group = group
        self._armed = False
        self._under_way: list[Any] = []
        self._parameters = list(parameters)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._send)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
            if group is not None
        ]

    def arm(self) -> None:
        """Note that the backward pass that begins now is the last of this step."""
        self._armed = True

    def send(self) -> None:
        """Sum all gradients now, after passes of which none was known to be a parameter's last."""
        self._armed = self._group is not None
        for parameter in self._parameters:
            self._send(parameter)

    def wait(self) -> None:
        """Return when every gradient is the sum over the group."""
        self._armed = False
        for work in self._under_way:
            work.wait()
        self._under_way.clear()

    def remove(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def _send(self, parameter: torch.Tensor) -> None:
        if not self._armed or parameter.grad is None:
            return
        # Asynchronous: the network works beside the rest of the backward pass.
        self._under_way.append(dist.all_reduce(local_gradient(parameter), group=self._group, async_op=True))


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a gradient, sharing its memory, placed as its parameter is."""
    if isinstance(parameter.grad, DTensor) and isinstance(parameter, DTensor):
        # Tensor parallelism without FSDP leaves sums over tokens, such as those of a norm, for their user to add up.
        parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
    assert parameter.grad is not None
    return local_part(parameter.grad)


def local_rows(parameter: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Mark with 1 the local rows that are among `rows` of the whole table, with 0 all others: (local rows, 1)."""
    chosen = torch.zeros(parameter.shape[0], 1)
    chosen[list(rows)] = 1
    local = local_part(parameter)
    first = 0
    if isinstance(parameter, DTensor):
        placed = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        first = placed[1][0]
    return chosen[first : first + len(local)].to(local)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, sharing its memory."""
    plain = tensor.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


MARGIN = 1e-6
"""Added to the norm before dividing. Source: torch.nn.utils.clip_grad_norm_."""

# One kernel for many tensors, as in clip_grad_norm_; neither has a public name.
_scale_all_: Any = torch._foreach_mul_
_norms_of_all: Any = torch._foreach_norm  # noqa: SLF001


@torch.no_grad()
def squared_norm(
    parameters: Iterable[torch.nn.Parameter], mesh: Mesh, *, on_two_stages: torch.nn.Parameter | None = None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gradients of this process, and the sum of squares in FP64 that this process adds to the square of the norm of all.

    Parameters are those of this process's stage, tied ones once, with gradients summed over the batch. Tied embeddings may
    lie on two stages.
    """
    gradients, copies = [], []
    for parameter in parameters:
        if parameter.grad is not None:
            gradient, shards = _local(parameter)
            gradients.append(gradient)
            # Each number of a part lies on so many processes of the stage.
            stages = 2 if parameter is on_two_stages else 1
            copies.append(stages * mesh.replicas * mesh.shard * mesh.tensor / shards)
    device = mesh.parameters.device_type if mesh.parameters is not None else "cpu"
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device if gradients else device)
    if gradients:
        norms = torch.stack(_norms(gradients)).double()
        total += (norms.square() / norms.new_tensor(copies)).sum()
    return gradients, total


@torch.no_grad()
def clip_(gradients: list[torch.Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of a norm so that it is at most `max_norm`; NaN or Inf leaves them as they are."""
    if norm + MARGIN > max_norm and math.isfinite(norm):
        _scale_all_(gradients, max_norm / (norm + MARGIN))


def _local(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, int]:
    """This process's part of a gradient, and the number of its parts."""
    gradient = parameter.grad
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        return gradient, 1
    local = local_gradient(parameter)
    gradient = parameter.grad
    assert isinstance(gradient, DTensor)
    mesh = gradient.device_mesh
    sizes = [mesh.size(i) for i, placement in enumerate(gradient.placements) if not placement.is_replicate()]
    return local, math.prod(sizes)


def _norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    if gradients[0].is_cuda:
        return list(_norms_of_all(gradients, 2, torch.float32))
    # A CPU sums the squares of a whole tensor in FP32, which is 4 % low over 260 million numbers, and less so
    # over the parts of a layout. So each row is summed in FP32 and the rows in FP64.
    norm = torch.linalg.vector_norm
    return [
        norm(norm(each, dim=-1, dtype=torch.float32) if each.dim() > 1 else each, dtype=torch.float64)
        for each in gradients
    ]
