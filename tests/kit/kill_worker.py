"""Kills a process at each system call of a save, for the tests of checkpoints.

A process without threads forks for each kill. strace counts each call of each thread of the fork,
from the moment that it is told to begin, and kills it with the N-th.
"""

import itertools
import os
import select
import shutil
import subprocess
from pathlib import Path

from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from tests.kit.checkpoint_samples import ORIGIN, assert_newest, loaded, save

KEEP = 2


def save_one(folder: Path, step: int) -> None:
    checkpoints = CheckpointFolder(folder, Group(), ORIGIN, KEEP)
    save(checkpoints, step)
    checkpoints.close()


def killed_save(folder: Path, step: int, call: str, number: int) -> bool:
    """Save in a fork that is killed at its `number`-th `call`; whether there was such a call."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)
        save_one(folder, step)
        os._exit(0)
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-e", "trace=" + call, "-e", f"inject={call}:signal=SIGKILL:when={number}",
         "-p", str(child), "-o", os.devnull],
    )  # fmt: skip
    while f"TracerPid:\t{tracer.pid}" not in Path(f"/proc/{child}/status").read_text():
        select.select([], [], [], 0.002)
        if tracer.poll() is not None:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise SystemExit("strace may not trace here")
    os.write(tell, b"x")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tracer.wait()
    os.close(told)
    os.close(tell)
    assert code in (0, -9), code
    return code == -9


def check(folder: Path, old: int, new: int) -> int:
    """Which checkpoint a start after the kill resumes from; its tensors have to be right."""
    checkpoints = CheckpointFolder(folder, Group(), ORIGIN, KEEP)
    step = loaded(checkpoints)[0].step
    assert step in (old, new)
    assert_newest(checkpoints, step)
    checkpoints.close()
    assert not list(folder.glob("*.damaged")), "torn"
    return step


def main(folder: Path, calls: list[str]) -> None:
    """Kill saves at each of these calls; prints how many, and after how many the new checkpoint was found."""
    before = folder / "before"
    for step in (1, 2):
        save_one(before, step)
    points, went_on_from_new = 0, 0
    for call in calls:
        for number in itertools.count(1):
            place = folder / "checkpoints"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(before, place)
            killed = killed_save(place, 3, call, number)
            newest = check(place, 2, 3)
            if not killed:
                assert newest == 3
                break
            points += 1
            went_on_from_new += newest == 3
    print(f"points {points} new {went_on_from_new}")
