"""The real training step on a random model and random tokens, timed."""

import gc
import logging
import os
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from anadil.cli.calibrate.runs import RunSpec, result_line, with_layout
from anadil.core.errors import PreflightError
from anadil.core.format import counted
from anadil.encode.packing import Packed, pack
from anadil.encode.token_stream import TokenStream
from anadil.model.kernels import use_liger_kernels
from anadil.model.load import pick_device
from anadil.model.loss import uses_liger
from anadil.model.process_group import Group, group
from anadil.plan.calibration import Measurement
from anadil.plan.layout import Work
from anadil.plan.model_shape import Shape
from anadil.pretrain.data.mixture import only
from anadil.pretrain.parallel.mesh import mesh_of
from anadil.pretrain.parallel.parallelize import check_layout, parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Phase
from anadil.runtime.signals import Stop

log = logging.getLogger(__name__)

WARMUP = 2
"""Steps before the clock runs: optimizer state, kernels and buffers are made in them."""
LR = 1e-5
"""Low enough that no step on random tokens diverges; speed does not depend on it."""
DOCUMENTS = 4  # of a packed sequence; one mask serves any number of them


def run_measurement(spec: RunSpec) -> int:
    """Measure, print one line on stdout, and return the exit code."""
    device = pick_device()
    results: list[Measurement] = []
    try:
        Stop().listen()
        with group(device) as processes:
            _measure_all(spec, device, processes, results)
    finally:
        # Where memory runs out on another process than the first, only that one knows.
        is_out = any(each.status != "ok" for each in results)
        if results and (is_out or os.environ.get("RANK", "0") == "0"):
            sys.stdout.write(f"{result_line(results)}\n")
            sys.stdout.flush()
    return PreflightError.exit_code if is_out else 0


def _measure_all(spec: RunSpec, device: torch.device, processes: Group, results: list[Measurement]) -> None:
    """Measure one phase kind after another into `results`; those that memory does not suffice for, too."""
    if spec.layout.devices != processes.size:
        raise PreflightError(
            f"the layout takes {counted(spec.layout.devices, 'device')} but was started with "
            f"{counted(processes.size, 'process')}; start as many with torchrun, or change the layout"
        )
    blanks = [spec.blank(kind) for kind in spec.trains]
    try:
        trainer = _trainer(spec, device, processes)
        for number, blank in enumerate(blanks):
            results.append(_one(blank, trainer, number))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        log.warning(
            "%s, %s sequences at a time: out of memory (%s)",
            spec.layout.name(), spec.layout.micro_batch_size, (str(error).splitlines() or [""])[0],
        )  # fmt: skip
        results += [replace(blank, status="out of memory") for blank in blanks[len(results) :]]
        return
    processes.wait()


def _trainer(spec: RunSpec, device: torch.device, processes: Group) -> Trainer:
    """The trainer of the pretrain stage, with a random model and a phase of the needed length for each kind."""
    work = spec.work
    if uses_liger(work.kernels, device):
        use_liger_kernels(spec.layout.recompute, config=config_of(spec.shape, work.sequence_length))
    phases = tuple(Phase(trains=kind, steps=WARMUP + spec.steps, lr=LR) for kind in spec.trains)
    settings = with_layout(spec.recipe.pretrain, spec.layout, work).model_copy(update={"phases": phases})
    recipe = spec.recipe.model_copy(update={"pretrain": settings})
    packed = random_tokens(spec.shape, work, spec.layout.batch_size, recipe.seed)
    mesh = mesh_of(settings.parallelism, processes, device.type)
    model = random_model(spec.shape, work, device, recipe.seed)
    check_layout(settings, model.config, mesh, device)
    return Trainer(parallelize(model, settings, mesh, device), only(packed), recipe, processes)


def config_of(shape: Shape, sequence_length: int) -> PreTrainedConfig:
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
        "attention_bias": shape.attention_bias,
        "use_cache": False,
        # Sizes decide memory; a shorter window or a row for padding would only be in the way. Gemma 3 needs a window.
        "sliding_window": max(2_048, sequence_length),
        "pad_token_id": None,
        "attn_implementation": "sdpa",
    }
    if shape.mlp_bias:
        settings["mlp_bias"] = True
    if shape.rotary_share != 1:
        settings["partial_rotary_factor"] = shape.rotary_share
    config: PreTrainedConfig = AutoConfig.for_model(shape.model_type, **settings)
    return config


def random_model(shape: Shape, work: Work, device: torch.device, seed: int) -> PreTrainedModel:
    """A model of some sizes with random FP32 weights, the same on every process."""
    torch.manual_seed(seed)
    config = config_of(shape, work.sequence_length)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    placed: PreTrainedModel = model.to(torch.float32)
    return placed


def random_tokens(shape: Shape, work: Work, num_sequences: int, seed: int) -> Packed:
    """Random documents that fill sequences without padding: several in each, or one."""
    documents = DOCUMENTS if work.packed else 1
    # A document of n tokens has n - 1 pairs of neighbours, which are what fills a sequence.
    pairs = np.full(documents, work.sequence_length // documents)
    pairs[0] += work.sequence_length - pairs.sum()
    starts = np.concatenate([[0], np.cumsum(np.tile(pairs + 1, num_sequences))]).astype(np.int64)
    ids = np.random.default_rng(seed).integers(0, shape.vocabulary, int(starts[-1]), dtype=np.int32)
    return pack(TokenStream(ids=ids, starts=starts, digest="random"), work.sequence_length)


def _one(blank: Measurement, trainer: Trainer, number: int) -> Measurement:
    """Some steps of the phase with a number, from 0."""
    trainer.optimizer = None  # the last phase's moments, which would lie beside the next ones
    gc.collect()
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    trainer.begin_phase(number)
    seconds = []
    for step in range(number * (WARMUP + blank.steps), (number + 1) * (WARMUP + blank.steps)):
        start = time.perf_counter()
        trainer.step(step)
        if on_gpu:
            torch.cuda.synchronize(trainer.device)
        seconds.append(time.perf_counter() - start)
    timed = seconds[WARMUP:]
    figures = torch.tensor(
        [statistics.median(timed), max(timed) / min(timed), trainer.peak_memory() or 0], dtype=torch.float64
    )
    if trainer.group.host is not None:
        dist.all_reduce(figures, dist.ReduceOp.MAX, group=trainer.group.host)
    step_s, spread, allocated = figures.tolist()
    positions = blank.layout.batch_size * blank.work.sequence_length
    return replace(
        blank,
        step_s=step_s,
        spread=spread,
        tokens_per_s_per_device=positions / step_s / blank.layout.devices,
        allocated_bytes=int(allocated) or None,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory does not suffice: CUDA's, NCCL's, that of torch on a CPU."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "out of memory" in text
        or "can't allocate memory" in text
    )
