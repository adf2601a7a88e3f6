"""Kills, flipped bits and stalls, by the benchmark's own commands: fewer than there, the same checks."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.ranks import Fork, run_script

FAULTS = Path(__file__).parents[3] / "benchmarks/faults"


def told_by(folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """The figures that a script of the benchmark prints; what it says if it is not content with them."""
    log = folder / "log"
    code = Fork(partial(run_script, FAULTS / script, *arguments), log).wait()
    said = log.read_text(encoding="utf-8")
    assert code == 0, said
    told: dict[str, Any] = json.loads(said[said.rindex("\n{") :] if "\n{" in said else said)
    return told


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_losses_and_weights(tmp_path: Path) -> None:
    told = told_by(
        tmp_path, "kills.py", "--kills", "3", "--seed", "5", "--steps", "20", "--layouts", "shards"
    )

    assert (told["kills"], told["survived"]) == (3, 3)
    assert told["runs"] == told["bit-equal runs"] > 0
    assert told["steps lost"]["max"] <= 2 * told["checkpoint every"]


@pytest.mark.slow
def test_flipped_bits_of_a_real_checkpoint_are_noticed(tmp_path: Path) -> None:
    told = told_by(tmp_path, "flips.py", "--flips", "20", "--seed", "1")

    assert told["noticed, and the checkpoint before taken"] == 20
