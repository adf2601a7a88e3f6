"""The trainer beside the one of transformers, by the benchmark's own command."""

import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.kit.ranks import Fork, run_script

COMPARE = Path(__file__).parents[2] / "benchmarks/train/compare.py"
SMALL = {
    "vocabulary": 2_000,
    "hidden": 32,
    "intermediate": 64,
    "layers": 2,
    "batch": 4,
    "length": 64,
    "warmup": 2,
    "steps": 8,
    "repeat": 1,
}
ROUNDING = 1e-5
"""Of a loss after 10 steps in FP32, as a share of it."""


@pytest.mark.slow
def test_each_trainer_has_a_row_and_losses_are_those_of_the_trainer_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forked(command: list[str], *, env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        """A trainer in a process of its own that need not import torch again."""
        script, *words = command[1:]
        log = tmp_path / words[0]
        code = Fork(partial(run_script, Path(script), *words), log, env).wait()
        return subprocess.CompletedProcess(command, code, *[log.read_text(encoding="utf-8")] * 2)

    sizes = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(subprocess, "run", forked)
    monkeypatch.setattr(sys, "argv", [str(COMPARE), *sizes])
    monkeypatch.syspath_prepend(COMPARE.parent)
    runpy.run_path(str(COMPARE), run_name="__main__")
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]

    assert [row[0] for row in rows] == ["trainer", "---", "anadil", "transformers", "trl"]
    assert rows[0][-1] == "loss differs"
    # The largest difference of all steps, as a share; curves of different lengths are an error.
    assert all(float(row[-1]) <= ROUNDING for row in rows[2:])
