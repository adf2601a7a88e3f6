"""Checks of a checkpoint that a run begins with, before anything is loaded."""

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import artifact, storage
from anadil.core.errors import (
    AnadilError,
    BudgetReached,
    DataError,
    IntegrityError,
    RecipeError,
    RetryableError,
)
from anadil.core.stages import STAGES
from anadil.estimate.instances import machine
from anadil.model.process_group import Group
from anadil.plan.plan import PlanRequest, build_plan, choose_layout
from anadil.preflight.services import check_reach
from anadil.pretrain.check import inspect_start_point
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.branch import open_start_point
from anadil.pretrain.checkpoint.directory import PARTIAL, commit, describe_files, path_of
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from anadil.pretrain.checkpoint.replica import CheckpointReplica
from anadil.pretrain.checkpoint.start_point import (
    StartPoint,
    check_start_point,
    read_start_point,
)
from anadil.pretrain.run import run
from anadil.pretrain.state import Branch, State
from anadil.recipe.sections import Recipe, Storage
from anadil.runtime.cache_key import recipe_origin, stage_origin
from anadil.runtime.execute import execute
from anadil.runtime.lookup import look_up, unused_checkpoints
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.checkpoint_samples import ORIGIN, save
from tests.kit.pretraining import losses, make_job, make_recipe

BASE = {"model": "org/base"}
PLATEAU: dict[str, Any] = {
    "phases": [
        {"trains": "embeddings", "steps": 10, "lr": 0.01},
        {"trains": "all", "steps": 30, "lr": 0.005},
    ],
    "schedule": "wsd",
    "decay_fraction": 0.2,
    "warmup_fraction": 0.1,
    "batch_size": 8,
    "sequence_length": 64,
}
"""Flat up to step 34 of 40."""


def recipe_of(seed: int = 0, base: dict[str, Any] = BASE, **pretrain: Any) -> Recipe:
    return Recipe.model_validate({"seed": seed, "base": base, "pretrain": PLATEAU | pretrain})


def phases(steps: int = 30, first: int = 10, trains: str = "all") -> dict[str, Any]:
    own = [
        {**PLATEAU["phases"][0], "steps": first},
        {**PLATEAU["phases"][1], "steps": steps, "trains": trains},
    ]
    return {"phases": own}


def write(folder: Path, step: int = 34, recipe: Recipe | None = None, **state: Any) -> str:
    """A checkpoint without tensors, of a run of `recipe`."""
    partial = path_of(folder, step).with_suffix(PARTIAL)
    partial.mkdir(parents=True)
    (partial / "__0_0.distcp").write_bytes(b"tensors")
    origin = recipe_origin(recipe or recipe_of(), STAGES["pretrain"].keys)
    origin |= {"result version": "2", "input tokenizer": "one", "model shapes": "one"}
    stands = State(step=step, tokens=step * 500, seconds=1.0, **state)
    return str(commit(partial, stands, origin, describe_files([partial / "__0_0.distcp"])))


@pytest.fixture
def plateau(tmp_path: Path) -> StartPoint:
    return read_start_point(write(tmp_path / "KEY.work" / "checkpoints"))


def test_a_longer_training_by_the_same_keys_has_nothing_to_say(plateau: StartPoint) -> None:
    assert plateau.run.endswith("/KEY")
    for recipe in (
        recipe_of(),
        recipe_of(**phases(steps=100)),
        recipe_of(decay_fraction=0.5, **phases(steps=48)),
    ):
        assert check_start_point(plateau, recipe, {}) == []
        assert plateau.warmup(recipe.pretrain) is None


@pytest.mark.parametrize(
    ("changes", "origin", "words"),
    [
        ({"base": {"model": "org/other"}}, {}, r"from the base org/base, and base\.model is org/other"),
        ({"base": {**BASE, "revision": "ab"}}, {}, r"base\.model is org/base with other files|base\.model"),
        ({}, {"input tokenizer": "two"}, r"another tokenizer; give that one as --tokenizer"),
        ({}, {"model shapes": "two"}, r"of other shapes; use the tokenizer and base"),
        ({"state": "bf16"}, {}, r"moments in fp32, and pretrain\.state is bf16; set it to fp32"),
        (phases(steps=20), {}, r"stands at step 34, and pretrain\.phases end at step 30"),
        (phases(steps=24), {}, r"stands at step 34, and pretrain\.phases end at step 34"),
        (phases(first=4, steps=60), {}, r"step 24 of a phase that trains all, and.*step 30 of one.*steps"),
        (phases(trains="embeddings"), {}, r"a phase that trains all, and.*one that trains embeddings"),
    ],
)
def test_a_checkpoint_that_cannot_be_the_begin_is_refused_with_both_values(
    plateau: StartPoint, changes: dict[str, Any], origin: dict[str, str], words: str
) -> None:
    with pytest.raises(RecipeError, match=rf"pretrain\.start_from: .*{words}"):
        check_start_point(plateau, recipe_of(**changes), origin)


