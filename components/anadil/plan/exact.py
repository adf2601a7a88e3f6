"""The peak of a real training step: the real model on fake tensors, without a GPU.

transformers' own Llama, torch's FSDP, tensor parallelism and checkpointing, Liger's own
Python code and the optimizer run a whole step on tensors that have shapes and no content, as
one process of a group that does not exist. Only the launch of Triton kernels is left out, and
Liger's loss, which needs a GPU to choose its path, is retold. torch is pinned: much of what is
used here is not public. Context parallelism is left to the closed form.

Source of the approach: torch's `FakeTensorMode` and `fake` process group.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
import transformers.models.llama.modeling_llama as llama
from torch import distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from anadil.errors import RecipeError
from anadil.model.kernels import patch_llama
from anadil.model.loss import chunked_loss
from anadil.model.recompute import checkpoint_layers
from anadil.plan.activations import FP32, bytes_of
from anadil.plan.allocated import Allocated
from anadil.plan.layout import Layout, Work
from anadil.plan.liger import LigerLoss
from anadil.plan.llama import llama_config
from anadil.plan.shape import Shape
from anadil.plan.sharded import mesh_of, shard

LIGER_PATCHES = ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")


def exact_peak(shape: Shape, layout: Layout, work: Work, *, fused_optimizer: bool = True) -> int:
    """Bytes that the allocator holds at the worst moment of a step, over all pipeline stages.

    Two steps are run and the second counts, because the optimizer's state is made in the first.

    Args:
        shape: The model.
        layout: How devices share it.
        work: What a step computes.
        fused_optimizer: AdamW in one kernel, as on a GPU; on a CPU it holds copies of a tensor.

    Raises:
        RecipeError: The layout shares sequences, which is not run here.
    """
    if layout.context > 1:
        raise RecipeError("context parallelism has no run on fake tensors; leave out --exact")
    stages = sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})
    # A device knows nothing of the other stages: the group is that of its own stretch of layers.
    with _group(replace(layout, pipeline=1).devices), _stand_ins(layout, work):
        return max(_peak_of(shape, layout, work, stage, fused=fused_optimizer) for stage in stages)


@contextmanager
def _group(size: int) -> Iterator[None]:
    """A process group of which only this process exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _stand_ins(layout: Layout, work: Work) -> Iterator[None]:
    """Replace what cannot run on tensors without content, and put it back."""
    with ExitStack() as stack:
        if work.kernels == "liger":
            from triton.runtime.jit import JITFunction

            stack.enter_context(mock.patch.object(JITFunction, "run", _no_launch))
            for name in LIGER_PATCHES:  # so that they are put back
                stack.enter_context(mock.patch.object(llama, name, getattr(llama, name)))
            patch_llama(layout.recompute)
        yield


def _no_launch(*_: Any, **__: Any) -> None:
    return None


def _peak_of(shape: Shape, layout: Layout, work: Work, stage: int, *, fused: bool) -> int:
    mesh = mesh_of(layout)
    dtype = torch.float32 if work.state == "fp32" else torch.bfloat16
    before = torch.get_default_dtype()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(dtype)
        try:
            model = Stretch(shape, layout, work, stage)
        finally:
            torch.set_default_dtype(before)
        _freeze(model, work)
        checkpoint_layers(list(model.layers), layout.recompute)
        shard(model, layout, work, mesh)
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=1e-3, fused=fused) if learning else None
        allocated = Allocated()
        for tensor in (*model.parameters(), *model.buffers()):
            allocated.add(tensor)
        with allocated.following():
            for _ in range(2):
                allocated.peak = 0
                _step(model, layout, work)
                if optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad()
        return allocated.peak


def _freeze(model: "Stretch", work: Work) -> None:
    if work.trains == "embeddings":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in ("embed_tokens.weight", "lm_head.weight"))


