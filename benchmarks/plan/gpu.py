"""Peaks that a CUDA device measures in the real trainer beside the closed form, as a Markdown table.

Each configuration runs in a process of its own; the model is made at random, so nothing is downloaded.

python benchmarks/plan/gpu.py
"""

import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from anadil.cli.calibrate.runs import measure_layouts, run_spec
from anadil.core.format import GIB
from anadil.plan.calibration import device_of
from anadil.plan.instances import CPU, this_machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import peak_memory
from anadil.plan.memory_limit import limit_bytes, reserved
from anadil.plan.model_shape import KNOWN, shape_from
from anadil.recipe.load import load_recipe

MODEL = "meta-llama/Llama-3.2-1B"
PHASES = "pretrain.phases=[{trains: embeddings, steps: 1, lr: 0.001}, {trains: all, steps: 1, lr: 0.001}]"


def configurations() -> Iterator[tuple[Layout, Work]]:
    """Eleven, each measured in both phases."""
    packed = Work(sequence_length=2_048, packed=True)
    torch_kernels = replace(packed, kernels="torch")
    bf16 = replace(packed, state="bf16")
    for recompute in ("none", "selective", "full"):
        yield Layout(micro_batch_size=2, recompute=recompute), packed
        yield Layout(micro_batch_size=4, recompute=recompute), torch_kernels
    yield Layout(micro_batch_size=8, recompute="full"), packed
    yield Layout(micro_batch_size=4), bf16
    yield Layout(micro_batch_size=2, micro_batches=2), packed
    yield Layout(micro_batch_size=1), replace(packed, sequence_length=8_192)
    yield Layout(micro_batch_size=8), replace(packed, sequence_length=512, packed=False)


def main() -> int:
    """Print the table; the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    here = this_machine()
    if here.device == CPU:
        print("no CUDA device here; run this on a machine that has one", file=sys.stderr)
        return 1
    shape = shape_from(KNOWN[MODEL], MODEL)
    recipe = load_recipe("smoke", ["clean.inputs=[text]", PHASES])
    print(f"{here.device}, {here.memory_bytes / GIB:.1f} GiB, {MODEL}\n")
    print(
        "| batch | length | recompute | trains | packed | kernels | state | measured GiB | closed GiB | % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for layout, work in configurations():
            expected = peak_memory(shape, layout, replace(work, packed=False))
            if expected.allocated + sum(reserved(expected, here).values()) > limit_bytes(here):
                print(f"batch {layout.micro_batch_size} of {work} does not fit here", file=sys.stderr)
                continue
            spec = run_spec(layout, recipe, shape, work, device_of(here), steps=3)
            for one in measure_layouts([spec], here, Path(folder)):
                cells = (
                    f"{layout.micro_batch_size} x {layout.micro_batches} | {work.sequence_length} | "
                    f"{layout.recompute} | {one.work.trains} | {'yes' if work.packed else 'no'} | "
                    f"{work.kernels} | {work.state}"
                )
                if one.allocated_bytes is None:
                    print(f"| {cells} | {one.status} | | |", flush=True)
                    continue
                # `packed` of the closed form is transformers' mask, which the trainer does not make.
                closed = peak_memory(shape, layout, replace(one.work, packed=False)).allocated
                percent = 100 * (closed / one.allocated_bytes - 1)
                measured = one.allocated_bytes / GIB
                print(f"| {cells} | {measured:.3f} | {closed / GIB:.3f} | {percent:+.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
