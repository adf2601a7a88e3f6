"""Pipeline parallelism: each process holds consecutive layers, and hidden states pass between.

Micro-batches run one forward, one backward (1F1B), by torch 2.13's torch.distributed.pipelining. Every
stage reads positions, borders and labels from its own copy of the batch. Under FSDP2 torch's stage
gathers parameters once and sums gradients unsharded before it reduces them: it needs memory for both, whole.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import PreTrainedModel

from anadil.core.errors import PreflightError
from anadil.model.family_table import families
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.parallel.fsdp import local_gradient
from anadil.pretrain.parallel.loss_forward import Loss


def check_pipeline(
    stages: int, *, balances: bool, layers: int, sequences: int, micro_batch_size: int
) -> None:
    """Refuse models that cannot be cut into stages, and steps that do not give every stage a micro-batch."""
    if stages > 1 and balances:
        raise PreflightError(
            f"pretrain.parallelism.pipeline: {stages} stages pass no router's logits on, and config.json of base.model asks "
            "for their loss (output_router_logits); set pipeline to 1 and share the model with shard"
        )
    if layers < stages:
        raise PreflightError(
            f"pretrain.parallelism.pipeline: {stages} stages are more than the {layers} layers of base.model; "
            f"set it to {layers} or less"
        )
    micro_batches = -(-sequences // min(micro_batch_size, sequences))
    if micro_batches < stages:
        raise PreflightError(
            f"pretrain.parallelism.pipeline: {stages} stages need as many micro-batches in a step, and "
            f"there are {micro_batches}; lower pretrain.micro_batch_size ({micro_batch_size}) or raise pretrain.batch_size"
        )


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """The layers (from 0) that a stage holds, as `anadil plan` counts them."""
    borders = [round(number * layers / stages) for number in range(stages + 1)]
    return range(*list(pairwise(borders))[stage])


def cut_stage(model: PreTrainedModel, stage: int, stages: int) -> None:
    """Remove the modules of other stages; parameters keep their names, layers lie in an `nn.ModuleDict`.

    Tied embeddings lie on the first stage and on the last. The model cannot be called until `Pipeline` gives it a forward
    pass.
    """
    names = families()[model.config.model_type].names
    layers = list(model.get_submodule(names.layers).children())
    mine = {str(number): layers[number] for number in layers_of_stage(len(layers), stage, stages)}
    _replace(model, names.layers, nn.ModuleDict(mine))
    if stage > 0 and not (model.config.tie_word_embeddings and stage == stages - 1):
        _replace(model, names.embeddings, None)
    if stage < stages - 1:
        _replace(model, names.norm, None)
        _replace(model, names.head, None)


def _replace(model: nn.Module, name: str, part: nn.Module | None) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, part)


class Pipeline:
    """One stage of a cut model, which runs micro-batches together with the other stages."""

    def __init__(
        self, model: PreTrainedModel, loss: Loss, group: dist.ProcessGroup, *, device: torch.device,
        dtype: torch.dtype = torch.float32, tensor: int = 1,
    ) -> None:  # fmt: skip
        """Give a cut model the forward pass of its stage; `tensor` processes share hidden states of type `dtype`."""
        self.model: Any = model
        self.names = families()[model.config.model_type].names
        self._part: Any = model.get_submodule
        self.width: int = model.config.hidden_size
        self.loss, self.group, self.device, self.dtype, self.tensor = loss, group, device, dtype, tensor
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)
        self._queue: deque[Batch] = deque()
        self._losses: list[torch.Tensor] = []
        self._divisor = 1.0
        self._schedules: dict[tuple[int, ...], Schedule1F1B] = {}
        self.is_first, self.is_last = self.stage == 0, self.stage == self.stages - 1
        self.model.forward = self._forward

    def step(self, batches: Sequence[Batch], divisor: float = 1.0) -> torch.Tensor:
        """Run micro-batches of one shape, with gradients of the loss over `divisor`; return the summed loss in FP64.

        Called once between two calls of the optimizer: on the first call of its shape torch
        drops earlier gradients.
        """
        self._divisor = divisor
        return self._run(batches, backward=True)

    @torch.no_grad()
    def loss_of(self, batches: Sequence[Batch]) -> torch.Tensor:
        """`step` without a backward pass, for validation."""
        return self._run(batches, backward=False)

    def tied_embeddings(self) -> nn.Parameter | None:
        """Return tied embeddings on the first stage and on the last, or None."""
        if not (self.model.config.tie_word_embeddings and self.is_first != self.is_last):
            return None
        weight: nn.Parameter = self._part(self.names.embeddings).weight
        return weight

    def sum_tied_gradients(self) -> None:
        """Add what the other end of the pipeline made of the gradient of tied embeddings, a copy of which each end holds."""
        tied = self.tied_embeddings()
        if tied is None or tied.grad is None:
            return
        mine = local_gradient(tied)
        theirs = torch.empty_like(mine)
        end = 0 if self.is_last else self.stages - 1
        sent = dist.P2POp(dist.isend, mine, group=self.group, group_peer=end)
        received = dist.P2POp(dist.irecv, theirs, group=self.group, group_peer=end)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
        mine += theirs

    def _run(self, batches: Sequence[Batch], *, backward: bool) -> torch.Tensor:
        schedule = self._schedule(batches, backward=backward)
        run = schedule.step if backward else schedule.eval
        self._queue, self._losses = deque(batches), []
        given = [torch.cat([batch.input_ids for batch in batches]).to(self.device)] if self.is_first else []
        target = torch.zeros(len(batches)) if self.is_last else None
        try:
            run(*given, target=target, return_outputs=False)
        except RuntimeError as error:
            # torch wraps every error of a stage, also a lack of memory, which has a message of its own.
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.is_last:
            total += torch.stack(self._losses).double().sum()
        dist.broadcast(total, group=self.group, group_src=self.stages - 1)
        return total

    def _schedule(self, batches: Sequence[Batch], *, backward: bool) -> Schedule1F1B:
        """Make the order of micro-batches, with buffers to receive them, once for their number and shape."""
        rows, length = batches[0].input_ids.shape
        assert all(batch.input_ids.shape == (rows, length) for batch in batches), "one shape for all"
        key = (len(batches), rows, length, int(backward))
        if key not in self._schedules:
            shape = (rows, length // self.tensor, self.width)
            states = torch.empty(shape, dtype=self.dtype, device="meta", requires_grad=backward)
            ids = torch.empty(rows, length, dtype=torch.int64, device="meta")
            loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=backward)
            # Shapes are given, else torch runs the first micro-batch twice to infer them.
            stage = PipelineStage(
                self.model, self.stage, self.stages, self.device, input_args=ids if self.is_first else states,
                output_args=loss if self.is_last else states, group=self.group,
            )  # fmt: skip
            self._schedules[key] = Schedule1F1B(
                stage, len(batches), loss_fn=lambda loss, _: loss / self._divisor, scale_grads=False
            )
        return self._schedules[key]

    def _forward(self, given: torch.Tensor) -> torch.Tensor:
        """Compute hidden states for the next stage, (sequences, tokens, width), or the summed loss."""
        batch = self._queue.popleft()
        if not self.is_last:
            return self._states(given, batch)
        here = batch.to(self.device)
        more = [each for each in (here.sources, here.teacher) if each is not None]
        # The states have no name, which would keep them in memory.
        loss = self.loss(self._states(given, batch), self._part(self.names.head).weight, here.labels, *more)
        self._losses.append(loss.detach())
        return loss

    def _states(self, given: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compute hidden states of the stage, (sequences, tokens, width), normed after the last layer."""
        positions = batch.position_ids.to(self.device, non_blocking=True)
        hidden = self._part(self.names.embeddings)(given) if self.is_first else given
        rotate: Any = self.model.base_model.rotary_emb
        rotary = rotate(hidden, positions) if rotate is not None else None  # of layers without positions
        for layer in self._part(self.names.layers).values():
            hidden = layer(
                hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary,
                borders=batch.borders, use_cache=False,
            )  # fmt: skip
        normed: torch.Tensor = self._part(self.names.norm)(hidden) if self.is_last else hidden
        return normed