def _step(model: "Stretch", layout: Layout, work: Work) -> None:
    """Forward and backward passes in the order of one-forward-one-backward.

    More micro-batches than are under way at a time, and one more, change nothing.
    """
    under_way = layout.pipeline - model.stage
    batches = min(layout.micro_batches, under_way + 1)
    waiting: list[Any] = []
    for number in range(batches + under_way):
        if number < batches:
            waiting.append(_forward(model, layout, work))
        if number >= min(under_way, batches) - 1 and waiting:
            _backward(*waiting.pop(0), layout=layout)


def _forward(model: "Stretch", layout: Layout, work: Work) -> tuple[torch.Tensor | None, torch.Tensor]:
    size = (layout.micro_batch_size, work.sequence_length)
    ids = torch.zeros(size, dtype=torch.long)
    positions = torch.zeros(size, dtype=torch.long)
    labels = torch.zeros(size, dtype=torch.long)
    received = None
    if not model.first:
        length = work.sequence_length // layout.tensor
        received = torch.empty(size[0], length, model.width, dtype=model.dtype, requires_grad=True)
    with _autocast(layout, work), _loss_parallel(layout):
        return received, model(ids if received is None else received, positions, labels)


def _backward(received: torch.Tensor | None, out: torch.Tensor, *, layout: Layout) -> None:
    with _loss_parallel(layout):
        out.backward(torch.empty_like(out) if out.ndim else None)  # type: ignore[no-untyped-call]
    if received is not None:
        received.grad = None  # sent to the stage before


def _autocast(layout: Layout, work: Work) -> Any:
    mixed = bytes_of(work, layout).autocast
    return torch.autocast("cpu", dtype=torch.bfloat16) if mixed else nullcontext()


def _loss_parallel(layout: Layout) -> Any:
    return loss_parallel() if layout.tensor > 1 else nullcontext()


class Stretch(nn.Module):
    """The layers of one pipeline stage, with embeddings and loss where they belong to it."""

    def __init__(self, shape: Shape, layout: Layout, work: Work, stage: int) -> None:
        super().__init__()
        config = llama_config(shape, work.sequence_length)
        self.stage, self.layout, self.work = stage, layout, work
        self.first = stage == 0
        self.last = stage == layout.pipeline - 1
        self.width = shape.hidden
        self.dtype = torch.float32 if bytes_of(work, layout).stream == FP32 else torch.bfloat16
        borders = [round(number * shape.layers / layout.pipeline) for number in range(layout.pipeline + 1)]
        begin, end = list(pairwise(borders))[stage]
        if self.first:
            self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(llama.LlamaDecoderLayer(config, number) for number in range(begin, end))
        self.rotary_emb = llama.LlamaRotaryEmbedding(config)
        if self.last:
            self.norm = llama.LlamaRMSNorm(shape.hidden)
            self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
            if self.first and shape.tied:
                self.lm_head.weight = self.embed_tokens.weight

    def forward(self, given: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Hidden states for the next stage, or the loss.

        Args:
            given: Ids (sequences, tokens) in the first stage, else hidden states.
            positions: (sequences, tokens).
            labels: (sequences, tokens).
        """
        hidden = self.embed_tokens(given) if self.first else given
        mask = None
        if self.work.packed:  # which documents a token sees depends on the content; the size does not
            batch, length = positions.shape
            mask = torch.ones(batch, 1, length, length, dtype=torch.bool)
        rotary = self.rotary_emb(hidden, positions)
        for layer in self.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=rotary,
                use_cache=False,
            )
        del mask
        if not self.last:
            return hidden
        hidden = self.norm(hidden)  # under the same name, so that nothing else holds the states before
        return self.loss(hidden, labels)

    def loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss as the work asks for it."""
        if self.work.loss == "logits":
            logits = self.lm_head(hidden).float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        weight = self.lm_head.weight
        if self.work.kernels == "torch":
            # Below `summed_loss`, which looks for tokens without a label, and nothing is in these.
            return chunked_loss(hidden.flatten(0, 1), weight, labels.flatten())
        dtype = torch.float32 if self.work.compute == "fp32" else torch.bfloat16
        states = hidden.reshape(-1, self.width).to(dtype)
        fused: torch.Tensor = LigerLoss.apply(states, weight.to(dtype))  # type: ignore[no-untyped-call]
        return fused
