"""Checkpoints of one process: what comes back, what is refused, what is kept."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import IntegrityError, PreflightError, RetryableError
from anadil.model.load import load_model
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint import dcp, directory
from anadil.pretrain.checkpoint.dcp import write_tensors
from anadil.pretrain.checkpoint.folder import CheckpointFolder, local_folder
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.data.order import only
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.fields import NEUTRAL
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe
from tests.kit import kill_worker
from tests.kit.checkpoint_samples import NAME, ORIGIN, Make, assert_newest, loaded, save, state_of, tensors_of
from tests.kit.fault_injection import VARIABLE, run
from tests.kit.pretraining import SignalAt, generations, losses, make_job, make_recipe, run_in_child
from tests.kit.ranks import in_forks
from tests.kit.tokens import tokens_of_corpus


def test_training_goes_on_while_a_checkpoint_is_written_and_closing_finishes_it(make: Make) -> None:
    checkpoints = make()
    tensors = tensors_of(1)

    assert checkpoints.newest() is None
    checkpoints.save(state_of(1), tensors)
    for tensor in tensors.values():
        tensor.zero_()
    checkpoints.close()

    assert_newest(make(), 1)


def test_a_part_of_a_checkpoint_is_loaded_and_another_shape_is_refused(make: Make) -> None:
    checkpoints = make()
    save(checkpoints, 3)
    weight, words = torch.zeros(12, 4), r"float32 \[12, 4\] there and torch.float32 \[14, 4\] in the model"

    found = checkpoints.newest()
    assert found is not None
    checkpoints.load(found, {NAME: weight})

    assert torch.equal(weight, tensors_of(3)[NAME])
    with pytest.raises(IntegrityError, match=words):
        checkpoints.load(found, {NAME: torch.zeros(14, 4)})


def test_at_a_phase_border_there_are_parameters_only(make: Make) -> None:
    checkpoints = make()
    parameters = {name: tensor for name, tensor in tensors_of(4).items() if " " not in name}
    checkpoints.save(state_of(4), parameters)

    found_by = make()
    checkpoints.wait()
    found = found_by.newest()

    assert found is not None
    assert found.metadata.state_dict_metadata.keys() == parameters.keys()
    with pytest.raises(IntegrityError, match=r"holds 2 tensors, but not exp_avg model\.embed.* and 2 more"):
        found_by.load(found, tensors_of(0))


def test_equal_states_give_equal_bytes(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 3)
    first = (tmp_path / "checkpoints/step-00000003/manifest.json").read_bytes()

    save(checkpoints, 3)

    assert (tmp_path / "checkpoints/step-00000003/manifest.json").read_bytes() == first


def test_the_newest_generations_are_kept(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=2)

    save(checkpoints, 2, 4, 6, 8)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000008",
    ]


def test_a_generation_that_is_being_read_is_not_removed(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=1)
    save(checkpoints, 1)

    with directory.hold_open(tmp_path / "checkpoints/step-00000001"):
        save(checkpoints, 2)
        during = directory.steps(tmp_path / "checkpoints")
    save(checkpoints, 3)

    assert during == [2, 1]
    assert directory.steps(tmp_path / "checkpoints") == [3]


def test_a_step_saved_again_after_a_roll_back_replaces_the_old_one(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=1)
    save(checkpoints, 4)

    checkpoints.save(state_of(4), {**tensors_of(4), NAME: torch.ones(12, 4)})
    checkpoints.wait()

    assert torch.equal(loaded(checkpoints)[1][NAME], torch.ones(12, 4))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_what_a_killed_process_left_is_cleared_away(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4, 6)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000008.partial").mkdir()
    (folder / "step-00000002").rename(folder / "step-00000002.removed")
    (folder / "step-00000006").rename(folder / "step-00000006.old")

    assert_newest(checkpoints, 6)

    assert sorted(path.name for path in folder.iterdir()) == ["step-00000004", "step-00000006"]


def test_a_generation_without_manifest_does_not_count(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    (tmp_path / "checkpoints/step-00000004/manifest.json").unlink()

    assert_newest(checkpoints, 2)

    assert "step-00000004: has no manifest.json, so it does not count" in caplog.text


def test_a_save_waits_for_the_one_before(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, running, most = write_tensors, [0], [0]

    def slow(*arguments: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(1.2)
        real(*arguments)
        running[0] -= 1

    monkeypatch.setattr(dcp, "write_tensors", slow)
    checkpoints = make()

    starts = [time.monotonic()]
    for number in (2, 4):
        checkpoints.save(state_of(number), tensors_of(number))
        starts.append(time.monotonic())
    checkpoints.close()

    assert starts[1] - starts[0] < 0.6
    assert starts[2] - starts[1] > 0.9
    assert most == [1]
    assert "for the checkpoint of step 2; raise pretrain.checkpoint_every" in caplog.text
    monkeypatch.undo()
    assert_newest(make(), 4)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_leaves_the_generation_before(make: Make, small_disk: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2)
    large = {**tensors_of(4), NAME: torch.ones(1000, 100)}

    checkpoints.save(state_of(4), large)

    with pytest.raises(PreflightError, match=r"disk full .* checkpoint of step 4 is not written"):
        checkpoints.wait()
    assert [path.name for path in small_disk.iterdir()] == ["step-00000002"]
    assert_newest(checkpoints, 2)
    save(checkpoints, 6)  # the next one may fit again
    assert_newest(checkpoints, 6)


def test_a_disk_that_fails_is_worth_another_try(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    checkpoints = make()
    save(checkpoints, 2)
    monkeypatch.setattr(os, "fsync", fail)
    checkpoints.save(state_of(4), tensors_of(4))

    with pytest.raises(RetryableError, match=r"Input/output error.* step 4 is not written"):
        checkpoints.save(state_of(5), tensors_of(5))

    monkeypatch.undo()
    assert_newest(checkpoints, 2)


def test_a_disk_of_the_machine_that_fails_does_not_stop_training(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make(per_process=True, optional=True)
    save(checkpoints, 2)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))

    save(checkpoints, 4)

    monkeypatch.undo()
    assert "the checkpoint of step 4 is not written" in caplog.text
    assert_newest(checkpoints, 2)


def test_a_disk_of_the_machine_that_is_the_only_one_does_stop_training(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = make(per_process=True)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(30, "Read-only file system")))

    with pytest.raises(PreflightError, match=r"may not be written .*Read-only file system.*; grant access"):
        save(checkpoints, 4)


def make_tiers(tmp_path: Path, recipe: Recipe) -> CheckpointStorage:
    """Those of a run of one process, in its second phase."""
    settings = recipe.pretrain
    length = settings.sequence_length
    tokens = tokens_of_corpus(tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "work", length=length)
    net = parallelize(load_model(Path(recipe.base.model)), settings, Mesh(), torch.device("cpu"))
    trainer = Trainer(net, only(tokens.packed), recipe, Group())
    trainer.begin_phase(len(settings.phases) - 1)
    trainer.allocate(6)
    return CheckpointStorage(recipe, tmp_path / "work", trainer, Group(), ORIGIN)


def steps_below(folder: Path) -> list[int]:
    found = [directory.step_in_name(path.name) for path in folder.rglob("step-*") if path.is_dir()]
    return sorted(step for step in found if step is not None)


@pytest.mark.parametrize(
    "step", [5, 6]
)  # the second phase begins after 4, and its first copy on a disk is of 6
def test_a_batch_is_left_out_before_the_first_checkpoint_of_a_phase(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: int
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"nan": {"step": step}}))

    run(make_job(tmp_path, make_recipe(base, faults={"on_anomaly": "skip"})))

    assert f"the loss is nan at step {step}: back to step 4" in caplog.text
    assert losses(tmp_path / "a/out").keys() == set(range(1, 13))


def test_a_batch_is_left_out_right_after_a_resume_at_the_border_of_a_phase(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(base, faults={"on_anomaly": "skip"})
    run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(3, signal.SIGTERM)))
    saved = generations(make_job(tmp_path, recipe))[0].name
    monkeypatch.setenv(VARIABLE, json.dumps({"nan": {"step": 5}}))

    run(make_job(tmp_path, recipe))

    assert saved == "step-00000004"
    assert losses(tmp_path / "a/out").keys() == set(range(1, 13))


def test_a_roll_back_restores_the_last_snapshot_whatever_training_did_since(
    tmp_path: Path, base: Path
) -> None:
    tiers = make_tiers(tmp_path, make_recipe(base, faults={"on_anomaly": "skip"}))
    tensors = tiers._trainer.tensors(moments=True)
    for step in (5, 6, 7):
        for tensor in tensors.values():
            tensor.fill_(step)
        if step < 7:
            tiers.snapshot(state_of(step), force=True)

    state = tiers.restore_snapshot()
    tiers.close()

    assert state == state_of(6)
    assert all(bool((tensor == 6).all()) for tensor in tensors.values())


def test_a_run_that_has_finished_leaves_its_last_copy_in_the_archive_and_none_on_the_machine_s_disk(
    tmp_path: Path, base: Path
) -> None:
    copies = {"archive": str(tmp_path / "far"), "local_every": 2, "local_path": str(tmp_path / "nvme")}
    tiers = make_tiers(tmp_path, make_recipe(base, copies=copies))
    for step in (10, 12):
        tiers.save(state_of(step))

    tiers.finish()
    tiers.close()

    assert steps_below(tmp_path / "far") == [12]
    assert steps_below(tmp_path / "work") == [12]
    assert list((tmp_path / "nvme").iterdir()) == []


def test_a_resume_may_gather_layers_otherwise_and_finds_copies_of_before_there_was_a_choice(
    tmp_path: Path, base: Path
) -> None:
    copies = {"local_every": 2, "local_path": str(tmp_path / "nvme")}
    degrees = '{"shard":1,"tensor":1,"context":1,"pipeline":1}'
    expected = local_folder(tmp_path / "nvme", ORIGIN, degrees, Group())
    parallelism = {"prefetch": 3, "reshard": False}
    for step, settings in ((8, {}), (10, parallelism)):
        tiers = make_tiers(tmp_path, make_recipe(base, copies=copies, parallelism=settings))
        tiers.save(state_of(step))
        tiers.close()

    assert list((tmp_path / "nvme").iterdir()) == [expected.parent]
    assert NEUTRAL in Pretrain.model_fields["parallelism"].metadata


def test_a_run_that_goes_back_leaves_no_later_copy_in_the_archive(tmp_path: Path, base: Path) -> None:
    recipe = make_recipe(base, copies={"archive": str(tmp_path / "far")})
    before = make_tiers(tmp_path, recipe)
    for step in (6, 9):
        before.save(state_of(step))
        before.durable.finish()
    before.close()
    shutil.rmtree(tmp_path / "work/checkpoints/step-00000009")

    after = make_tiers(tmp_path, recipe)
    state = after.resume()
    after.durable.finish()
    after.close()

    assert state == state_of(6)
    assert steps_below(tmp_path / "far") == [6]


def test_copies_on_the_machine_s_disk_that_are_later_than_where_a_run_goes_on_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = CheckpointFolder(tmp_path / "nvme", Group(), ORIGIN, 3, per_process=True, optional=True)
    save(local, 6, 8, 10)

    local.discard_later_checkpoints(6)
    local.close()

    assert [path.name for path in (tmp_path / "nvme").iterdir()] == ["step-00000006"]
    assert "resumes from step 6; checkpoints of later steps (10, 8) are removed" in caplog.text


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
def test_killed_at_any_call_a_save_leaves_old_or_new(tmp_path: Path) -> None:
    points, new = kill_at_each(tmp_path, CALLS)

    assert points >= 25
    assert 0 < new < points
