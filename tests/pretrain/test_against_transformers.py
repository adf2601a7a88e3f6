"""The trainer beside the one of transformers, by the benchmark's own command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def compared(*arguments: str) -> str:
    """What the benchmark prints for a small model."""
    sizes = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(COMPARE), *sizes, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def azerbaijani() -> list[str]:
    """Arguments for real text where there is some; else the benchmark takes the built-in one."""
    folder = os.environ.get("ANADIL_DATA")
    files = sorted(Path(folder, "az").glob("*.jsonl")) if folder else []
    return ["--text", *map(str, files[:2])] if files else []


@pytest.mark.slow
def test_losses_are_those_of_the_trainer_of_transformers_on_the_same_batches() -> None:
    runs: dict[str, Any] = json.loads(
        compared("--trainers", "anadil", "transformers", "-o", "json", *azerbaijani())
    )

    ours, theirs = (runs[name][0]["losses"] for name in ("anadil", "transformers"))

    assert len(ours) == 20
    assert ours == pytest.approx(theirs, rel=ROUNDING)
    assert ours[-1] < ours[0]


@pytest.mark.slow
def test_the_benchmark_prints_a_row_for_each_trainer() -> None:
    lines = compared().splitlines()

    names = [line.split("|")[1].strip() for line in lines]
    assert names == ["trainer", "---", "anadil", "transformers", "trl"]
