"""Kills, flipped bits and stalls, by the benchmark's own commands: fewer than there, the same checks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAULTS = Path(__file__).parents[3] / "benchmarks/faults"


def told_by(script: str, *arguments: str) -> dict[str, Any]:
    """The figures that a script of the benchmark prints; what it says if it is not content with them."""
    done = subprocess.run(
        [sys.executable, str(FAULTS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_losses_and_weights() -> None:
    told = told_by("kills.py", "--kills", "4", "--seed", "5", "--layouts", "shards")

    assert (told["kills"], told["survived"]) == (4, 4)
    assert told["runs"] == told["bit-equal runs"] > 0
    assert told["steps lost"]["max"] <= 2 * told["checkpoint every"]


@pytest.mark.slow
def test_flipped_bits_of_a_real_checkpoint_are_noticed() -> None:
    told = told_by("flips.py", "--flips", "20", "--seed", "1")

    assert told["noticed, and the checkpoint before taken"] == 20
