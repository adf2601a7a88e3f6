"""Memory of each family's step, planned beside that of the engine on fake tensors, as a Markdown table.

OMP_NUM_THREADS=1 python -m benchmarks.plan.families [--shared] [TYPE...]
OMP_NUM_THREADS=1 python -m benchmarks.plan.families [--shared] google/gemma-4-31B ...

A checkpoint has its published sizes. `--shared` takes steps of several micro-batches and layouts that share sequences, layers or products.
"""

import logging
import sys
import warnings
from typing import Any

from tests.kit.fake_run import exact_peak
from tests.plan.test_families import LAYOUTS, MORE, PLANNED, SIZES, of_kind, text_of

from anadil.core.format import GIB
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import shape_from
from anadil.model.family_table import LAYOUTS as LAYOUT_NAMES
from anadil.model.family_table import supports

CASES = (
    "one device", "one device, embeddings", "one device, embeddings, selective", "one device, selective", "one device, full",
    "FSDP, selective", "FSDP, full",
)  # fmt: skip

SHARED: dict[str, tuple[Layout, dict[str, Any]]] = {
    "four micro-batches": (Layout(micro_batch_size=2, micro_batches=4), {}),
    "four micro-batches, FSDP, full": (
        Layout(data=8, shard=8, micro_batch_size=2, micro_batches=4, recompute="full"),
        {},
    ),
    "context": (Layout(context=2, shard=2, micro_batch_size=4), {}),
    "context, full": (Layout(context=2, shard=2, micro_batch_size=8, recompute="full"), {}),
    "pipeline": (Layout(pipeline=2, micro_batches=4, micro_batch_size=2), {}),
    "pipeline, full": (Layout(pipeline=2, micro_batches=4, micro_batch_size=2, recompute="full"), {}),
    "tensor": (Layout(tensor=2, micro_batch_size=2), {"kernels": "torch", "state": "bf16"}),
}


def main() -> None:
    """Print a row for each model type and case, then the lowest and the highest difference."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| model type | case | tied | fake GiB | planned GiB | % |\n|---|---|---|---|---|---|")
    differences = []
    cases = SHARED if "--shared" in sys.argv else {name: LAYOUTS[name] for name in CASES}
    for kind in [each for each in sys.argv[1:] if each != "--shared"] or PLANNED:
        published = text_of(kind) if "/" in kind else {}
        shape = shape_from(published, kind) if published else of_kind(kind)
        more = {key: value for key, value in published.items() if key != "model_type"}
        more = more or SIZES | MORE.get(kind, {})
        for name, (layout, changed) in cases.items():
            if not all(supports(shape.model_type, each) for each in LAYOUT_NAMES if layout.degrees[each] > 1):
                continue
            work = Work(sequence_length=2_048, **changed)
            exact = exact_peak(shape, layout, work, more=more)
            planned = peak_memory(shape, layout, work).allocated
            differences.append(100 * (planned / exact - 1))
            sizes = f"{exact / GIB:.3f} | {planned / GIB:.3f} | {differences[-1]:+.2f}"
            print(f"| {kind} | {name} | {'yes' if shape.tied else ''} | {sizes} |", flush=True)
    print(f"\n{len(differences)} rows, {min(differences):+.2f} to {max(differences):+.2f} %")


if __name__ == "__main__":
    main()
