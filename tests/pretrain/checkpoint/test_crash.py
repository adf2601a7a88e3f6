"""A save that is killed at any system call leaves the old checkpoint or the new one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = "openat,mkdir,mkdirat,write,fsync,rename,unlink,unlinkat,rmdir,flock"


def kill_at_each(folder: Path, calls: str) -> tuple[int, int]:
    """Kill points covered, and after how many of them the new checkpoint was found."""
    if shutil.which("strace") is None:
        pytest.skip("killing at a system call needs strace")
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parents[2] / "kit/kill_worker.py"),
            str(folder),
            calls,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if "may not trace" in done.stderr:
        pytest.skip("strace may not trace here (ptrace is forbidden)")
    assert done.returncode == 0, done.stderr
    words = re.fullmatch(r"points (\d+) new (\d+)\n", done.stdout)
    assert words is not None, done.stdout
    return int(words[1]), int(words[2])


def test_killed_at_a_flush_or_a_rename_a_save_leaves_old_or_new(tmp_path: Path) -> None:
    points, new = kill_at_each(tmp_path, "fsync,rename")

    assert points >= 8  # tensors, metadata, state, manifest, directory, its parent; two renames
    assert 0 < new < points


@pytest.mark.slow
def test_killed_at_any_call_a_save_leaves_old_or_new(tmp_path: Path) -> None:
    points, new = kill_at_each(tmp_path, CALLS)

    assert points >= 25
    assert 0 < new < points
