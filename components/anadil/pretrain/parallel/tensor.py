"""Tensor parallelism: each matrix product shared by some processes, and the tokens between them.

Queries, keys, values and the MLP's first products are split by columns, the products after them by
rows, both embeddings by tokens of the vocabulary. Between the products each process holds a slice
of the tokens (sequence parallelism), so that norms and sums are shared too. The plan is torchtitan's
for Llama 3. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from anadil.core.errors import PreflightError
from anadil.estimate.layout import cuts_evenly, shared_by_tensor
from anadil.estimate.model_shape import shape_from
from anadil.model.family import TensorStyle
from anadil.model.family_table import families
from anadil.model.loss import summed_loss_of_rows
from anadil.model.teacher import Teacher

KEY = "pretrain.parallelism.tensor"


def check_tensor(config: Any, degree: int, sequence_length: int) -> None:
    """Refuse a model or a sequence, or one process's part of it, that `degree` processes cannot share."""
    if degree == 1:
        return
    shape = shape_from(config.to_dict(), config.name_or_path or "model")
    for name, number in shared_by_tensor(shape).items():
        if number % degree:
            other = ", or make a tokenizer whose number of tokens is a multiple" if "vocab" in name else ""
            raise PreflightError(
                f"{KEY}: {degree} does not divide the model's {number:,} {name}; choose a divisor of them{other}"
            )
    if not cuts_evenly(sequence_length, context=1, tensor=degree):
        raise PreflightError(
            f"{KEY}: {degree} does not divide the {sequence_length:,} tokens of a sequence that a process "
            "works on; choose a divisor, or change pretrain.sequence_length"
        )


def apply_tensor_parallel(part: nn.Module, mesh: DeviceMesh, *, config: Any) -> None:
    """Split a Llama, or a stage of a pipeline, in place; parameters become DTensors that require gradients.

    Called before activation checkpointing, compilation and `fully_shard`, on the meta device or with
    equal weights on every process. Afterwards `part.model` takes full `input_ids` and `position_ids`,
    and passes on this process's slice of the tokens, (sequences, tokens / degree, width). The head is
    not called: see `summed_loss_of_head`.
    """
    family = families()[config.model_type]
    ends: dict[str, ParallelStyle] = {
        family.names.embeddings: RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        family.names.norm: LocalNorm(),
        family.names.head: ColwiseParallel(input_layouts=Shard(1)),
    }
    modules = dict(part.named_modules())
    parallelize_module(part, mesh, {name: style for name, style in ends.items() if name in modules})
    if family.names.embeddings in modules:
        modules[family.names.embeddings].register_forward_hook(_copied)
        # Both are split by rows, and splitting made a parameter of each.
        if config.tie_word_embeddings and family.names.head in modules:
            modules[family.names.head].weight = modules[family.names.embeddings].weight
    layers: Any = modules[family.names.layers]
    for layer in layers.values() if isinstance(layers, nn.ModuleDict) else layers:
        _check_layer(layer, config, family.tensor_plan)
        parallelize_module(layer, mesh, {name: _style(style) for name, style in family.tensor_plan.items()})


def summed_loss_of_head(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, z_loss: float = 0.0,
    cap: float = 0.0, token_losses: torch.Tensor | None = None, teacher: Teacher | None = None,
) -> torch.Tensor:  # fmt: skip
    """Sum the loss with the weight of a head that `apply_tensor_parallel` has split, a DTensor.

    `hidden` is the norm's output, (sequences, tokens / degree, width). Under `fully_shard` inside the root's forward.
    """
    assert isinstance(weight, DTensor)
    rows = weight.to_local()
    first_row = weight.device_mesh.get_local_rank() * len(rows)
    group = weight.device_mesh.get_group()
    return summed_loss_of_rows(hidden, rows, labels, first_row, group, z_loss, cap, token_losses, teacher)


class LocalNorm(ParallelStyle):
    """A norm of this process's tokens as plain tensors."""

    # torch's `SequenceParallel` hands DTensors to the norm. Liger's (0.8.5, ops/rms_norm.py) gathers all
    # tokens of a DTensor and returns a plain tensor of them, which the next module would take for a slice.
    # A norm looks at one token at a time, so plain tensors do for every kernel. Only the gradient of its
    # weight, a sum over tokens, must be summed, which DTensor does for a partial gradient.
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight = module.get_parameter("weight").data
        laid = DTensor.from_local(weight, device_mesh, [Replicate()], run_check=False)
        module.register_parameter("weight", nn.Parameter(laid))
        settings = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        # A class of its own, which torch.compile can follow where it cannot a namespace.
        seen = type("Seen", (), settings)
        changed: Any = module
        # A partial, not a closure, so that a deep copy uses its own weight.
        changed.forward = partial(_norm_of_slice, module, seen)
        return module


def _copied(_module: nn.Module, _inputs: Any, states: torch.Tensor) -> torch.Tensor:
    # A compiled layer takes the result of a collective under way for a DTensor (torch 2.13).
    return states.clone()


def _norm_of_slice(module: Any, seen: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Call the norm's own forward on its settings and its weight as a plain tensor."""
    view = seen()
    view.weight = module.weight.to_local(grad_placements=(Partial(),))
    result: torch.Tensor = type(module).forward(view, hidden)
    return result


def _check_layer(layer: nn.Module, config: Any, plan: Mapping[str, TensorStyle]) -> None:
    """Refuse layers with other parameters than the plan's, whose gradients would silently differ."""
    held = {name.rpartition(".")[0] for name, _ in layer.named_parameters()}
    planned = {name for name, style in plan.items() if not style.startswith("gather")}
    if held != planned:
        raise PreflightError(
            f"{KEY}: a layer of a {config.model_type} model is not a Llama's "
            f"({', '.join(sorted(held ^ planned))}); set it to 1 and raise pretrain.parallelism.shard"
        )


def _style(style: TensorStyle) -> ParallelStyle:
    match style:
        case "norm":
            return LocalNorm()
        case "columns":
            return ColwiseParallel()
        case "rows":
            return RowwiseParallel(output_layouts=Shard(1))
        case "gather":
            return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        case "gather_keyword":
            return PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            )
