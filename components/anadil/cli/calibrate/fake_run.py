"""The peak of a real training step: the engine and the model on fake tensors, without a GPU.

The engine's own code lays transformers' model of the base's type over the processes of a group that
does not exist, and runs two steps of it: shards, splits, stages, recomputation, its loss and its
optimizer. Tensors have shapes and no content, so nothing is computed. Three things are not the
engine's: the launch of Triton kernels is left out, Liger's loss, which needs a GPU to choose its path,
is retold, and without Liger the loss is that of a CPU without BF16 products. `torch.compile` and products
in FP8 are left out. torch is pinned: much of what is used here is not public.

Source of the approach: torch's `FakeTensorMode` and `fake` process group.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import transformers.models.llama.modeling_llama as llama
from torch import distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    unset_fake_temporarily,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from anadil.cli.calibrate.allocations import Allocated
from anadil.cli.calibrate.liger_loss import LigerLoss
from anadil.cli.calibrate.spec import laid_out
from anadil.cli.calibrate.transformers_config import config_of
from anadil.core.errors import RecipeError
from anadil.core.stages import BUILT_IN
from anadil.model import loss as losses
from anadil.model.family_table import check_family
from anadil.model.kernels import use_liger_kernels
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import peak_memory
from anadil.plan.model_shape import Shape
from anadil.plan.plan import Question, Table
from anadil.pretrain.data.packing import Batch
from anadil.pretrain.optimizer import make_optimizer, train_only
from anadil.pretrain.parallel import context, parallelize
from anadil.pretrain.parallel.ddp import Replicas
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.process_group import Group
from anadil.recipe.load import load_recipe
from anadil.recipe.pretrain import Phase, Pretrain

LIGER_PATCHES = ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")
CPU = torch.device("cpu")


def exact_of(question: Question, layout: Layout) -> Table:
    """A run of the real model on fake tensors beside the closed form; takes seconds to a minute.

    Raises:
        RecipeError: The layout cannot be run so.
    """
    started = time.perf_counter()
    work = question.work
    found = exact_peak(question.shape, layout, work, question.recipe.pretrain)
    closed = peak_memory(question.shape, layout, work).allocated
    return {
        "trains": work.trains,
        "allocated_bytes": found,
        "closed_form_bytes": closed,
        "difference_percent": round(100 * (closed / found - 1), 3),
        "seconds": round(time.perf_counter() - started, 1),
    }


def exact_peak(shape: Shape, layout: Layout, work: Work, settings: Pretrain | None = None) -> int:
    """Bytes that the allocator holds at the worst moment of a step, over all pipeline stages.

    Two steps are run and the second counts, because the optimizer's state is made in the first.

    Args:
        shape: The model.
        layout: How devices share it.
        work: What a step computes.
        settings: Section `pretrain`, for what neither says; None takes the built-in recipe's.

    Raises:
        PreflightError: The layout is not proven for the model's type.
        RecipeError: Tensors without content do not suffice for the layout.
    """
    check_family({"model_type": shape.model_type}, layout.degrees)
    chosen = laid_out(settings or load_recipe(BUILT_IN).pretrain, layout, work)
    one = {"phases": (Phase(trains=work.trains, steps=1, lr=1e-5),), "compile": False, "matmul": "same"}
    chosen = chosen.model_copy(update=one)
    stages = sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})
    try:
        return max(_peak_of(shape, layout, work, chosen, stage) for stage in stages)
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedFakeTensorException,
    ) as error:
        raise RecipeError(
            f"--exact: {layout.name()} of {shape.name} ({shape.model_type}) has no run on tensors without content "
            f"({error}); leave it out, the formulas need none"
        ) from None


def _peak_of(shape: Shape, layout: Layout, work: Work, settings: Pretrain, stage: int) -> int:
    """The peak of one device of a pipeline stage."""
    borders = torch.arange(layout.micro_batch_size + 1, dtype=torch.int32) * work.sequence_length
    with ExitStack() as stack:
        rank = stage * layout.devices // layout.pipeline
        mesh = stack.enter_context(_mesh(settings, rank, layout.devices))
        stack.enter_context(_stand_ins(shape, settings))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = AutoModelForCausalLM.from_config(
            config_of(shape, work.sequence_length), dtype=torch.float32, trust_remote_code=False
        )
        net = parallelize.spread(model, settings, mesh, CPU)
        return _second_step(net, settings, borders)


def _second_step(net: parallelize.Net, settings: Pretrain, borders: torch.Tensor) -> int:
    phase = settings.phases[0]
    parameters = net.parameters()
    train_only(parameters, list(parameters) if phase.trains == "all" else net.tables & parameters.keys())
    learning = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimizer = make_optimizer(parameters, phase, settings, net.tables) if learning else None
    replicas = Replicas(learning, net.replicas_group())
    passes = settings.batch_size // net.mesh.data // settings.micro_batch_size
    allocated = Allocated()
    for tensor in (*net.model.parameters(), *net.model.buffers()):
        allocated.add(tensor)
    with allocated.following():
        for _ in range(2):
            allocated.peak = 0
            batches = [_batch(net, settings, borders) for _ in range(passes)]
            net.backward(batches, 1.0, replicas=replicas, change=_same)
            replicas.wait()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
    return allocated.peak


def _batch(net: parallelize.Net, settings: Pretrain, borders: torch.Tensor) -> Batch:
    size = (settings.micro_batch_size, settings.sequence_length)
    ids, positions, labels = (torch.zeros(size, dtype=torch.long) for _ in range(3))
    return net.share(Batch(input_ids=ids, position_ids=positions, labels=labels, borders=borders))


def _same(loss: torch.Tensor) -> torch.Tensor:
    return loss


@contextmanager
def _mesh(settings: Pretrain, rank: int, size: int) -> Iterator[Mesh]:
    """The place of a process in a group of which only this process exists."""
    if size == 1:
        yield Mesh()
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield mesh_of(settings.parallelism, Group(rank=rank, size=size), CPU.type)
    finally:
        dist.destroy_process_group()


@contextmanager
def _stand_ins(shape: Shape, settings: Pretrain) -> Iterator[None]:
    """Replace what asks for the content of tensors, and put it back."""
    with ExitStack() as stack:

        def put(where: Any, name: str, stand_in: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, stand_in))

        put(parallelize, "multiplies_bf16", lambda _: True)  # precision is what was asked for
        put(losses, "has_fast_bf16", lambda _: False)
        put(losses, "CPU_BLOCK_ROWS", sys.maxsize)  # blocks save time in a CPU's cache, and no memory
        put(losses, "scored_tokens", lambda hidden, labels: (hidden, labels))  # all are
        # Ranks and borders of documents have content, which the engine reads.
        put(torch, "from_numpy", _real(torch.from_numpy))
        put(torch.Tensor, "numpy", _real(torch.Tensor.numpy))
        put(DeviceMesh, "_concatenate", staticmethod(_real(DeviceMesh._concatenate)))  # noqa: SLF001
        put(Schedule1F1B, "_warmup_p2p", _without_a_vote)
        stack.callback(context._part.cache_clear)  # noqa: SLF001  its tensors have no content
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


def _without_a_vote(_schedule: Any, stages: Any, has_backward: bool, _done: bool) -> None:
    """Stages agree that shapes were told, without a message to stages that do not exist."""
    for stage in stages:
        dynamic = InferenceMode.needs_dynamic(stage._user_meta, has_backward)  # noqa: SLF001
        stage._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC  # noqa: SLF001