def test_a_checkpoint_of_a_run_without_new_tokens_may_begin_one(tmp_path: Path) -> None:
    begin = {"trains": "new_rows", "steps": 20, "lr": 0.01}
    place = write(tmp_path)
    recipe = recipe_of(phases=[begin, *PLATEAU["phases"]], start_from=place)

    result = inspect_start_point(recipe)

    assert (result.status, result.detail) == ("passed", "step 34; 6 steps are left")
    assert "fits only if the tokenizer has no new token" in result.remedy
    other = recipe.model_copy(update={"base": recipe.base.model_copy(update={"model": "org/other"})})
    with pytest.raises(RecipeError, match=r"base\.model is org/other"):
        inspect_start_point(other)


def test_the_end_of_a_phase_has_no_moments_and_only_a_new_phase_can_begin_there(tmp_path: Path) -> None:
    end = read_start_point(write(tmp_path, step=40))

    with pytest.raises(RecipeError, match=r"no moments of AdamW.*such as 34, the last one before"):
        check_start_point(end, recipe_of(**phases(steps=60)), {})
    third = [*PLATEAU["phases"], {"trains": "all", "steps": 5, "lr": 0.001}]
    assert check_start_point(end, recipe_of(phases=third), {}) == []
    # Where the rate never falls, the end of the phase is the end of its flat part, and keeps them.
    flat = read_start_point(write(tmp_path / "flat", step=40, recipe=recipe_of(decay_fraction=0.0)))
    assert check_start_point(flat, recipe_of(**phases(steps=60)), {}) == []


@pytest.mark.parametrize(
    ("changes", "origin", "words"),
    [
        ({"seed": 1}, {}, "seed 0 -> 1: the text has another order from step 35 on"),
        ({"sequence_length": 128}, {}, "sequence_length 64 -> 128: the text is packed into other sequences"),
        ({"batch_size": 16}, {}, "step 35 begins with sequence 545 here, so 272 are skipped"),
        ({"batch_size": 4}, {}, "step 35 begins with sequence 137 here, so 136 come again"),
        ({}, {"result version": "3"}, "result version 2 of pretrain, and this one has 3"),
        (
            {"phases": [PLATEAU["phases"][0], *[{**PLATEAU["phases"][1], "steps": 24}] * 2]},
            {},
            "a phase begins after step 34, so the moments of that run are not used",
        ),
        ({"schedule": "cosine"}, {}, "the learning rate jumps from 0.005 to "),
    ],
)
def test_what_changes_the_order_or_the_rate_is_said(
    plateau: StartPoint, changes: dict[str, Any], origin: dict[str, str], words: str
) -> None:
    (said,) = check_start_point(plateau, recipe_of(**changes), origin)

    assert words in said


def test_a_rate_that_has_fallen_already_is_said_to_jump(tmp_path: Path) -> None:
    late = read_start_point(write(tmp_path, step=37))

    (said,) = check_start_point(late, recipe_of(**phases(steps=60)), {})

    assert "jumps from 0.00275 to 0.005 after step 37" in said


def test_a_warm_up_that_is_done_is_not_planned_anew_by_a_longer_phase(
    plateau: StartPoint, tmp_path: Path
) -> None:
    longer = recipe_of(**phases(steps=1000))  # a warm-up of 100 steps, and 24 are done at the peak

    assert plateau.warmup(longer.pretrain) == 24
    assert check_start_point(plateau, longer, {}) == []
    # Nor by a branch of that branch.
    branch = Branch(place="a", digest="b", step=34, warmup=24)
    again = read_start_point(write(tmp_path, step=50, recipe=longer, branch=branch))
    assert again.warmup(recipe_of(**phases(steps=2000)).pretrain) == 40
    # One that is under way follows the recipe, and the rate falls back.
    early = read_start_point(write(tmp_path / "early", step=12))
    assert early.warmup(longer.pretrain) is None
    assert "jumps from 0.00333 to 0.00015" in check_start_point(early, longer, {})[0]


