"""The peak of a real training step: the engine and the model on fake tensors, without a GPU.

The engine's own code lays transformers' model of the base's type over the processes of a group that
does not exist, and runs a step of it: shards, splits, stages, recomputation, its loss and its
optimizer. Tensors have shapes and no content, so nothing is computed. Three things are not the
engine's: the launch of Triton kernels is left out, Liger's loss, which needs a GPU to choose its path,
is retold, and without Liger the loss is that of a CPU without BF16 products. `torch.compile` and products
in FP8 are left out. torch is pinned: much of what is used here is not public.

Source of the approach: torch's `FakeTensorMode` and `fake` process group.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers.models.llama.modeling_llama as llama
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from anadil.core.stages import BUILT_IN
from anadil.estimate.activations import liger_chunk_tokens
from anadil.estimate.layout import Layout, Work
from anadil.estimate.model_shape import Shape
from anadil.model import loss as losses
from anadil.model.family_table import check_family
from anadil.model.kernels import use_liger_kernels
from anadil.model.process_group import Group
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.optimizer import make_optimizer, train_only
from anadil.pretrain.parallel import context, parallelize
from anadil.pretrain.parallel.fsdp import Replicas
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.recipe.load import load_recipe
from anadil.recipe.pretrain import Parallelism, Phase, Pretrain
from anadil.tokens.packing import Packed, TokenStream, pack

LIGER_PATCHES = ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")
MEANS = ("head_dim", "intermediate_size", "num_key_value_heads")
FAKE_DEVICE = torch.device("cpu")


def exact_peak(
    shape: Shape,
    layout: Layout,
    work: Work,
    settings: Pretrain | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Bytes that the allocator holds at the worst moment of a step, over all pipeline stages.

    The optimizer has its state, as in every step but the first.

    Args:
        shape: The model.
        layout: How devices share it.
        work: What a step computes.
        settings: Section `pretrain`, for what neither says; None takes the built-in recipe's.
        more: Keys of config.json that `shape` does not hold.

    Raises:
        PreflightError: The layout is not proven for the model's type.
    """
    check_family({"model_type": shape.model_type}, layout.degrees)
    chosen = with_layout(settings or load_recipe(BUILT_IN).pretrain, layout, work)
    one = {"phases": (Phase(trains=work.trains, steps=1, lr=1e-5),), "compile": False, "matmul": "same"}
    chosen = chosen.model_copy(update=one)
    stages = sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})
    return max(peak_of(shape, layout, work, chosen, stage, more) for stage in stages)


def peak_of(
    shape: Shape, layout: Layout, work: Work, settings: Pretrain, stage: int, more: Mapping[str, Any]
) -> int:
    """The peak of one device of a pipeline stage."""
    borders = torch.arange(layout.micro_batch_size + 1, dtype=torch.int32) * work.sequence_length
    with ExitStack() as stack:
        # The stage's last process: of those that share a sequence, it sees the most keys.
        rank = (stage + 1) * layout.devices // layout.pipeline - 1
        mesh = stack.enter_context(_mesh(settings, rank, layout.devices))
        stack.enter_context(_stand_ins(shape, settings))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = AutoModelForCausalLM.from_config(
            config_of(shape, work.sequence_length, more), dtype=torch.float32, trust_remote_code=False
        )
        for parameter in model.parameters():
            parameter.constant = (
                None  # else operators see the number of which it was made, whatever it is cast to
            )
        net = parallelize.parallelize(model, settings, mesh, FAKE_DEVICE)
        return _step(net, settings, borders)


def _step(net: parallelize.ParallelModel, settings: Pretrain, borders: torch.Tensor) -> int:
    phase = settings.phases[0]
    parameters = net.parameters()
    train_only(parameters, list(parameters) if phase.trains == "all" else net.tables & parameters.keys())
    learning = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimizer = make_optimizer(parameters, phase, settings, net.tables) if learning else None
    replicas = Replicas(learning, net.replicas_group())
    micro_batches = settings.batch_size // net.mesh.data // settings.micro_batch_size
    allocated = AllocatedBytes()
    for tensor in (*net.model.parameters(), *net.model.buffers()):
        allocated.add(tensor)
    with allocated.following():
        if optimizer is not None:
            for parameter in learning:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        allocated.peak = 0
        net.backward([_batch(net, settings, borders) for _ in range(micro_batches)], 1.0, replicas=replicas)
        replicas.wait()
        if optimizer is not None:
            optimizer.step()
    return allocated.peak


