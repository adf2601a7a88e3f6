"""A save that is killed at any system call leaves the old checkpoint or the new one."""

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.kit import kill_worker
from tests.kit.ranks import in_forks

CALLS = "openat,mkdir,mkdirat,write,fsync,rename,unlink,unlinkat,rmdir,flock"


def kill_at_each(folder: Path, calls: str) -> tuple[int, int]:
    """Kill points covered, and after how many of them the new checkpoint was found."""
    if shutil.which("strace") is None:
        pytest.skip("killing at a system call needs strace")
    [code] = in_forks([partial(kill_worker.main, folder, calls.split(","))], folder)
    said = (folder / "0.log").read_text()
    if "may not trace" in said:
        pytest.skip("strace may not trace here (ptrace is forbidden)")
    assert code == 0, said
    # strace may put lines of its own before it.
    words = re.search(r"^points (\d+) new (\d+)\n\Z", said, re.MULTILINE)
    assert words is not None, said
    return int(words[1]), int(words[2])


@pytest.mark.slow
def test_killed_at_a_flush_or_a_rename_a_save_leaves_old_or_new(tmp_path: Path) -> None:
    points, new = kill_at_each(tmp_path, "fsync,rename")

    assert points >= 8  # tensors, metadata, state, manifest, directory, its parent; two renames
    assert 0 < new < points


@pytest.mark.slow
def test_killed_at_any_call_a_save_leaves_old_or_new(tmp_path: Path) -> None:
    points, new = kill_at_each(tmp_path, CALLS)

    assert points >= 25
    assert 0 < new < points