@pytest.mark.parametrize(
    ("break_it", "error", "words"),
    [
        (lambda path: (path / "manifest.json").unlink(), DataError, r"no finished checkpoint there"),
        (lambda path: path.rename(path.with_suffix(PARTIAL)), DataError, r"is being written; wait"),
        (
            lambda path: (path / "state.json").write_text("{}"),
            IntegrityError,
            r"state\.json: differs from its manifest",
        ),
        (
            lambda path: (path / "manifest.json").write_text("{"),
            IntegrityError,
            r"no manifest of this program",
        ),
        (lambda path: (path / "state.json").unlink(), AnadilError, r"state\.json"),
    ],
)
def test_a_checkpoint_that_is_absent_unfinished_or_damaged_is_refused(
    tmp_path: Path, break_it: Any, error: type[AnadilError], words: str
) -> None:
    place = write(tmp_path)
    break_it(Path(place))

    with pytest.raises(error, match=words):
        read_start_point(place)


def test_a_directory_of_checkpoints_and_an_adapter_are_answered_with_what_to_name(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 30)
    write(tmp_path / "checkpoints", 34)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    artifact.seal(adapter, kind="adapter", origin={})

    with pytest.raises(DataError, match=r"name one of its steps 30, 34, such as step-00000034"):
        read_start_point(str(tmp_path / "checkpoints"))
    with pytest.raises(DataError, match=r"holds an adapter, neither a checkpoint nor a model"):
        read_start_point(str(adapter))


def test_the_content_of_the_checkpoint_decides_the_key_and_its_place_does_not(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    moved = tmp_path / "two" / Path(one).name
    moved.parent.mkdir()
    other = write(tmp_path / "other", 30)

    def key(place: str | None) -> str:
        recipe = recipe_of(start_from=place)
        return artifact.origin_key(stage_origin(STAGES["pretrain"], recipe, {}, ()))

    before = key(one)
    Path(one).rename(moved)

    assert key(str(moved)) == before
    assert len({before, key(other), key(None)}) == 3
    assert "start_from" not in str(stage_origin(STAGES["pretrain"], recipe_of(), {}, ()))


def test_the_doctor_says_where_a_run_begins_and_what_follows(tmp_path: Path) -> None:
    place = write(tmp_path / "KEY.work" / "checkpoints")
    other = recipe_of(base={"model": "tiny"})
    start = write(tmp_path / "tiny", recipe=other)

    result = inspect_start_point(recipe_of(start_from=place, batch_size=4))

    assert result.status == "passed"
    assert result.detail == f"step 34 of {tmp_path}/KEY; 6 steps are left"
    assert "so 136 come again" in result.remedy
    with pytest.raises(RecipeError, match=r"from the base tiny, and base\.model is org/base"):
        inspect_start_point(recipe_of(start_from=start))
    # A pod sees none of this machine's directories, and a claim that is not mounted here can be read there alone.
    with pytest.raises(RecipeError, match=rf"pretrain\.start_from: {place}"):
        check_reach(recipe_of(start_from=place))
    mounted = Recipe.model_validate(
        {
            "pretrain": {"start_from": "/fsx/step-00000034"},
            "cluster": {"volumes": [{"claim": "fsx", "path": "/fsx"}]},
        }
    )
    assert inspect_start_point(mounted, here=False).status == "skipped"


def test_a_storage_that_is_away_is_no_fault_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(uri: str) -> None:
        raise RetryableError(f"{uri}: no answer")

    monkeypatch.setattr(artifact, "read_manifest", away)
    elsewhere = recipe_of(start_from="s3://bucket/step-00000034")

    with pytest.raises(RetryableError) as error:
        inspect_start_point(elsewhere)
    assert error.value.exit_code == 138
    assert inspect_start_point(elsewhere, here=False).status == "skipped"


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
    assert unused_checkpoints(look_up(other)) == ""


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
        return unused_checkpoints(look_up(planned))

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

    with pytest.raises(IntegrityError, match=r"start_from: .*distcp: differs from its manifest") as error:
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