def _batch(net: parallelize.ParallelModel, settings: Pretrain, borders: torch.Tensor) -> Batch:
    size = (settings.micro_batch_size, settings.sequence_length)
    ids, positions, labels = (torch.zeros(size, dtype=torch.long) for _ in range(3))
    return net.share(Batch(input_ids=ids, position_ids=positions, labels=labels, borders=borders))


def with_layout(settings: Pretrain, layout: Layout, work: Work) -> Pretrain:
    """Section `pretrain` with a layout and a step's work in place of its own."""
    degrees = {**layout.degrees, "prefetch": layout.prefetch, "reshard": layout.reshard}
    changed = {
        "batch_size": layout.batch_size,
        "micro_batch_size": layout.micro_batch_size,
        "sequence_length": work.sequence_length,
        "precision": work.compute,
        "state": work.state,
        "kernels": work.kernels,
        "activation_checkpointing": layout.recompute,
        "parallelism": Parallelism.model_validate(degrees),
    }
    return settings.model_copy(update=changed)


def config_of(
    shape: Shape, sequence_length: int, more: Mapping[str, Any] = MappingProxyType({})
) -> PreTrainedConfig:
    """Transformers' configuration of a model with these sizes, for inputs of a length, without a cache."""
    settings: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(2_048, sequence_length),
        "tie_word_embeddings": shape.tied,
        "use_cache": False,
        # Sizes decide memory; a shorter window or a row for padding would only be in the way. Gemma 3 needs a window.
        "sliding_window": max(2_048, sequence_length),
        "pad_token_id": None,
        "attn_implementation": "sdpa",
    }
    if shape.widest or shape.kinds:  # these are means, and `more` has what they are of
        settings = {key: value for key, value in settings.items() if key not in MEANS}
    biases = {
        shape.architecture.mlp_bias_key: shape.mlp_bias,
        shape.architecture.bias_key: shape.attention_bias,
    }
    settings |= {key: value for key, value in biases.items() if key}
    if shape.rotary_share != 1:
        settings["partial_rotary_factor"] = shape.rotary_share
    config: PreTrainedConfig = AutoConfig.for_model(shape.model_type, **(settings | dict(more)))
    return config


def random_model(shape: Shape, work: Work, device: torch.device, seed: int) -> PreTrainedModel:
    """A model of some sizes with random FP32 weights, the same on every process."""
    torch.manual_seed(seed)
    config = config_of(shape, work.sequence_length)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    placed: PreTrainedModel = model.to(torch.float32)
    return placed


def random_tokens(shape: Shape, work: Work, num_sequences: int, seed: int, *, documents: int = 1) -> Packed:
    """Random documents that fill sequences without padding, so many in each."""
    # A document of n tokens has n - 1 pairs of neighbours, which are what fills a sequence.
    pairs = np.full(documents, work.sequence_length // documents)
    pairs[0] += work.sequence_length - pairs.sum()
    starts = np.concatenate([[0], np.cumsum(np.tile(pairs + 1, num_sequences))]).astype(np.int64)
    ids = np.random.default_rng(seed).integers(0, shape.vocabulary, int(starts[-1]), dtype=np.int32)
    return pack(TokenStream(ids=ids, starts=starts, digest="random"), work.sequence_length)


@contextmanager
def _mesh(settings: Pretrain, rank: int, size: int) -> Iterator[Mesh]:
    """The place of a process in a group of which only this process exists."""
    if size == 1:
        yield Mesh()
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield mesh_of(settings.parallelism, Group(rank=rank, size=size), FAKE_DEVICE.type)
    finally:
        dist.destroy_process_group()


@contextmanager
def _stand_ins(shape: Shape, settings: Pretrain) -> Iterator[None]:
    """Replace what asks for the content of tensors, and put it back."""
    with ExitStack() as stack:

        def put(where: Any, name: str, stand_in: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, stand_in))

        put(parallelize, "has_fast_bf16", lambda _: True)  # precision is what was asked for
        put(losses, "has_fast_bf16", lambda _: False)
        put(losses, "CPU_BLOCK_ROWS", sys.maxsize)  # blocks save time in a CPU's cache, and no memory
        put(losses, "scored_tokens", lambda hidden, labels: (hidden, labels))  # all are
        # Ranks and borders of documents have content, which the engine reads.
        put(torch, "from_numpy", _real(torch.from_numpy))
        put(torch.Tensor, "numpy", _real(torch.Tensor.numpy))
        put(DeviceMesh, "_concatenate", staticmethod(_real(DeviceMesh._concatenate)))
        put(Schedule1F1B, "_warmup_p2p", _without_a_vote)
        put(torch.nn.functional, "grouped_mm", _grouped_mm)
        stack.callback(context._part.cache_clear)
        if settings.kernels == "liger":
            put(losses, "uses_liger", lambda *_: True)
            put(losses, "_liger_loss", _liger_loss)
            _put_liger_kernels(put, shape, settings)
        yield


