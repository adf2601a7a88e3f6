"""FSDP2: parameters, gradients and optimizer state spread over processes, gathered layer by layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from anadil.pretrain.parallel.mesh import Mesh


def shard(
    model: nn.Module,
    layers: Sequence[nn.Module],
    mesh: Mesh,
    policy: MixedPrecisionPolicy,
    *,
    prefetch: int = 1,
    reshard: bool = True,
) -> None:
    """Shard a model over processes: each layer is a group, the rest another.

    Args:
        model: Its `forward` reads the head's weight itself, which is whole inside of it. Tied tables must
            lie in `model` outside of `layers`.
        layers: Modules that are called once in a forward pass, in its order.
        mesh: `shard` above 1; with several replicas gradients are summed over them too (HSDP).
        policy: Precision of gathered parameters and of sums.
        prefetch: Layers that are gathered ahead.
        reshard: True to free a layer after its forward pass and gather it again.
    """
    assert mesh.parameters is not None
    names = ("replicate", "shard") if mesh.replicas > 1 else ("shard",)
    devices = mesh.parameters[names]
    for layer in layers:
        fully_shard(layer, mesh=devices, mp_policy=policy, reshard_after_forward=reshard)
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
