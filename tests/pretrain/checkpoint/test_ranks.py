"""Checkpoints that several processes write and read together."""

import logging
import shutil
from pathlib import Path

import pytest
from torch import distributed as dist

from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from tests.kit import checkpoint_worker as worker
from tests.kit.checkpoint_samples import ORIGIN, save
from tests.kit.ranks import in_ranks


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_read_by_one_by_four_and_unsharded(tmp_path: Path) -> None:
    for ranks, work in (
        (2, worker.save_sharded),
        (1, worker.load_sharded),
        (4, worker.load_sharded),
        (2, worker.load_replicated),
    ):
        in_ranks(worker.together, ranks, work, tmp_path)


@pytest.mark.slow
def test_faults_of_one_process_or_machine_are_agreed_on_by_all(tmp_path: Path) -> None:
    in_ranks(worker.together, 2, worker.own_disks, tmp_path)
    in_ranks(worker.together, 2, worker.disk_not_shared, tmp_path)
    in_ranks(worker.together, 2, worker.killed_writer, tmp_path, killed=1)


def replace_a_machine(rank: int, root: str) -> None:
    """Each process on a disk of its own; the second gets an empty one."""
    folder = Path(root, f"machine-{rank}")
    logging.basicConfig(level=logging.WARNING, filename=f"{root}/rank-{rank}.log")
    group = Group(rank=rank, local_rank=0, size=2, host=dist.new_group(backend="gloo"))
    before = CheckpointFolder(folder, group, ORIGIN, 2, per_process=True)
    save(before, 70, 80)
    before.close()
    if rank == 1:
        shutil.rmtree(folder)
    group.wait()
    after = CheckpointFolder(folder, group, ORIGIN, 2, per_process=True)

    found = after.newest()
    after.discard_later_checkpoints(-1)
    behind = {path.name for path in folder.glob("*")}
    save(after, 10, 20)
    kept = {path.name for path in folder.glob("*")}
    save(after, 80)

    later = {"step-00000070.later", "step-00000080.later"} if rank == 0 else set()
    assert found is None
    assert behind == later
    assert kept == {"step-00000010", "step-00000020"} | later
    assert {path.name for path in folder.glob("*")} == {"step-00000020", "step-00000080"}
    after.close()


@pytest.mark.slow
def test_a_machine_that_was_replaced_is_told_and_what_the_others_have_of_later_steps_is_set_aside(
    tmp_path: Path,
) -> None:
    in_ranks(replace_a_machine, 2, str(tmp_path))

    told = (tmp_path / "rank-0.log").read_text()
    assert "processes have checkpoints of different steps (rank 0 on " in told
    assert ": 80, 70; rank 1 on " in told
    assert ": none), and only a step that all of them have counts" in told
    assert "resumes from step 0; checkpoints of later steps (80, 70) are set aside as step-*.later" in told
    assert (tmp_path / "rank-1.log").read_text() == ""