def _put_liger_kernels(put: Callable[[Any, str, Any], None], shape: Shape, settings: Pretrain) -> None:
    from triton.runtime.jit import JITFunction

    put(JITFunction, "run", lambda *_, **__: None)
    for name in LIGER_PATCHES:  # so that they are put back
        put(llama, name, getattr(llama, name))
    config = config_of(shape, settings.sequence_length)
    use_liger_kernels(settings.activation_checkpointing, config=config)


def _liger_loss(hidden: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    loss: torch.Tensor = LigerLoss.apply(hidden, weight)  # type: ignore[no-untyped-call]
    return loss


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function among real tensors, also where fake ones are made."""

    def among_real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return among_real


def _grouped_mm(rows: torch.Tensor, stack: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    """Products with the experts of a stack: torch's own knows no fake tensors in FP32."""
    made: torch.Tensor = GroupedProduct.apply(rows, stack)  # type: ignore[no-untyped-call]
    return made


def _without_a_vote(_schedule: Any, stages: Any, has_backward: bool, _done: bool) -> None:
    """Stages agree that shapes were sent, without a message to stages that do not exist."""
    for stage in stages:
        dynamic = InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        stage._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC


class GroupedProduct(torch.autograd.Function):
    """A product that holds what torch's `grouped_mm` holds."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
        """Numbers without a meaning."""
        ctx.save_for_backward(rows if stack.requires_grad else None, stack)
        ctx.like = rows.shape, rows.dtype
        return rows.new_empty(len(rows), stack.shape[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of both, the second where it learns."""
        _, stack = ctx.saved_tensors
        size, dtype = ctx.like
        of_stack = torch.empty_like(stack) if ctx.needs_input_grad[1] else None
        return stack.new_empty(size, dtype=dtype), of_stack


class LigerLoss(torch.autograd.Function):
    """A loss that holds what Liger's fused one holds with an FP32 accumulator, on an Ampere GPU or newer.

    Liger 0.8.5 (`liger_kernel/ops/fused_linear_cross_entropy.py`) asks for the GPU's capability to
    choose between a path that adds into the gradient in place and one that makes FP32 copies, so
    its own code cannot run on tensors that are on no GPU.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A number without a meaning.

        Args:
            ctx: Of autograd.
            hidden: (tokens, width).
            weight: Output embeddings, (vocabulary, width).
        """
        states = torch.zeros_like(hidden)
        table = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        rows = torch.zeros(hidden.shape[0], dtype=torch.float32)
        (tokens, width), vocabulary = hidden.shape, len(weight)
        logits = torch.empty(liger_chunk_tokens(tokens, width, vocabulary), vocabulary, dtype=hidden.dtype)
        del logits
        ctx.save_for_backward(states, None if table is None else table.to(weight.dtype))
        return rows.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients that the forward pass has made."""
        return ctx.saved_tensors


class AllocatedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows every storage from its first tensor to its end, and FSDP's resizing of it.

    What an operator allocates inside itself is not seen. torch's own trackers
    (`torch.distributed._tools`) refuse frozen parameters.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.bytes = 0
        self.peak = 0
        self._sizes: Any = WeakIdKeyDictionary()
        self._paused = False

    def add(self, tensor: torch.Tensor) -> None:
        """Follow the storage of a tensor, which may have been made before."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        storage = tensor.untyped_storage()
        entry = self._sizes.get(storage)
        if entry is None:
            entry = self._sizes[storage] = [0]
            weakref.finalize(storage, self._set, entry, 0)
        self._set(entry, storage.nbytes())

    def _set(self, entry: list[int], size: int) -> None:
        self.bytes += size - entry[0]
        entry[0] = size
        self.peak = max(self.peak, self.bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and follow what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its inner operators come here one by one
        out = func(*args, **(kwargs or {}))
        if not self._paused:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
        return out

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what happens inside."""
        resize = torch.UntypedStorage.resize_
        shapes = ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            entry = self._sizes.get(storage)
            if entry is not None:
                self._set(entry, size)
            return result

        def shapes_only(*args: Any, **kwargs: Any) -> Any:
            # DTensor runs an operator on whole, made-up tensors to learn the shape of its result.
            before, self._paused = self._paused, True
            try:
                return shapes(*args, **kwargs)
            finally:
                self._paused = before

        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resized),
            mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", shapes_only),
            self,
        ):
            yield
