"""Memory of one device at the worst moment of a training step, in closed form.

The worst moment differs: with many tokens it is the loss, with few it is the end of the
backward pass, with checkpointed activations a layer that is made again. Each is written
down, and the largest counts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from anadil.estimate import activations, layer_memory
from anadil.estimate.activations import BF16, FP32, INTEGER, Bytes, bytes_of
from anadil.estimate.layout import Layout, Work
from anadil.estimate.model_shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that the allocator of the worst device holds at the worst moment."""

    parts: dict[str, int]
    """Part -> bytes; the parts add up."""
    moment: str
    stage: int
    """Pipeline stage (from 0) whose device it is."""
    prefetched: int
    """Weights of one more layer that FSDP gathers early where transfers run beside the kernels."""

    @property
    def allocated(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def peak_memory(shape: Shape, layout: Layout, work: Work) -> Memory:
    """The worst moment on the worst device."""
    layer = _layer(shape, layout, work)
    layers = [(shape, layer)]
    if shape.widest and not shape.kinds:  # with the mean of what is summed over layers
        widest = replace(shape.widest, vocabulary=shape.vocabulary, tied=shape.tied)
        wide = _layer(widest, layout, work)
        whole = wide.whole - wide.saved + layer.saved
        layers += [(widest, replace(layer, whole=whole, attention=wide.attention, apart=wide.apart))]
    # The stages between the second and the last need less than the second.
    stages = [
        _Stage(each, layout, work, number, layer)
        for each, layer in layers
        for number in sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})
    ]
    moments = [
        (sum(parts.values()), name, parts, stage) for stage in stages for name, parts in stage.moments()
    ]
    _, moment, parts, stage = max(moments, key=lambda each: each[0])
    return Memory(
        parts={name: round(value) for name, value in parts.items() if value >= 0.5},
        moment=moment,
        stage=stage.number,
        prefetched=round(stage.gathered(1, root=False)),
    )


