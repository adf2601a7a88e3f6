"""The trainer beside the one of transformers, by the benchmark's own command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPARE = Path(__file__).parents[2] / "benchmarks/train/compare.py"
SMALL = {
    "vocabulary": 2_000,
    "hidden": 32,
    "intermediate": 64,
    "layers": 2,
    "batch": 4,
    "length": 64,
    "warmup": 2,
    "steps": 18,
    "repeat": 1,
}
ROUNDING = 1e-5
"""Of a loss after 20 steps in FP32, as a share of it."""


@pytest.mark.slow
def test_each_trainer_has_a_row_and_losses_are_those_of_the_trainer_of_transformers() -> None:
    sizes = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(COMPARE), *sizes], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]

    assert [row[0] for row in rows] == ["trainer", "---", "anadil", "transformers", "trl"]
    assert rows[0][-1] == "loss differs"
    # Of all steps the largest difference, as a share; curves of different lengths are an error.
    assert all(float(row[-1]) <= ROUNDING for row in rows[2:])
