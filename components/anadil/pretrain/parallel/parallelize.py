"""Parallelize a model: PP, TP, compile, FSDP, in the one order that works."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from anadil.core.errors import DataError, IntegrityError
from anadil.model import low_precision
from anadil.model.attention import use_packed_attention
from anadil.model.family_table import families, logit_scale_and_cap
from anadil.model.kernels import checkpoint_layers, compile_layers, decoder_layers, keep_first_keys
from anadil.model.load import cast_parameters, refuse_not_numbers
from anadil.model.loss import has_fast_bf16, summed_loss
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.embedding_init import BaseTable, VocabularyRows, new_rows
from anadil.pretrain.parallel.context import check_context, slice_of, use_context_attention
from anadil.pretrain.parallel.fsdp import Replicas, last_pass, policy_of, shard
from anadil.pretrain.parallel.loss_forward import Objective, balances_experts, train_on
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.pipeline import Pipeline, check_pipeline, cut_stage
from anadil.pretrain.parallel.tensor import apply_tensor_parallel, check_tensor, summed_loss_of_head
from anadil.recipe.pretrain import Pretrain


@dataclass(slots=True, kw_only=True)
class ParallelModel:
    """A model that is ready to be trained, whole or this process's part of it."""

    model: PreTrainedModel
    mesh: Mesh
    device: torch.device
    dtype: torch.dtype
    """Precision of matrix products."""
    autocast: bool
    """Autocast casts weights: they are FP32, and FSDP does not cast them."""
    tables: frozenset[str]
    """Names of the embeddings, input and output; a tied model has one."""
    shapes: dict[str, tuple[int, ...]]
    """Shape of every parameter of the whole model, by name."""
    objective: Objective
    pipeline: Pipeline | None = None

    def parameters(self) -> dict[str, nn.Parameter]:
        """By the names of the whole model; tied ones once."""
        return dict(self.model.named_parameters())

    def on_two_stages(self) -> nn.Parameter | None:
        """Return tied embeddings, where another stage of the pipeline holds them too."""
        return self.pipeline.tied_embeddings() if self.pipeline else None

    def plain_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters as checkpoints hold them, sharing their memory."""
        return {
            name: low_precision.plain_tensor(parameter.detach())
            for name, parameter in self.parameters().items()
        }

    def replicas_group(self) -> Any:
        """Processes whose gradients have to be summed, which FSDP does itself; None for none."""
        if self.mesh.parameters is None or self.mesh.shard > 1 or self.mesh.replicas == 1:
            return None
        return self.mesh.parameters["replicate"].get_group()

    def share(self, batch: Batch) -> Batch:
        """Cut out this process's share of some sequences, ready to be copied to its device."""
        if self.mesh.context > 1:
            batch = slice_of(batch, self.mesh.context_rank, self.mesh.context)
        return batch.pinned() if self.device.type == "cuda" else batch

    def loss(self, batch: Batch) -> torch.Tensor:
        """Sum of the FP32 loss. Every rank of a tensor- or context-parallel group holds the full sum."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            if self.pipeline is not None:
                return self.pipeline.loss_of([batch] * self.mesh.pipeline) / self.mesh.pipeline
            whole: Any = self.model
            here = batch.to(self.device)
            more = [each for each in (here.sources, here.teacher) if each is not None]
            loss: torch.Tensor = whole(
                here.input_ids, here.position_ids, here.labels, here.borders.numpy(), *more
            )
        return loss

    def backward(self, batches: Sequence[Batch], divisor: float, *, replicas: Replicas) -> torch.Tensor:
        """Run the passes of one optimizer step, with gradients of the loss over `divisor`; sum the loss in FP64.

        Wait for `replicas`, which sums the gradients over the processes that hold the same parameters.
        """
        if self.pipeline is not None:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                total = self.pipeline.step(batches, divisor)
            self.pipeline.sum_tied_gradients()
            replicas.send()
        else:
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for number, batch in enumerate(batches, 1):
                loss = self.loss(batch)
                last = number == len(batches)
                last_pass(self.model, is_last=last)
                if last:
                    replicas.arm()
                (loss / divisor).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                total += loss.detach()
        return total

    def nats(self, batch: Batch) -> torch.Tensor:
        """This process's part of the summed loss of whole sequences, for `add_up`."""
        loss = self.loss(self.share(batch))
        return loss if self.counts else torch.zeros_like(loss)

    def add_up(self, number: torch.Tensor) -> torch.Tensor:
        """Sum a number over all processes, in place."""
        if not self.mesh.is_alone:
            dist.all_reduce(number)
        return number

    @property
    def counts(self) -> bool:
        """True if this process's loss counts: that of tokens that no other process counts."""
        return self.mesh.tensor_rank == 0 and self.mesh.pipeline_rank == self.mesh.pipeline - 1

    def after_step(self) -> None:
        """Update the scales of FP8 products after the weights changed."""
        low_precision.update_fp8_scales(self.model)


