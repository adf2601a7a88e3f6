"""The checkpoint at the end of a flat part: saved, copied and kept, so that a later run can begin with it."""

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import storage
from anadil.core.errors import BudgetReached, DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.model.process_group import Group
from anadil.plan.instances import machine
from anadil.plan.plan import PlanRequest, build_plan, choose_layout
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from anadil.pretrain.checkpoint.replica import CheckpointReplica
from anadil.pretrain.checkpoint.start_point import open_start_point, read_start_point
from anadil.pretrain.run import run
from anadil.recipe.sections import Recipe, Storage
from anadil.runtime import remake
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.checkpoint_samples import ORIGIN, save
from tests.kit.pretraining import losses, make_job, make_recipe

FLAT: dict[str, Any] = {
    "schedule": "wsd",
    "decay_fraction": 0.25,
    "phases": [{"trains": "all", "steps": 8, "lr": 0.005}],
    "checkpoint_every": 4,
    "keep_checkpoints": 1,
}
"""Flat up to step 6."""


def started(base: Path, out: str | None = None, **pretrain: Any) -> dict[str, Any]:
    """Make the model of a recipe as `anadil pretrain` does; its `training.json` and place."""
    recipe = make_recipe(base, **FLAT | pretrain)
    recipe = recipe.model_copy(update={"storage": Storage(root=str(base.parent / "root"))})
    inputs = {word: str(base.with_name(word)) for word in ("corpus", "tokenizer")}
    made = execute(STAGES["pretrain"], recipe, inputs, (), out)
    return {"uri": made.uri, **json.loads(storage.store(made.uri).read(f"{made.uri}/training.json"))}


