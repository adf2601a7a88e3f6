"""Checks of a checkpoint that a run begins with, before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import AnadilError, DataError, IntegrityError, RecipeError, RetryableError
from anadil.core.stages import STAGES
from anadil.preflight.base_model import inspect_start_point
from anadil.preflight.services import check_reach
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.directory import PARTIAL, commit, describe_files, path_of
from anadil.pretrain.checkpoint.start_point import StartPoint, check_start_point, read_start_point
from anadil.pretrain.state import Branch, State
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin, stage_origin

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
    origin = recipe_origin(recipe or recipe_of(), STAGES["pretrain"].sections)
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
        (
            {"base": {"model": "org/other"}},
            {},
            r"from the base org/base, and base\.model is org/other; set it to",
        ),
        (
            {"base": {**BASE, "revision": "ab"}},
            {},
            r"base\.model is org/base with other files|base\.model is org/base",
        ),
        ({}, {"input tokenizer": "two"}, r"another tokenizer; give that one as --tokenizer"),
        ({}, {"model shapes": "two"}, r"of other shapes; use the tokenizer and base"),
        ({"state": "bf16"}, {}, r"moments in fp32, and pretrain\.state is bf16; set it to fp32"),
        (
            phases(steps=20),
            {},
            r"stands at step 34, and pretrain\.phases end at step 30.*give them more steps",
        ),
        (phases(steps=24), {}, r"stands at step 34, and pretrain\.phases end at step 34"),
        (
            phases(first=4, steps=60),
            {},
            r"step 24 of a phase that trains all, and.*step 30 of one.*steps: 10\}",
        ),
        (phases(trains="embeddings"), {}, r"a phase that trains all, and.*one that trains embeddings"),
    ],
)
def test_a_checkpoint_that_cannot_be_the_begin_is_refused_with_both_values(
    plateau: StartPoint, changes: dict[str, Any], origin: dict[str, str], words: str
) -> None:
    with pytest.raises(RecipeError, match=rf"pretrain\.start_from: .*{words}"):
        check_start_point(plateau, recipe_of(**changes), origin)


def test_the_end_of_a_phase_has_no_moments_and_only_a_new_phase_can_begin_there(tmp_path: Path) -> None:
    end = read_start_point(write(tmp_path, step=40))

    with pytest.raises(
        RecipeError, match=r"no moments of AdamW.*such as 34, the last one before the rate fell"
    ):
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
        (
            {"batch_size": 16},
            {},
            "read 272 sequences, and step 35 begins with sequence 545 here, so 272 are skipped",
        ),
        (
            {"batch_size": 4},
            {},
            "read 272 sequences, and step 35 begins with sequence 137 here, so 136 come again",
        ),
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
        (
            lambda path: (path / "manifest.json").unlink(),
            DataError,
            r"no finished checkpoint there.*give a directory step-N",
        ),
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
    with pytest.raises(
        DataError, match=r"holds an adapter, neither a checkpoint nor a model; give a directory step-N"
    ):
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


def test_branch_points_stay_beside_the_newest_and_are_marked(tmp_path: Path) -> None:
    for step in (10, 20, 34, 40, 50):
        write(tmp_path, step)
        directory.retain(tmp_path, 2, step, needed={20})

    assert directory.steps(tmp_path) == [50, 40, 20]


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
