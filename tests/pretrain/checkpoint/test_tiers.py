"""All places that a run is saved in, together."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from anadil.model.load import load_model
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.folder import CheckpointFolder, local_folder
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.data.mixture import only
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.fields import NEUTRAL
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe
from tests.kit.checkpoint_samples import ORIGIN, save, state_of
from tests.kit.fault_injection import VARIABLE, run
from tests.kit.pretraining import SignalAt, generations, losses, make_job, make_recipe, run_in_child
from tests.kit.tokens import tokens_of_corpus


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
