"""A device that runs out of memory: advice, or a resume with half the micro-batch.

The process that failed cannot tell the others, which wait for it in a collective. So it notes the
smaller micro-batch in the work directory and ends. The next start resumes from the last checkpoint
with twice the accumulation, and so with the same losses.
"""

import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed as dist

from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.core.format import human_bytes
from anadil.estimate.fit import layout_fit
from anadil.estimate.instances import this_machine
from anadil.estimate.layout import hardest, layout_of, work_of
from anadil.estimate.model_shape import trained_shape
from anadil.estimate.search import nearest
from anadil.model.process_group import Group
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

FILE = "micro-batch.json"
NO_MEMORY = re.compile(
    "DefaultCPUAllocator: (not enough|can't allocate) memory|CUDA error: out of memory"
    r"|Registering memory failed with cudaError: 2\b"
)
"""Main memory, page-locked memory. Source: c10/core/impl/alloc_cpu.cpp, cudaHostAlloc, cuda/_pin_memory_utils.py; torch 2.13."""
MAIN_MEMORY = (
    "that is main memory, not the GPU's: there each process reads weights and keeps a copy of what a checkpoint "
    "holds; raise cluster.memory, take nodes with more of it, spread the model further "
    "(pretrain.parallelism.shard), or set pretrain.faults.on_anomaly=stop, which keeps no copy for a roll-back"
)
IN_A_STEP = {"pretrain.micro_batch_size", "pretrain.activation_checkpointing", "pretrain.sequence_length"}
"""Settings that change the memory of a step, and not that of the weights and the optimizer's moments."""
MOST_REMEDIES = 4


@contextmanager
def out_of_memory(
    recipe: Recipe, folder: Path, micro_batch_size: int, *, step: int, rank: int
) -> Iterator[None]:
    """Turn a lack of memory in optimizer step `step` (from 1) into an error with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        first = _memory_error(error)
        if first is None:
            raise
        head = f"pretrain: out of memory in step {step} on rank {rank} with micro-batch {micro_batch_size} ({first})"
        if recipe.pretrain.faults.on_out_of_memory == "halve" and micro_batch_size > 1:
            # Twice the accumulation: the batch and so the losses stay the same.
            half = micro_batch_size // 2
            note(folder, recipe, half, step)
            raise RetryableError(
                f"{head}; run the same command again: it resumes from the last checkpoint with micro-batch {half}"
            ) from None
        raise PreflightError(f"{head}; {advice(recipe)}") from None


@contextmanager
def no_room(recipe: Recipe, doing: str, *, rank: int) -> Iterator[None]:
    """Turn a lack of memory outside a step, such as `loading the base model`, into an error with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        first = _memory_error(error)
        if first is None:
            raise
        head = f"pretrain: out of memory while {doing} on rank {rank} on {socket.gethostname()} ({first})"
        on_device = isinstance(error, torch.OutOfMemoryError) or not torch.cuda.is_available()
        raise PreflightError(f"{head}; {advice(recipe, step=False) if on_device else MAIN_MEMORY}") from None


def _memory_error(error: BaseException) -> str | None:
    """First line of an error for lack of memory; None for any other error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or NO_MEMORY.search(str(error)):
        return (str(error).splitlines() or ["no memory"])[0][:300]
    return None


def note(folder: Path, recipe: Recipe, micro_batch_size: int, step: int) -> None:
    """Keep a smaller micro-batch for the next start."""
    noted = {"asked": recipe.pretrain.micro_batch_size, "micro_batch_size": micro_batch_size, "step": step}
    # Several processes run out of memory at once, each with a draft of its own.
    draft = folder / f"{FILE}.{socket.gethostname()}.{os.getpid()}.draft"
    draft.write_text(json.dumps(noted) + "\n", encoding="utf-8")
    draft.replace(folder / FILE)


def micro_batch_size(recipe: Recipe, folder: Path, group: Group) -> int:
    """Choose the recipe's, or the smaller one that an earlier start noted in `folder`; a collective.

    The note counts for as long as the recipe says `halve` and asks for the same micro-batch.
    """
    asked = recipe.pretrain.micro_batch_size
    mine = asked
    if recipe.pretrain.faults.on_out_of_memory == "halve" and (folder / FILE).is_file():
        try:
            noted = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if noted["asked"] == asked:
                mine = max(1, min(asked, int(noted["micro_batch_size"])))
        except (ValueError, KeyError, TypeError):
            log.warning("%s: cannot be read; the recipe's micro-batch of %s is used", folder / FILE, asked)
    if group.host is not None:
        box = torch.tensor([mine])
        # Nodes may have a work directory each, and all must use the same size.
        dist.all_reduce(box, dist.ReduceOp.MIN, group=group.host)
        mine = int(box.item())
    if mine < asked:
        log.warning(
            "micro-batch %s instead of pretrain.micro_batch_size %s: an earlier start ran out of memory; "
            "set pretrain.micro_batch_size=%s to keep it",
            mine, asked, mine,
        )  # fmt: skip
    return mine


def advice(recipe: Recipe, *, step: bool = True) -> str:
    """Report the planner's figures of the run's memory, and the nearest settings that need less in or outside a step."""
    try:
        shape, kind = trained_shape(recipe), this_machine()
        layout = layout_of(recipe, kind, max(1, recipe.cluster.nodes))
        work = work_of(recipe, kind, hardest(recipe))
        total, _ = layout_fit(shape, layout, work, kind)
        remedies = nearest(shape, layout, work, kind, max(1, recipe.cluster.nodes))
    except AnadilError as error:
        if not step:
            return f"raise pretrain.parallelism.shard or take a smaller base.model or a larger node (no plan: {error})"
        return f"lower pretrain.micro_batch_size or set pretrain.activation_checkpointing=full (no plan: {error})"
    expected = f"the planner expects {human_bytes(total)} of the device's {human_bytes(kind.memory_bytes)}"
    # Outside a step the micro-batch does not matter.
    less = [one for one in remedies if one.total_bytes < total and (step or one.settings.keys() - IN_A_STEP)]
    if not less:
        return f"{expected}; no setting needs less: take a smaller base.model or a larger node"
    lines = [
        "  " + " ".join(f"--set {key}={value}" for key, value in one.settings.items())
        + f"  ({human_bytes(one.total_bytes)})"
        for one in less[:MOST_REMEDIES]
    ]  # fmt: skip
    halve = "  --set pretrain.faults.on_out_of_memory=halve  (half the micro-batch at each new start)"
    return "\n".join([f"{expected}; what needs less:", *lines, *([halve] if step else [])])
