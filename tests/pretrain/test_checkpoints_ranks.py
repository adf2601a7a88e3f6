"""Generations that several processes write and read together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_worker(scenario: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("checkpoint_worker.py")), scenario, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_read_by_one_by_four_and_unsharded(tmp_path: Path) -> None:
    run_worker("reshard", tmp_path)


@pytest.mark.slow
def test_faults_of_one_process_or_machine_are_agreed_on_by_all(tmp_path: Path) -> None:
    done = run_worker("faults", tmp_path)

    assert "step-00000006.damaged" in done.stderr  # own disks
    assert "abort latency" in done.stdout  # a killed writer