def test_a_finished_run_leaves_the_end_of_its_flat_part_from_which_a_branch_goes_on(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = started(base)

    work = Path(f"{first['uri']}.work")
    place = work / "checkpoints" / "step-00000006"
    left = {path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()}
    assert first["branch_points"] == [{"step": 6, "place": str(place)}]
    assert f"pretrain.start_from={place}" in caplog.text
    assert {name.partition("/step-")[0] for name in left} == {"checkpoints", "finished"}
    assert directory.steps(place.parent) == [6]

    # The same text and recipe but for the decay: another artifact, whose lines begin with those of the first.
    branch = started(base, start_from=str(place), decay_fraction=0.125)

    assert branch["uri"] != first["uri"]
    assert (branch["start_from"]["run"], branch["start_from"]["step"]) == (first["uri"], 6)
    both = [losses(Path(each["uri"])) for each in (first, branch)]
    assert [step for step in both[0] if both[0][step] != both[1][step]] == [8]


def test_what_a_finished_run_leaves_is_no_unfinished_run(tmp_path: Path, base: Path, bucket: str) -> None:
    out = f"{bucket}/model"
    started(base, out=out)
    recipe = make_recipe(base, **FLAT, weight_decay=0.0)
    inputs = {word: str(base.with_name(word)) for word in ("corpus", "tokenizer")}

    other = planned_artifact(STAGES["pretrain"], recipe, inputs, (), f"{bucket}/other")

    assert list(other.work.parent.glob("*/checkpoints/step-00000006"))
    assert remake.unused_checkpoints(other, remake.earlier_runs(other)) == ""


def test_an_unfinished_run_that_a_branch_begins_with_is_not_said_to_be_unused(
    tmp_path: Path, base: Path
) -> None:
    with pytest.raises(BudgetReached):
        started(base, faults={"budget_hours": 1e-9})
    (place,) = (tmp_path / "root/model").glob("*/checkpoints/step-00000001")
    inputs = {word: str(base.with_name(word)) for word in ("corpus", "tokenizer")}

    def warning(**keys: Any) -> str:
        recipe = make_recipe(base, **FLAT, weight_decay=0.0, **keys)
        recipe = recipe.model_copy(update={"storage": Storage(root=str(tmp_path / "root"))})
        planned = planned_artifact(STAGES["pretrain"], recipe, inputs, (), None)
        return remake.unused_checkpoints(planned, remake.earlier_runs(planned))

    assert "which this run does not use" in warning()
    assert warning(start_from=str(place)) == ""


def test_a_branch_begins_with_a_copy_in_an_archive(tmp_path: Path, base: Path, bucket: str) -> None:
    first = started(base, copies={"archive": f"{bucket}/archive", "archive_keep": 1})
    here, there = (each["place"] for each in first["branch_points"])

    of_both = [started(base, start_from=place, decay_fraction=0.125) for place in (here, there)]

    assert there.startswith(f"{bucket}/archive/")
    # One content in two places is one key.
    assert of_both[0]["uri"] == of_both[1]["uri"]
    for made in (of_both[0]["uri"], f"{of_both[0]['uri']}.work"):
        shutil.rmtree(made)
    again = started(base, start_from=there, decay_fraction=0.125)
    assert again["start_from"]["place"] == there
    assert again["loss"] == of_both[0]["loss"]


def test_a_damaged_start_is_refused_and_left_where_it_is(tmp_path: Path, base: Path) -> None:
    place = Path(started(base)["branch_points"][0]["place"])
    tensors = next(place.glob("*.distcp"))
    weights = bytearray(tensors.read_bytes())
    weights[-1] ^= 1
    tensors.write_bytes(weights)

    with pytest.raises(
        IntegrityError, match=r"start_from: .*distcp: differs from its manifest; name another"
    ) as error:
        run(make_job(tmp_path, make_recipe(base, **FLAT, start_from=str(place), z_loss=1e-4)))

    assert error.value.exit_code == 5
    assert place.is_dir()


def test_every_branch_point_is_copied_though_copying_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = CheckpointReplica(str(tmp_path / "archive"), 1, points={4})
    folder = CheckpointFolder(tmp_path / "here", Group(), ORIGIN, 1, points={4}, replica=archive)
    slow, copy = threading.Event(), archive._copy
    monkeypatch.setattr(archive, "_copy", lambda path: (slow.wait(10), copy(path))[1])

    for step in (2, 4, 6, 8):
        save(folder, step)
    slow.set()
    folder.finish()
    folder.close()

    # Steps 6 and 8 both waited, and the newer one is copied in place of the older; 4 ends a flat part and is always copied.
    assert sorted(path.name for path in (tmp_path / "archive").glob("step-*")) == [
        "step-00000004",
        "step-00000008",
    ]
    assert directory.steps(tmp_path / "here") == [8, 4]
    assert folder.branch_points() == {
        4: [str(tmp_path / each / "step-00000004") for each in ("here", "archive")]
    }


def test_the_next_start_copies_a_branch_point_that_a_kill_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = CheckpointFolder(tmp_path / "here", Group(), ORIGIN, 1, points={4})
    save(first, 4, 6)
    first.close()
    shutil.copytree(tmp_path / "here/step-00000006", tmp_path / "archive/step-00000006")
    archive = CheckpointReplica(str(tmp_path / "archive"), 1, points={4})
    again = CheckpointFolder(tmp_path / "here", Group(), ORIGIN, 1, points={4}, replica=archive)

    again.discard_later_checkpoints(6)
    again.finish()
    again.close()

    assert "resumed from an earlier step" not in caplog.text
    assert sorted(path.name for path in (tmp_path / "archive").glob("step-*")) == [
        "step-00000004",
        "step-00000006",
    ]


def test_a_checkpoint_that_a_branch_reads_is_not_removed_by_its_run(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, Group(), ORIGIN, 9)
    save(folder, 2, 4)
    folder.close()
    place = directory.path_of(tmp_path, 2)
    recipe = Recipe.model_validate({"seed": 7, "pretrain": {"start_from": str(place)}})
    data: Any = SimpleNamespace(sources={})

    with open_start_point(
        read_start_point(str(recipe.pretrain.start_from)), recipe, {}, data, Group(), lambda: None
    ) as opened:
        directory.retain(tmp_path, 1, 4)
        assert (opened.path, place.is_dir()) == (place, True)
    directory.retain(tmp_path, 1, 4)

    assert directory.steps(tmp_path) == [4]
    with pytest.raises(DataError, match=r"step-00000002: no finished checkpoint there"):
        read_start_point(str(place))


def test_the_plan_counts_the_disk_of_what_is_kept_beside_the_newest() -> None:
    def kept(schedule: str) -> int:
        recipe = Recipe.model_validate({"pretrain": {"schedule": schedule}})
        request = PlanRequest(name="a", recipe=recipe, machine=machine("p5.48xlarge"), nodes=1)
        return build_plan(request, choose_layout(request)).checkpoints.generations

    assert kept("wsd") - kept("cosine") == 2  # a flat part in each phase


def test_the_plan_of_a_branch_counts_the_steps_that_are_left() -> None:
    def plan(start: str | None) -> list[tuple[str, int]]:
        recipe = Recipe.model_validate({"pretrain": {"start_from": start}})
        request = PlanRequest(name="a", recipe=recipe, machine=machine("p5.48xlarge"), nodes=1)
        return [(each.trains, each.steps) for each in build_plan(request, choose_layout(request)).phases]

    assert plan(None) == [("embeddings", 5_000), ("all", 15_000)]
    assert plan("s3://bucket/archive/step-00002000/") == [("embeddings", 3_000), ("all", 15_000)]
    assert plan("s3://bucket/archive/step-00018500") == [("all", 1_500)]
