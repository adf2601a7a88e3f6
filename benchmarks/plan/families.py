"""Memory of each family's step, planned beside that of the engine on fake tensors, as a Markdown table.

OMP_NUM_THREADS=1 python -m benchmarks.plan.families [TYPE...]
"""

import logging
import sys
import warnings

from tests.kit.fake_run import exact_peak
from tests.plan.test_families import LAYOUTS, MORE, PLANNED, SIZES, of_kind

from anadil.core.format import GIB
from anadil.estimate.layout import Work
from anadil.estimate.memory import peak_memory
from anadil.model.family_table import supports

CASES = ("one device", "one device, embeddings", "one device, full", "FSDP, selective", "FSDP, full")


def main() -> None:
    """Print a row for each model type and case, then the lowest and the highest difference."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| model type | case | tied | fake GiB | planned GiB | % |\n|---|---|---|---|---|---|")
    differences = []
    for kind in sys.argv[1:] or PLANNED:
        shape = of_kind(kind)
        for name in CASES:
            layout, changed = LAYOUTS[name]
            if layout.shard > 1 and not supports(kind, "shard"):
                continue
            work = Work(sequence_length=2_048, **changed)
            exact = exact_peak(shape, layout, work, more=SIZES | MORE.get(kind, {}))
            planned = peak_memory(shape, layout, work).allocated
            differences.append(100 * (planned / exact - 1))
            sizes = f"{exact / GIB:.3f} | {planned / GIB:.3f} | {differences[-1]:+.2f}"
            print(f"| {kind} | {name} | {'yes' if shape.tied else ''} | {sizes} |", flush=True)
    print(f"\n{len(differences)} rows, {min(differences):+.2f} to {max(differences):+.2f} %")


if __name__ == "__main__":
    main()
