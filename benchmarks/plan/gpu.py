"""Peaks that a CUDA device measures in the real trainer beside the closed form, as a Markdown table.

Each configuration runs in a process of its own; the model is made at random, so nothing is downloaded.

python -m benchmarks.plan.gpu

With `--device cpu` steps of a tiny model run and nothing is measured, which shows that they run.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch
from tests.kit.fake_run import random_model, random_tokens, with_layout

from anadil.core.format import GIB
from anadil.estimate.fit import limit_bytes, reserved
from anadil.estimate.instances import CPU, this_machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import KNOWN, Shape, Trains, shape_from
from anadil.model.process_group import Group
from anadil.pretrain.data.order import only
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.load import load_recipe
from anadil.recipe.pretrain import Phase

MODEL = "meta-llama/Llama-3.2-1B"
KINDS: tuple[Trains, ...] = ("embeddings", "all")
STEPS = 3
DOCUMENTS = 4
"""In a sequence."""


def configurations() -> Iterator[tuple[Layout, Work]]:
    """Eleven, each measured in both phases."""
    liger = Work(sequence_length=2_048)
    torch_kernels = replace(liger, kernels="torch")
    bf16 = replace(liger, state="bf16")
    for recompute in ("none", "selective", "full"):
        yield Layout(micro_batch_size=2, recompute=recompute), liger
        yield Layout(micro_batch_size=4, recompute=recompute), torch_kernels
    yield Layout(micro_batch_size=8, recompute="full"), liger
    yield Layout(micro_batch_size=4), bf16
    yield Layout(micro_batch_size=2, micro_batches=2), liger
    yield Layout(micro_batch_size=1), replace(liger, sequence_length=8_192)
    yield Layout(micro_batch_size=8), replace(liger, sequence_length=512)


def peak(shape: Shape, layout: Layout, work: Work, kind: Trains, device_type: str) -> int:
    """Most bytes that the allocator held in some steps; 0 on a CPU, which counts none."""
    device, recipe = torch.device(device_type), load_recipe("smoke", ["clean.inputs=[text]"])
    phases = (Phase(trains=kind, steps=STEPS, lr=1e-5),)
    settings = with_layout(recipe.pretrain, layout, work).model_copy(update={"phases": phases})
    recipe = recipe.model_copy(update={"pretrain": settings})
    model = random_model(shape, work, device, recipe.seed)
    tokens = only(random_tokens(shape, work, layout.batch_size, recipe.seed, documents=DOCUMENTS))
    trainer = Trainer(parallelize(model, settings, Mesh(), device), tokens, recipe, Group())
    trainer.begin_phase(0)
    for step in range(STEPS):
        trainer.gradients(step)
        trainer.apply()
    return int(trainer.peak_memory() or 0)


def main() -> int:
    """Print the table; the exit code."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device, here = asked.parse_args().device, this_machine()
    shape = shape_from(KNOWN[MODEL], MODEL)
    if device == "cpu":
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2_000}
        shape = shape_from({**KNOWN[MODEL], **sizes, "head_dim": 2}, MODEL)
        work = Work(sequence_length=64, compute="fp32", kernels="torch")
        for kind in KINDS:
            peak(shape, Layout(micro_batch_size=2), work, kind, device)
            print(f"{STEPS} steps that train {kind} ran; a CPU counts no bytes")
        return 0
    if here.device == CPU:
        print("no CUDA device here; run this on a machine that has one", file=sys.stderr)
        return 1
    print(f"{here.device}, {here.memory_bytes / GIB:.1f} GiB, {MODEL}\n")
    print("| batch | length | recompute | trains | kernels | state | measured GiB | closed GiB | % |")
    print("|---|---|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for layout, work in configurations():
        for kind in KINDS:
            closed = peak_memory(shape, layout, replace(work, trains=kind))
            if closed.allocated + sum(reserved(closed, here).values()) > limit_bytes(here):
                print(f"batch {layout.micro_batch_size} of {work} does not fit here", file=sys.stderr)
                continue
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                measured = pool.submit(peak, shape, layout, work, kind, device).result()
            print(
                f"| {layout.micro_batch_size} x {layout.micro_batches} | {work.sequence_length} | {layout.recompute} | "
                f"{kind} | {work.kernels} | {work.state} | {measured / GIB:.3f} | "
                f"{closed.allocated / GIB:.3f} | {100 * (closed.allocated / measured - 1):+.2f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
