"""Seconds of a whole search for 70B on 32 p5.48xlarge.

python benchmarks/plan/search.py
"""

import time

from anadil.estimate.instances import machine
from anadil.estimate.layout import Work
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.estimate.search import search

MODEL = "meta-llama/Llama-3.1-70B"
RUNS = 5


def main() -> None:
    """Print what was considered and how long it took."""
    shape = shape_from(KNOWN[MODEL], MODEL)
    work = Work(sequence_length=8_192)
    start = time.process_time()
    runs = [search(shape, work, machine("p5.48xlarge"), 32, 512) for _ in range(RUNS)]
    busy = (time.process_time() - start) / RUNS
    seconds = sorted(run.seconds for run in runs)
    print(
        f"considered {runs[0].considered:,}, fitting {runs[0].fitting:,}, median of {RUNS} runs "
        f"{seconds[RUNS // 2]:.2f} s, slowest {seconds[-1]:.2f} s, {busy:.2f} CPU s each"
    )


if __name__ == "__main__":
    main()