def _layer(shape: Shape, layout: Layout, work: Work) -> "_Layer":
    return _Layer(
        apart=0.0 if shape.kinds else activations.received_apart(shape, work, layout),
        parameters=(shape.layer - shape.norm_weights) / layout.tensor + shape.norm_weights,
        matrices=shape.linear_matrices,
        table=shape.embedding / layout.tensor,
        whole=activations.layer_bytes(shape, work, layout),
        saved=activations.saved_bytes(shape, work, layout),
        attention=activations.entry_bytes(shape, work, layout, activations.attention_readers(shape))
        + activations.attention_bytes(shape, work, layout),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer: counts of numbers on a device before sharding, and bytes per token."""

    parameters: float
    matrices: float
    """Numbers in matrices that are modules of their own."""
    table: float
    """Numbers of a table of embeddings."""
    whole: float
    """Saved for the backward pass where nothing is recomputed."""
    saved: float
    """Saved under the layout's activation checkpointing."""
    attention: float
    """Saved of attention and of the norm before it."""
    apart: float
    """Bytes that it received, where `whole` does not hold them."""


class _Stage:
    """The device of one pipeline stage; sizes are in bytes, counts in numbers."""

    def __init__(self, shape: Shape, layout: Layout, work: Work, number: int, each: _Layer) -> None:
        self.shape, self.layout, self.work, self.number, self.each = shape, layout, work, number, each
        self.size: Bytes = bytes_of(work, layout)
        self.has_liger_layers = activations.has_liger_layers(shape, work)
        self.learns = work.trains == "all"
        self.expert_size = activations.expert_size(work, layout)
        # Bytes of what an expert gives times its score.
        self.scored_size = FP32 if shape.architecture.scores_in_fp32 else self.expert_size
        self.layers = math.ceil(shape.layers / layout.pipeline)
        self.first, self.last = number == 0, number == layout.pipeline - 1
        self.begin = round(number * shape.layers / layout.pipeline)
        # Micro-batches whose activations wait at a time (one forward, one backward), and tokens of each.
        self.in_flight = min(layout.pipeline - number, layout.micro_batches)
        self.tokens = layout.micro_batch_size * work.sequence_length / layout.context
        ends = int(self.first) + int(self.last)
        self.tables = each.table * (1 if shape.tied and ends else ends)
        norm = shape.architecture.norm_size * shape.hidden if self.last else 0
        self.outside = self.tables + shape.layer_table + norm  # parameters outside the layers
        # FSDP gathers two tables apart: the second with the norm, until its gradient is summed.
        apart = layout.shard > 1 == layout.pipeline and not shape.tied
        self.head = each.table + norm if apart else 0.0
        # Else it gathers all of them as one group.
        self.root = 0.0 if apart else self.outside
        self.learning_tables = self.tables + shape.layer_table * self.learns
        # Tables whose gradients are summed last.
        self.summed_last = each.table if apart else self.learning_tables
        self.learning_layers = self.layers * each.parameters if self.learns else 0.0
        # torch's stages let FSDP add gradients up whole, over all micro-batches.
        self.adds_up_whole = layout.pipeline > 1 and layout.shard > 1
        # Bytes of a gradient before devices add theirs: as the weight that was used.
        self.gradient = self.size.weight if layout.shard == 1 else self.size.compute
        # True if gradients of several micro-batches are added up at once, as no devices share them.
        self.adds_at_once = layout.shard == 1 < layout.micro_batches
        # Bytes of a number's gradient that autocast's copy has in a pipeline. Casts of the first micro-batch are older
        # than all that later ones do, so that autograd comes to them last.
        self.copy_gradient = BF16 * (self.learns and self.size.autocast and layout.pipeline > 1)

    # Parts.

    def state(self) -> dict[str, float]:
        """Between two steps: weights and moments."""
        learning, moments = (
            self.learning_layers + self.learning_tables,
            len(self.work.optimizer_facts.moments),
        )
        # torch's stages receive states of every micro-batch from before, gradients from behind.
        states = self.tokens * self.size.stream * self.shape.hidden / self.layout.tensor
        neighbours = int(not self.first) + int(not self.last)
        # And it keeps the gradients that it sent last until it sends others.
        buffers = neighbours * self.layout.micro_batches + int(not self.first)
        parameters = self.layers * self.each.parameters + self.outside
        return {
            "weights": self.size.weight * parameters / self.layout.shard,
            "optimizer": moments * self.size.weight * learning / self.layout.shard,
            "pipeline buffers": buffers * states,
        }

    def gathered(self, layers: float, *, root: bool = True) -> float:
        """Weights that FSDP has gathered: the root group and some layers."""
        if self.layout.shard == 1:
            return 0.0
        return self.size.compute * ((self.root if root else 0) + layers * self.each.parameters)

    def copies(self, layers: float, *, head: bool = False) -> float:
        """Autocast's copies of the weights of some layers and of the output table.

        A pipeline's step is one autocast, whose cache holds those of weights that learn until its end. Of frozen ones
        each micro-batch that waits for its backward pass has copies of its own, unless they are made again with its
        activations.
        """
        if not self.size.autocast:
            return 0.0
        if self.layout.pipeline > 1 and self.learns:
            layers = self.layers
        elif self.layout.recompute == "none":
            layers += (self.in_flight - 1) * self.layers
        small = self.shape.hidden * (self.shape.experts + (self.shape.shared > 0))
        matrices = self.each.matrices + small
        return BF16 * (layers * matrices + (self.each.table if head else 0))

    def saved(self, layers: float) -> float:
        """Activations that wait for their backward pass."""
        # Cosines and sines, the integers, and what the next stage has been sent.
        beside = activations.shared_rotation(self.shape, self.work, self.layout) + 3 * INTEGER
        beside += activations.layer_input_bytes(self.shape, self.work, self.layout)
        if self.layout.recompute != "none":  # else their layers keep them
            beside += self.size.compute * self.shape.shared_keys
        states = self.size.stream * self.shape.hidden / self.layout.tensor
        if not self.last:
            beside += states
        if not self.first and (self.layout.recompute != "none" or self.each.apart < states):
            beside -= states  # the first layer holds the pipeline's buffer
        others = (self.in_flight - 1) * (self.layers_saved(self.layers) + beside)
        return self.tokens * (others + (self.layers_saved(layers) + beside if layers else 0))

    def layers_saved(self, layers: float) -> float:
        """Saved of the lowest layers, per token."""
        if not self.shape.kinds:
            return layers * self.each.saved
        below = range(self.begin, self.begin + int(layers))
        counts = ((kind, sum(place in below for place in kind.places)) for kind in self.shape.kinds)
        return sum(
            num * activations.saved_of_kind(self.shape, kind, self.work, self.layout) for kind, num in counts
        )

    def gradients(self, layers: float) -> float:
        """Gradients of layers that are done; all of them where steps are accumulated."""
        if self.layout.micro_batches > 1:
            learning = self.learning_layers + self.learning_tables
            whole = self.size.reduce * learning / (1 if self.adds_up_whole else self.layout.shard)
            return whole + (self.copy_gradient * layers * self.each.matrices if self.copy_gradient else 0.0)
        done = layers * self.each.parameters if self.learns else 0.0
        return self.size.reduce * done / self.layout.shard

    def gradients_above(self, layers: int, numbers: float = 0.0) -> float:
        """Gradients of what is above a layer (from 1), and of some numbers of the layer itself."""
        each = self.copy_gradient if self.adds_at_once else self.gradient * self.learns
        return self.gradients(self.layers - layers) + self.head_gradient() + each * numbers

    def left_over(self) -> float:
        """Buffer from which FSDP summed the tables' gradients in the micro-batch before, until the next such sum."""
        if self.layout.shard == 1 or self.layout.micro_batches == 1 or self.adds_up_whole:
            return 0.0
        return self.size.reduce * self.summed_last

    # Moments.

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Name and parts of every moment that can be the worst."""
        if self.shape.layer_inputs:
            yield "norm of layer inputs", self.at_layer_inputs()
        if self.last:
            yield "loss", self.at_loss(forward=True)
            if self.work.loss == "logits" or self.work.kernels == "torch":
                yield "gradient of the loss", self.at_loss(forward=False)
            if not self.has_liger_layers:
                yield "norm before the loss", self.at_last_norm()
        yield from self.in_kinds()
        # The first layers find fewer next ones to gather, the last one no sums under way.
        ahead = min(1 + self.layout.prefetch, self.layers)
        counts = {1, min(2, self.layers), ahead, max(1, self.layers - 1), self.layers}
        for layers in sorted(counts) if not self.shape.kinds else ():
            parts = self.in_backward(layers)
            yield f"backward of layer {layers}", parts
            yield f"backward of layer {layers}, attention", parts | self.in_attention(layers)
            if self.shape.caps_scores:
                yield f"backward of layer {layers}, scores", parts | self.in_capped_scores(layers)
            if self.layout.recompute == "selective" and not self.has_liger_layers:
                yield f"second forward pass of layer {layers}, attention", parts | self.in_rotation(layers)
            yield f"backward of layer {layers}, its end", parts | self.at_layer_end(layers)
            if self.shape.experts:
                yield f"backward of layer {layers}, scores of its experts", parts | self.in_scores(layers)
                yield f"backward of layer {layers}, input of its experts", parts | self.in_experts(layers)
                if self.layout.recompute != "none" or layers == self.layers:
                    yield f"forward pass of layer {layers}", parts | self.in_forward(layers)
            if self.shape.architecture.inner_norms:
                yield f"backward of layer {layers}, norm in its MLP", parts | self.in_inner_norm()
            if self.shape.architecture.norms_after:
                yield f"backward of layer {layers}, its last norm", parts | self.in_last_norm(layers)
        yield "end of backward", self.at_end()
        if self.layout.shard > 1:
            yield "sum of the embeddings' gradients", self.at_sum()

    def at_layer_inputs(self) -> dict[str, float]:
        """Inside the norm of what is added to all layers' columns, before the first layer."""
        states = (2 * self.size.stream + 3 * FP32) * self.shape.columns + self.size.stream * self.shape.hidden
        return {
            **self.state(),
            "gradients": self.gradients(0),
            # FSDP keeps the buffer in which it gathered a group until it gathers the next one.
            "gathered weights": 2 * self.gathered(0),
            "activations": self.tokens * states,
            "communication": self.left_over(),
        }

    def at_loss(self, *, forward: bool) -> dict[str, float]:
        """The loss, in which the fused ones make their gradients too."""
        outside = activations.norm_bytes(self.shape, self.work, self.layout, 1, last=True)
        if self.shape.scales_logits:  # by its states
            outside += self.size.stream * self.shape.hidden / self.layout.tensor
        # A layer that is made again makes its copies again. The cache of copies lives as long as
        # the forward pass and holds weights that learn.
        cached = self.layout.recompute == "none" or (forward and self.learns)
        # One layer: what the last one received, until the forward pass ends, then its weights again.
        # A stage's layers go when they are through, and torch's stage asks for none again yet.
        layers = 0 if self.adds_up_whole else 1
        if not self.layout.reshard:
            layers = self.layers + int(forward)
        if self.head and forward:  # received last
            layers -= 1
        return {
            **self.state(),
            "gradients": self.gradients(0),
            "gathered weights": self.gathered(layers) + self.size.compute * self.head * (1 + forward),
            "autocast copies": self.copies(self.layers if cached else 0, head=self.work.loss == "logits"),
            "activations": self.saved(self.layers) + self.tokens * outside,
            "loss": activations.loss_bytes(self.shape, self.layout, self.work, self.tokens, forward=forward),
            "communication": self.left_over(),
        }

    def at_last_norm(self) -> dict[str, float]:
        """Inside the norm before the output table, when the loss is through."""
        held = FP32 * self.shape.hidden / self.layout.tensor
        return {
            **self.at_loss(forward=False),
            "gradients": self.gradients(0) + self.head_gradient(),
            "activations": self.saved(self.layers) + self.tokens * held,
            "loss": self.tokens * self.in_norm(),
        }

    def in_norm(self) -> float:
        """Torch's norm, backwards: a gradient, and four FP32 copies for the square of what it read; per token."""
        kind, hidden = self.shape.architecture.norm, self.shape.hidden / self.layout.tensor
        if kind == "layer":
            return 2 * self.size.stream * hidden
        return (2 if kind == "bare" else 5) * FP32 * hidden

    def head_gradient(self) -> float:
        """Gradient of the output table, whole until its group is summed, or a tied one's until its lookup's is there."""
        if self.head:
            return self.size.reduce * self.head / self.layout.shard if self.layout.micro_batches == 1 else 0.0
        added = self.adds_at_once and not (self.shape.tied and self.first)
        return self.gradient * self.each.table if self.last and not added else 0.0

    def in_backward(self, layers: int) -> dict[str, float]:
        """Inside the MLP of a layer (from 1), when all above it are done."""
        done = self.layers - layers
        # FSDP still holds what the previous group's gradients were added up from.
        communication = self.size.reduce * self.head or self.left_over()
        if self.layout.shard > 1 and self.learns and done and not self.adds_up_whole:
            communication = self.size.reduce * self.each.parameters
        down = self.size.compute * self.shape.hidden * self.shape.linear_width / self.layout.tensor
        stack = (self.gradient if self.learns else 0) * self.shape.stack
        copies = self.layer_copies(layers)
        waits = self.learns or self.has_liger_layers or self.shape.experts or self.shape.architecture.parallel
        if copies and not waits:
            copies -= down  # its layer is through with that one
        gone = activations.gated_input_bytes(self.shape, self.work, self.layout)
        # The gradient for all layers' columns, and this layer's among zeros.
        columns = 2 * self.size.stream * self.shape.columns
        return {
            **self.state(),
            "gradients": self.gradients_above(layers) + (stack or down * self.learns),
            # Its own and the next ones', or all that it has not come to yet. torch's stage lets go of none in between.
            "gathered weights": self.gathered(
                (min(layers, 1 + self.layout.prefetch) if self.layout.reshard else layers)
                + done * self.adds_up_whole
            ),
            "autocast copies": copies,
            "activations": self.saved(layers),
            "recomputation": self.tokens * (self.again() + self.flow() - gone),
            "gradients of layer inputs": self.tokens * columns,
            "communication": communication,
        }

    def in_kinds(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Moments of layers of the kinds that `layer_memory.json` holds: the lowest and the highest of each."""
        step, again = activations.step_name(self.work, self.layout), self.layout.recompute != "none"
        states = self.size.stream * self.shape.hidden
        for kind in self.shape.kinds:
            places = [
                place - self.begin + 1 for place in kind.places if 0 <= place - self.begin < self.layers
            ]
            others = states + (activations.others_keys(kind, self.work, self.layout) if again else 0.0)
            times = activations.whole_sequences(kind, self.layout)
            backward = layer_memory.moments(self.shape.model_type, kind, step, "backward")
            for layers, (token, layer) in product({*places[:1], *places[-1:]}, backward):
                yield (
                    f"backward of layer {layers}",
                    {
                        **self.in_backward(layers),
                        "gradients": self.gradients_above(layers),
                        "autocast copies": self.copies(0 if again else layers),
                        "recomputation": self.tokens * (times * token + others) + layer,
                    },
                )
            forward = layer_memory.moments(self.shape.model_type, kind, step, "forward")
            for layers, (token, layer) in product(places[-1:], forward):
                yield (
                    f"forward pass of layer {layers}",
                    {
                        **self.in_backward(layers),
                        "gradients": self.gradients(0),
                        "autocast copies": self.copies(layers - 1),
                        "activations": self.saved(layers - 1),
                        "recomputation": self.tokens * (times * token + others) + layer,
                        "communication": self.left_over(),
                    },
                )

    def in_inner_norm(self) -> dict[str, float]:
        """Parts that differ inside the norm of what an MLP's last matrix reads, which is through."""
        width, learns = self.shape.intermediate, self.learns
        flow = self.size.stream * self.shape.hidden + (5 * FP32 - 2 * learns * self.size.compute) * width
        return {"recomputation": self.tokens * (self.again() + flow)}

    def in_last_norm(self, layers: int) -> dict[str, float]:
        """Parts that differ inside the norm after the MLP, with which the layer's backward pass begins."""
        normalized = activations.normalized_states(self.shape, self.work, self.layout)
        # A layer that gates its columns ends with a product by a number: its gradient and that of what it is of.
        streams = 3 if self.shape.layer_inputs and self.size.autocast else 1
        flow = (
            streams * self.size.stream * self.shape.hidden / self.layout.tensor + self.in_norm() - normalized
        )
        return {
            "gradients": self.gradients_above(layers),
            "autocast copies": self.layer_copies(layers),
            "recomputation": self.tokens * (self.again() + flow),
        }

    def layer_copies(self, layers: int) -> float:
        """Autocast's copies when a layer's backward pass begins."""
        return self.copies(layers if self.layout.recompute == "none" else 1)

    def in_attention(self, layers: int) -> dict[str, float]:
        """Parts that differ inside a layer's attention, when the gradients of its MLP's matrices exist."""
        shape, tensor, size = self.shape, self.layout.tensor, self.size
        keys = shape.kv_width * self.layout.context
        saved = self.each.attention + (self.each.apart if self.layout.recompute != "none" else 0.0)
        if self.layout.recompute == "selective":
            saved += size.compute * shape.query_width / tensor
        # The input, and the gradients of output, queries, keys and values.
        flow = size.stream * shape.hidden + size.compute * 2 * (shape.query_width + keys)
        matrices = shape.hidden * (shape.mlp_matrices * shape.linear_width + shape.query_width) / tensor
        matrices += 3 * shape.stack
        others = self.saved(layers) - self.tokens * self.each.saved
        return {
            "gradients": self.gradients_above(layers, matrices),
            "activations": others + self.tokens * saved,
            "recomputation": self.tokens * flow / tensor,
        }

    def in_capped_scores(self, layers: int) -> dict[str, float]:
        """Parts that differ inside a document's attention, when what the last matrix read is dropped."""
        parts = self.in_attention(layers)
        copies = self.learns + (self.layout.recompute == "selective")
        read = copies * self.size.compute * self.shape.query_width
        return {
            **parts,
            "activations": parts["activations"] - self.tokens * read,
            "scores": activations.score_tables(self.shape, self.work, self.layout),
        }

    def in_rotation(self, layers: int) -> dict[str, float]:
        """Parts that differ in a second forward pass that has rotated queries and keys and laid them out for attention."""
        shape, size, heads = self.shape, self.size, self.shape.query_width + self.shape.kv_width
        kind = shape.architecture
        # The incoming gradient and its copy, the norm's output and its copy.
        flow = 2.0 * (size.stream + size.compute * size.autocast) * shape.hidden
        rotated = (2 * size.stream + size.compute * size.autocast) * heads
        if size.autocast:
            # Matrices that learn keep a copy each of what they read, and the norm before them keeps its own.
            copied = kind.norm != "layer"
            read = activations.attention_readers(shape) * size.compute
            read += kind.norms_before * (FP32 * copied + size.compute)
            flow = (2.0 * size.stream + (read if self.learns else size.compute)) * shape.hidden
            if not kind.fused_inputs:  # queries, and their halves in turn; both times their angles
                rotated = 2 * (size.stream + size.compute) * shape.query_width
            if kind.rotation in ("own", "own_fp32"):
                flow += 2 * FP32 * shape.rotary_share * shape.head_dim
            if kind.head_norms in ("head", "width"):
                flow += (FP32 + copied * (size.stream if self.learns else size.compute)) * heads
                flow += FP32 * (2 if kind.head_norms == "width" else shape.heads + shape.kv_heads)
        flow += rotated
        return {
            "gradients": self.gradients_above(layers),
            "autocast copies": BF16 * size.autocast * shape.hidden * (heads + shape.kv_width),
            "recomputation": self.tokens * flow / self.layout.tensor,
        }

    def in_scores(self, layers: int) -> dict[str, float]:
        """Parts that differ where a layer's experts have given their rows, before any gradient of theirs."""
        shape, size = self.shape, self.expert_size
        product = self.scored_size
        # Gradients of rows in order and by expert, and of scores by row. Rows go back to the precision of products
        # beside what the experts gave, which a second forward pass lets go of before.
        rows = 3 * product + (size if size != product and self.layout.recompute == "none" else 0)
        flow = self.size.stream * (2 if shape.shared else 1) + rows * shape.chosen
        return {
            "gradients": self.gradients_above(layers),
            "recomputation": self.tokens * (self.again() + flow * shape.hidden),
        }

    def in_forward(self, layers: int) -> dict[str, float]:
        """Parts that differ where experts have made what their last matrix reads, or rows with scores."""
        shape, frozen, size = self.shape, not self.learns, self.expert_size
        again = self.layout.recompute != "none"
        # Beside what is kept: the gradients of the layer and of rows, what was added last and what is not read again.
        # A first pass still has the embeddings, which no norm keeps unless they are in FP32.
        beside = (2 + (not again and self.size.stream < FP32)) * self.size.stream + frozen * self.size.compute
        beside += shape.chosen * (again * self.scored_size + frozen * size)
        # Biases of each row, and what they were clamped to.
        biases = 3 * shape.architecture.expert_biases
        read = size * ((frozen + biases) * shape.expert_width - shape.hidden)
        rows = shape.chosen * max(read, self.scored_size * shape.hidden)
        parts = {"recomputation": self.tokens * (self.again() + beside * shape.hidden + rows)}
        return {**self.in_scores(layers), **parts} if again else {"gradients": self.gradients(0), **parts}

    def in_experts(self, layers: int) -> dict[str, float]:
        """Parts that differ when the gradients of a layer's experts exist, and those of their rows are made."""
        shape, size = self.shape, self.expert_size
        rows = size * shape.chosen * (2 * shape.expert_width + shape.hidden)
        left = self.each.saved - activations.mixture_bytes(shape, self.work, self.layout)
        mine = (
            self.each.saved if self.layout.recompute != "none" else left + size * shape.chosen * shape.hidden
        )
        again = self.again() - activations.mixture_bytes(shape, self.work, self.layout)
        return {
            "gradients": self.gradients_above(layers, 3 * shape.stack),
            "activations": self.saved(layers) + self.tokens * (mine - self.each.saved),
            "recomputation": self.tokens * (max(0.0, again) + rows + self.size.stream * shape.hidden),
        }

    def at_layer_end(self, layers: int) -> dict[str, float]:
        """Parts that differ when all gradients of a layer exist, and the input of its first norm is left."""
        entry = self.size.stream * self.shape.hidden / self.layout.tensor
        return {
            "gradients": self.gradients_above(layers, self.each.parameters),
            "activations": self.saved(layers) - self.tokens * (self.each.saved - entry),
            # The input, the gradients of queries, keys and values, and their sum.
            "recomputation": self.tokens * 5 * entry,
        }

    def again(self) -> float:
        """Bytes that checkpointing recomputes for one layer, per token."""
        if self.layout.recompute == "none":
            return 0.0
        made = self.each.whole + self.each.apart
        whole = self.shape.architecture.norms_after or self.shape.experts
        if self.layout.recompute == "selective" and not whole:
            # The output of the last product, which nothing in the second forward pass asks for.
            made += self.size.compute * self.shape.hidden
        return made - self.each.saved

    def flow(self) -> float:
        """Gradients of activations inside a layer's MLP at their worst, per token."""
        hidden, inner = self.shape.hidden, self.size.compute * self.shape.intermediate / self.layout.tensor
        if self.shape.experts:
            width: float = self.shape.chosen * self.shape.expert_width
            # As below; and rows that the experts gave are through.
            made = (2 if self.learns else 3) * width - self.shape.chosen * hidden
            return self.size.stream * hidden + self.expert_size * made
        # Beside the MLP's waits the gradient of what attention gave, in the precision of products.
        kind = self.shape.architecture
        of_attention = self.size.compute * hidden * (kind.parallel and self.size.autocast)
        if not self.has_liger_layers:
            in_fp32 = self.layout.recompute == "none" and kind.gated and kind.norm != "bare"
            stream = FP32 if in_fp32 else self.size.stream
            width, tensor, compute = self.shape.intermediate, self.layout.tensor, self.size.compute
            each = activations.mlp_gradient_bytes(self.shape, self.work, self.layout)
            # Before it, one gradient, of what the last matrix read, and the copy that made it.
            read = compute * (width / tensor + hidden * self.size.autocast)
            gradients = max(each * width / tensor + of_attention, read)
            if kind.mlp == "xielu" and not self.learns and self.layout.recompute != "none":
                # Terms of a second forward pass, beside states that it still needs and the norm's output.
                twice = self.layout.recompute == "selective" and self.size.autocast
                states = hidden * (compute * (2 if self.size.stream < FP32 else 1) + FP32 * twice)
                gradients = max(gradients, (3 * self.size.stream + compute) * width + states)
            return stream * hidden / tensor + gradients
        # Liger writes the gradients of gate and up over the values themselves.
        incoming = self.size.stream * hidden / self.layout.tensor
        if self.size.autocast:
            incoming += self.size.compute * hidden
        if not self.learns:
            # The worst is the second forward pass, in which the norm's output is still there.
            incoming += self.size.stream * hidden
        return incoming + inner

    def at_end(self) -> dict[str, float]:
        """All gradients are there; a tied table's twice, and their sum, or what the other end of the pipeline made."""
        tables = self.each.table * (self.first + (self.shape.tied and (self.first or self.last)))
        tables += self.shape.layer_table * self.learns
        if self.layout.tensor > 1 and self.first:
            # A lookup in a table that is split by rows gives the gradient of the whole table first. Then a
            # process copies its rows; before, it has gathered the gradients of all tokens.
            gathered = 2 * self.tokens * self.shape.hidden
            tables += self.shape.embedding + max(0.0, gathered - self.each.table)
        added_up = self.layout.shard > 1 and self.learns
        return {
            **self.state(),
            "gradients": self.gradients(self.layers) + self.head_gradient() + self.gradient * tables,
            "gathered weights": self.gathered(0 if added_up else 1),
            "autocast copies": self.copies(0),
            "activations": self.saved(0),
            "communication": self.size.reduce * (self.each.parameters if added_up else self.head),
        }

    def at_sum(self) -> dict[str, float]:
        """FSDP adds up the gradients of its last group, from a copy in the sum's precision."""
        head = self.head_gradient() if self.head else 0.0
        # Gradients that are copied, or a lookup's gradient, which stays, beside this device's part of the sum.
        part = self.size.reduce * self.summed_last / self.layout.shard
        copied = max(self.size.compute * self.summed_last, self.size.compute * self.each.table + part)
        return {
            **self.state(),
            "gradients": self.gradients(self.layers) + head + copied,
            "activations": self.saved(0),
            "communication": self.size.reduce * self.summed_last,
        }
