"""Loads a model that no process holds whole: made without memory, then filled shard by shard from its files."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from anadil.core.errors import DataError, IntegrityError
from anadil.model.family_table import families
from anadil.model.load import refuse_not_numbers
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.embedding_init import BaseTable, VocabularyRows, new_rows


def load_weights(
    part: nn.Module, weights: SafetensorsFiles, device: torch.device, *, rows: VocabularyRows | None = None
) -> None:
    """Give each parameter of a model on the meta device its memory, and this process's shard of its values.

    Called after pipeline cut, tensor split and `fully_shard`, before the optimizer is made. Parameters that
    are elsewhere are filled in place. Without `rows` the base's own vocabulary stays.
    """
    parameters = dict(part.named_parameters())
    config: Any = part.config
    tables = {name: number for number, name in enumerate(families()[config.model_type].names.tables)}
    for name, parameter in parameters.items():
        shape = weights.shape(name)
        expected = (len(rows), *shape[1:]) if rows is not None and name in tables else shape
        if tuple(parameter.shape) != expected:
            raise IntegrityError(
                f"{weights.folder}: weights do not fit config.json ({name} makes {list(expected)}, the model has "
                f"{list(parameter.shape)}); fetch or make the model again"
            )
    if any(parameter.is_meta for parameter in parameters.values()):
        _materialise(part, device)
        _make_buffers(part, weights)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            _fill(name, parameter, weights, rows if name in tables else None, tables.get(name, 0))


def _materialise(part: nn.Module, device: torch.device) -> None:
    """Allocate every parameter and buffer; `to_empty` alone would untie tied weights."""
    places: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in part.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places[id(parameter)].append((module, name))
    tied = [several for several in places.values() if len(several) > 1]
    trained = {name: parameter.requires_grad for name, parameter in part.named_parameters()}
    part.to_empty(device=device)
    for (first, name), *others in tied:
        for module, other in others:
            setattr(module, other, getattr(first, name))
    for name, parameter in part.named_parameters():
        parameter.requires_grad_(trained[name])


def _make_buffers(part: nn.Module, weights: SafetensorsFiles) -> None:
    """Give every buffer its value: from the files where they hold it, else as transformers initialises it."""
    model: Any = part
    for parameter in part.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # noqa: SLF001  else transformers draws its weights
    for module in part.modules():
        module._is_hf_initialized = False  # type: ignore[assignment]  # noqa: SLF001
        for buffer in module.buffers(recurse=False):
            # Else memory that nobody fills would be taken for scales or rotary frequencies.
            buffer.fill_(math.nan if buffer.is_floating_point() else 0)
    model.initialize_weights()
    stored = model.state_dict().keys()
    for name, buffer in part.named_buffers():
        if name in stored and name in weights:
            buffer.copy_(weights.read(name, [0] * buffer.dim(), buffer.shape))
    attributes = [
        (f"{prefix}.{name}", value)
        for prefix, module in part.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]
    for name, tensor in [*part.named_buffers(), *attributes]:
        if tensor.is_meta or not tensor.is_floating_point() or bool(tensor.isnan().any()):
            raise DataError(
                f"base.model: {name} of a {model.config.model_type} model is made neither from its files nor by "
                "transformers, so processes cannot share it; set every degree of pretrain.parallelism to 1"
            )


def _fill(
    name: str, parameter: nn.Parameter, weights: SafetensorsFiles, rows: VocabularyRows | None, number: int
) -> None:
    local = parameter.data
    offset = tuple(0 for _ in parameter.shape)
    if isinstance(local, DTensor):
        _, offset = compute_local_shape_and_global_offset(local.shape, local.device_mesh, local.placements)
        local = local.to_local()
    if not local.numel():
        return
    if rows is None:
        refuse_not_numbers(weights.folder, name, local.copy_(weights.read(name, offset, local.shape)))
        return
    num_base, width = weights.shape(name)
    columns = slice(offset[1], offset[1] + local.shape[1])
    base = BaseTable(
        lambda first, count: weights.read(name, (first, offset[1]), (count, local.shape[1])),
        (num_base, width),
        columns,
        number,
    )
    for start, made in new_rows(rows, base, offset[0], len(local)):
        refuse_not_numbers(weights.folder, name, local[start : start + len(made)].copy_(made))