def check_layout(settings: Pretrain, config: Any, mesh: Mesh, device: torch.device) -> None:
    """Reject unsupported combinations of settings, base model (`config`), layout and device."""
    length = settings.sequence_length
    check_context(length, mesh.context, mesh.tensor)
    check_tensor(config, mesh.tensor, length // mesh.context)
    check_pipeline(
        mesh.pipeline,
        balances=balances_experts(config),
        layers=int(config.num_hidden_layers),
        sequences=-(-settings.batch_size // mesh.data),
        micro_batch_size=settings.micro_batch_size,
    )
    dtype, tokens = compute_dtype(settings, device), length // mesh.context
    low_precision.check_low_precision(
        settings.matmul, device, dtype, tokens=tokens, tensor=mesh.tensor, compiled=settings.compile
    )


def parallelize(
    model: PreTrainedModel, settings: Pretrain, mesh: Mesh, device: torch.device
) -> ParallelModel:
    """Prepare a model in FP32, on the meta device or with its weights, for training, in place."""
    # Without dropout no random number is drawn, and a resume needs none.
    model.eval()
    config: Any = model.config
    dtype = compute_dtype(settings, device)
    if settings.state == "bf16":
        # Gradients and moments follow the weights, and so do matrix products, without autocast.
        cast_parameters(model, torch.bfloat16)
    if mesh.context > 1:
        assert mesh.batches is not None
        use_context_attention(model, mesh.batches["context"].get_group())
    else:
        use_packed_attention(model)
    embeddings: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    weights = {id(table.weight) for table in embeddings}
    tables = frozenset(name for name, parameter in model.named_parameters() if id(parameter) in weights)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    scored = summed_loss_of_head if mesh.tensor > 1 else partial(summed_loss, kernels=settings.kernels)
    scale, cap = logit_scale_and_cap(config.to_dict())
    loss = Objective(scored=scored, z_loss=settings.z_loss, scale=scale, cap=cap)
    if mesh.pipeline > 1:
        cut_stage(model, mesh.pipeline_rank, mesh.pipeline)
    layers = decoder_layers(model)
    # Precision, tensor parallelism, recomputation and compilation, each applied to the result of the one before.
    chosen = low_precision.low_precision_layers(model, settings.matmul)
    low_precision.use_low_precision(chosen, settings.matmul, sharded=mesh.shard > 1, tensor=mesh.tensor)
    if mesh.tensor > 1:
        assert mesh.parameters is not None
        apply_tensor_parallel(model, mesh.parameters["tensor"], config=config)
    checkpoint_layers(layers, settings.activation_checkpointing)
    keep_first_keys(model)
    if settings.compile:
        compile_layers(layers)
    # FSDP casts what it gathers; all else is cast by autocast.
    autocast = settings.state == "fp32" and dtype == torch.bfloat16 and mesh.shard == 1
    net = ParallelModel(
        model=model, mesh=mesh, device=device, dtype=dtype, autocast=autocast, tables=tables, shapes=shapes,
        objective=loss,
    )  # fmt: skip
    if mesh.pipeline == 1:
        train_on(model, loss)
    else:
        assert mesh.parameters is not None
        group = mesh.parameters["pipeline"].get_group()
        between = torch.float32 if autocast else dtype
        net.pipeline = Pipeline(model, loss, group, device=device, dtype=between, tensor=mesh.tensor)
    if mesh.shard > 1:
        policy, how = policy_of(settings.state, dtype), settings.parallelism
        norm = families()[config.model_type].names.norm
        # A stage of a pipeline has one table at most, and a tied one has to stay in one group.
        apart = mesh.pipeline == 1 and len(tables) > 1
        ends = (embeddings[0], model.get_submodule(norm), embeddings[1]) if apart else ()
        shard(model, layers, mesh, policy, prefetch=how.prefetch, reshard=how.reshard, ends=ends)
    return net


def compute_dtype(settings: Pretrain, device: torch.device) -> torch.dtype:
    """Choose the precision of matrix products: BF16, or FP32 by the recipe or on a CPU without BF16 products."""
    if settings.state == "bf16":
        return torch.bfloat16
    # A CPU without BF16 products imitates them 10 to 200 times as slowly; one that has them trains a model of
    # 135 million parameters in BF16 2.0 to 2.7 times as fast as in FP32. FP8 begins with BF16 on any device.
    fast = has_fast_bf16(device) or (settings.matmul != "same" and settings.precision == "bf16")
    return torch.bfloat16 if fast and settings.precision != "fp32" else torch.float32


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
