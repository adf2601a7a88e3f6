"""Memory of one device at the worst moment of a training step, in closed form.

The worst moment differs: with many tokens it is the loss, with few it is the end of the
backward pass, with checkpointed activations a layer that is made again. Each is written
down, and the largest counts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from anadil.plan import activations
from anadil.plan.activations import BF16, FP32, INTEGER, Bytes, bytes_of
from anadil.plan.layout import Layout, Work
from anadil.plan.machine import CPU, Machine
from anadil.plan.shape import Shape
from anadil.units import GIB

CHUNK_TOKENS = 512
"""Tokens whose logits torch's fused loss holds at a time (`anadil.model.loss`)."""

OUTSIDE_BYTES = round(1.5 * GIB)
"""CUDA context (0.4-0.6 GiB), NCCL (0.3-1 GiB) and cuBLAS, which no allocator sees. Assumption."""
PROCESS_BYTES = round(0.6 * GIB)
"""Python, torch and transformers in a process on a CPU: 0.5 GiB measured, rounded up."""
FITS = 0.95
"""Share of the rest that may be filled; what is left is fragmentation (1-3 % with expandable segments)."""
TIGHT = 0.98

Verdict = Literal["fits", "tight", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the allocator of the worst device holds at the worst moment."""

    parts: dict[str, int]
    """Part -> bytes; the parts add up."""
    moment: str
    stage: int
    """Stretch of layers (from 0) whose device it is; 0 without pipeline."""
    prefetched: int
    """Weights of one more layer that FSDP gathers early where transfers run beside the kernels."""

    @property
    def allocated(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def peak_memory(shape: Shape, layout: Layout, work: Work) -> Memory:
    """The worst moment on the worst device."""
    stages = sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})
    return max(
        (memory for stage in stages for memory in _Stage.of(shape, layout, work, stage).moments()),
        key=lambda memory: memory.allocated,
    )


def reserved(memory: Memory, machine: Machine) -> dict[str, int]:
    """What a device needs beside the allocated bytes of a step, by part."""
    if machine.device == CPU:
        return {"Python and libraries": PROCESS_BYTES}
    early = {"prefetched layer": memory.prefetched} if memory.prefetched else {}
    return {**early, "CUDA, NCCL, cuBLAS": OUTSIDE_BYTES}


def limit_bytes(machine: Machine, share: float = FITS) -> int:
    """Most bytes of a step, with what is reserved, that a device of the machine takes."""
    outside = PROCESS_BYTES if machine.device == CPU else OUTSIDE_BYTES
    return round(outside + share * max(0, machine.memory_bytes - outside))


def verdict(total_bytes: float, machine: Machine) -> Verdict:
    """Whether a step fits.

    Args:
        total_bytes: Allocated and reserved bytes.
        machine: Whose device it is.
    """
    if total_bytes <= limit_bytes(machine):
        return "fits"
    return "tight" if total_bytes <= limit_bytes(machine, TIGHT) else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """The device of one stretch of layers; sizes are in bytes, counts in numbers."""

    shape: Shape
    layout: Layout
    work: Work
    size: Bytes
    number: int
    layers: int
    first: bool
    last: bool
    in_flight: int
    """Micro-batches whose activations are kept at a time (one forward, one backward)."""
    tokens: float
    """Of one micro-batch on this device."""

    @classmethod
    def of(cls, shape: Shape, layout: Layout, work: Work, stage: int) -> "_Stage":
        return cls(
            shape=shape,
            layout=layout,
            work=work,
            size=bytes_of(work, layout),
            number=stage,
            layers=math.ceil(shape.layers / layout.pipeline),
            first=stage == 0,
            last=stage == layout.pipeline - 1,
            in_flight=min(layout.pipeline - stage, layout.micro_batches),
            tokens=layout.micro_batch_size * work.sequence_length / layout.context,
        )

    # Counts of numbers.

    @property
    def layer(self) -> float:
        """Parameters of a layer on this device before sharding."""
        return self.shape.layer_matrices / self.layout.tensor + 2 * self.shape.hidden

    @property
    def table(self) -> float:
        """Numbers of one table of embeddings."""
        return self.shape.embedding / self.layout.tensor

    @property
    def tables(self) -> float:
        """Numbers of the tables that this device has."""
        ends = int(self.first) + int(self.last)
        return self.table * (1 if self.shape.tied and ends else ends)

    @property
    def root(self) -> float:
        """Parameters outside the layers, which FSDP gathers as one group."""
        return self.tables + (self.shape.hidden if self.last else 0)

    @property
    def parameters(self) -> float:
        return self.layers * self.layer + self.root

    @property
    def learning_layers(self) -> float:
        """Parameters of the layers that learn."""
        return self.layers * self.layer if self.work.trains == "all" else 0.0

    # Parts.

    def state(self) -> dict[str, float]:
        """Between two steps: weights and moments."""
        learning = self.learning_layers + self.tables
        return {
            "weights": self.size.weight * self.parameters / self.layout.shard,
            "optimizer": 2 * self.size.weight * learning / self.layout.shard,
        }

    def gathered(self, layers: float, *, root: bool = True) -> float:
        """Weights that FSDP has gathered: the root group and some layers."""
        if self.layout.shard == 1:
            return 0.0
        return self.size.compute * ((self.root if root else 0) + layers * self.layer)

    def copies(self, layers: float, *, head: bool = False) -> float:
        """Autocast's copies of the weights of some layers and of the output table.

        Each micro-batch that waits for its backward pass has copies of its own, unless they are
        made again with its activations.
        """
        if not self.size.autocast:
            return 0.0
        if self.layout.recompute == "none":
            layers += (self.in_flight - 1) * self.layers
        return BF16 * (layers * self.shape.layer_matrices + (self.table if head else 0))

    def kept(self, layers: float) -> float:
        """Activations that wait for their backward pass."""
        per_layer = activations.kept(self.shape, self.work, self.layout)
        # Cosines and sines, the integers, and what the next stage has been sent.
        beside = float(2 * self.shape.head_dim * self.size.stream + 3 * INTEGER)
        if not self.last:
            beside += self.size.stream * self.shape.hidden / self.layout.tensor
        if self.work.packed and self.layout.recompute != "none":
            beside += self.work.sequence_length  # the mask of Booleans, for the second forward pass
        others = (self.in_flight - 1) * (self.layers * per_layer + beside)
        return self.tokens * (others + (layers * per_layer + beside if layers else 0))

    def gradients(self, layers: float) -> float:
        """Gradients of layers that are done; all of them where steps are accumulated."""
        if self.layout.micro_batches > 1:
            learning = self.learning_layers + self.tables
            return self.size.reduce * learning / self.layout.shard
        done = layers * self.layer if self.work.trains == "all" else 0.0
        return self.size.reduce * done / self.layout.shard

    # Moments.

    def moments(self) -> Iterator[Memory]:
        if self.last:
            yield self._memory("loss", self.at_loss(forward=True))
            if self.work.loss == "logits" or self.work.kernels == "torch":
                yield self._memory("gradient of the loss", self.at_loss(forward=False))
        for layers in sorted({1, max(1, self.layers - 1), self.layers}):
            yield self._memory(f"backward of layer {layers}", self.in_backward(layers))
        yield self._memory("end of backward", self.at_end())
        if self.layout.shard > 1:
            yield self._memory("sum of the embeddings' gradients", self.at_sum())

    def _memory(self, moment: str, parts: dict[str, float]) -> Memory:
        return Memory(
            parts={name: round(value) for name, value in parts.items() if value >= 0.5},
            moment=moment,
            stage=self.number,
            prefetched=round(self.gathered(1, root=False)),
        )

    def at_loss(self, *, forward: bool) -> dict[str, float]:
        """The loss, in which the fused ones make their gradients too."""
        outside = activations.norm(self.shape, self.work, self.layout, 1, last=True)
        # A layer that is made again makes its copies again. The cache of copies lives as long as
        # the forward pass and holds weights that learn.
        cached = self.layout.recompute == "none" or (forward and self.work.trains == "all")
        return {
            **self.state(),
            "gradients": self.gradients(0),
            "gathered weights": self.gathered(1),
            "autocast copies": self.copies(self.layers if cached else 0, head=self.work.loss == "logits"),
            "activations": self.kept(self.layers) + self.tokens * outside,
            "loss": self.loss(forward=forward),
        }

    def loss(self, *, forward: bool) -> float:
        """What the loss itself holds, beside the states that it reads."""
        if self.work.loss == "logits":
            return self.logits(forward=forward)
        if forward:
            return self.fused()
        # torch's operator gives its gradients out as results, for which autograd makes zeros.
        return 2 * FP32 * (self.tokens * self.shape.hidden + self.table)

    def logits(self, *, forward: bool) -> float:
        """FP32 tables of all logits: with their log-probabilities, then with two gradients.

        Split by the vocabulary the gradient takes one table more.
        """
        tables = 2 if forward else 3 if self.layout.tensor == 1 else 4
        return self.tokens * tables * FP32 * self.shape.vocabulary / self.layout.tensor

    def fused(self) -> float:
        """What a fused loss holds at the worst of its forward pass, which makes its gradients too."""
        tokens, h = self.tokens, self.shape.hidden
        if self.work.kernels == "torch":
            # Everything in FP32: copies of states and table, both gradients, a chunk's logits.
            copies = (
                tokens * FP32 * h + FP32 * self.table
                if self.size.stream != FP32 or self.size.weight != FP32
                else 0
            )
            return copies + tokens * FP32 * h + FP32 * self.table + self.chunk()
        # Gradient of the states; that of the table in FP32, then a chunk's logits or its copy.
        states = tokens * h * (self.size.compute + (self.size.stream if self.size.autocast else 0))
        table = FP32 * self.table + max(self.size.compute * self.table, self.chunk())
        return states + table + (BF16 * self.table if self.size.autocast else 0)

    def chunk(self) -> float:
        """Logits of one chunk of tokens."""
        if self.work.kernels == "torch":
            chunk = min(CHUNK_TOKENS, self.tokens)
            return chunk * FP32 * (self.table / self.shape.hidden + self.shape.hidden)
        share = math.ceil(self.tokens / math.ceil(self.shape.vocabulary / self.shape.hidden))
        chunk = min(self.tokens, 1 << (share - 1).bit_length())
        return chunk * self.size.compute * self.table / self.shape.hidden

    @property
    def gradient(self) -> int:
        """Bytes of a gradient before devices add theirs: as the weight that was used."""
        return self.size.weight if self.layout.shard == 1 else self.size.compute

    def head_gradient(self) -> float:
        """Of the output table, whole until the root group is summed."""
        return self.gradient * self.table if self.last else 0.0

    def in_backward(self, layers: int) -> dict[str, float]:
        """Inside the MLP of a layer (from 1), when all above it are done."""
        done = self.layers - layers
        learns = self.work.trains == "all"
        # FSDP still holds what the previous layer's gradients were added up from.
        communication = self.size.reduce * self.layer if self.layout.shard > 1 and learns and done else 0.0
        down = self.size.compute * self.shape.hidden * self.shape.intermediate / self.layout.tensor
        copies = self.copies(layers if self.layout.recompute == "none" else 1)
        if copies and not learns and self.work.kernels == "torch":
            copies -= down  # its layer is through with that one
        return {
            **self.state(),
            "gradients": self.gradients(done) + self.head_gradient() + (down if learns else 0.0),
            "gathered weights": self.gathered(2),
            "autocast copies": copies,
            "activations": self.kept(layers),
            "recomputation": self.tokens * (self.again() + self.flow()),
            "communication": communication,
        }

    def again(self) -> float:
        """What checkpointing makes again for one layer, per token."""
        if self.layout.recompute == "none":
            return 0.0
        made = activations.whole(self.shape, self.work, self.layout)
        if self.layout.recompute == "selective":
            # Queries are rotated again, beside those that were kept.
            made += self.size.compute * self.shape.query_width / self.layout.tensor
        return made - activations.kept(self.shape, self.work, self.layout)

    def flow(self) -> float:
        """Gradients of activations inside a layer's MLP at their worst, per token."""
        hidden, inner = self.shape.hidden, self.size.compute * self.shape.intermediate / self.layout.tensor
        learns = self.work.trains == "all"
        if self.work.kernels == "torch":
            # Three gradients are made; the product is dropped, where it was kept.
            return FP32 * hidden / self.layout.tensor + (2 if learns else 3) * inner
        # Liger writes the gradients of gate and up over the values themselves.
        incoming = self.size.stream * hidden / self.layout.tensor
        if self.size.autocast:
            incoming += self.size.compute * hidden
        if not learns:
            # The worst is the second forward pass, in which the norm's output is still there.
            incoming += self.size.stream * hidden
        return incoming + inner

    def at_end(self) -> dict[str, float]:
        """All gradients are there; a tied table's twice, and their sum."""
        tied = self.shape.tied and self.first and self.last
        tables = self.table * (3 if tied else int(self.first) + int(self.last))
        if self.layout.tensor > 1 and self.first:
            # A lookup in a table that is split by rows gives the gradient of the whole table first.
            tables += self.shape.embedding
        added_up = self.layout.shard > 1 and self.work.trains == "all"
        return {
            **self.state(),
            "gradients": self.gradients(self.layers) + self.gradient * tables,
            "gathered weights": self.gathered(0 if added_up else 1),
            "autocast copies": self.copies(0),
            "activations": self.kept(0),
            "communication": self.size.reduce * self.layer if added_up else 0.0,
        }

    def at_sum(self) -> dict[str, float]:
        """FSDP adds up the gradients of the root group, from a copy in the sum's precision."""
        return {
            **self.state(),
            "gradients": self.gradients(self.layers) + self.size.compute * self.tables,
            "activations": self.kept(0),
            "communication": self.size.reduce * self.tables,
        }
