"""`anadil retrain`: its exit codes, and what it writes and says."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.cli.runs import retrain
from anadil.cli.runs.run import after_failure
from anadil.core.errors import AnadilError, DataError, PreflightError, Stopped
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.run import FILE, ReleaseRecord
from anadil.retrain.exclusive import exclusive
from anadil.runtime.run_record import record_step
from anadil_pipelines.laptop import StepResults
from tests.kit.retraining import NAME, Registry, add_text, make_week, recipe_of

if TYPE_CHECKING:
    from anadil.runtime.alerts import Event
import logging
from collections.abc import Iterator

from anadil.artifacts import lease
from anadil.retrain.exclusive import claim, free
from anadil.runtime.run_record import StepRecord, end_run, note_step


@pytest.fixture
def recipe(tmp_path: Path, registry: Registry) -> Recipe:
    """A recipe with a champion that has read one file, and a second file."""
    add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path)
    registry.set_champion(make_week(recipe)["model"])
    add_text(tmp_path / "text", "2.jsonl")
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    return recipe


def call(tmp_path: Path, *options: str) -> int:
    return main.main(["retrain", str(tmp_path / "recipe.json"), "--work", str(tmp_path / "work"), *options])


def make_release(folder: Path, outcome: Any, reason: str) -> str:
    folder.mkdir()
    record = ReleaseRecord(
        outcome=outcome, name=NAME, version="2", previous="1", reasons=(reason,), checks=(), by={}, at="2026-01-01"
    )  # fmt: skip
    (folder / FILE).write_text(record.text())
    artifact.seal(folder, kind="release", origin={"stage": "release"})
    return str(folder)


def test_a_dry_run_prints_a_recipe_that_loads(
    tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, "--dry-run") == 0
    printed = capsys.readouterr()
    derived = parse_recipe(printed.out, "derived")
    assert derived.clean.inputs == (str(tmp_path / "text/2.jsonl"),)
    assert "1 new file, 1 file as before" in printed.err

    assert call(tmp_path, "--dry-run", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(printed.out)
    assert not (tmp_path / "store/retrain").exists()


@pytest.mark.parametrize(("outcome", "code"), [("champion", 0), ("challenger", 0), ("refused", 6)])
def test_the_exit_code_follows_the_release(
    tmp_path: Path,
    recipe: Recipe,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: str,
    code: int,
) -> None:
    release = make_release(tmp_path / "release", outcome, f"Version 2 is {outcome}.")
    runs = []

    def run(derived: Recipe, options: object) -> StepResults:
        runs.append(derived)
        if outcome == "champion":
            registry.set_champion(make_week(recipe)["model"], "2")
        return StepResults(uris={"release": release})

    monkeypatch.setattr(retrain, "run_recipe", run)

    assert call(tmp_path) == code

    assert f"Version 2 is {outcome}." in capsys.readouterr().err
    assert [each.clean.inputs for each in runs] == [(str(tmp_path / "text/2.jsonl"),)]


@pytest.mark.parametrize("named", [None, "http://mlflow"])
def test_the_last_step_moves_the_alias_where_the_champion_was_found(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    # The artifacts lie elsewhere, where the last step would find no database beside them.
    if named:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", named)
    runs: list[Recipe] = []

    def run(derived: Recipe, _: object) -> StepResults:
        runs.append(derived)
        return StepResults(exit_code=1)

    monkeypatch.setattr(retrain, "run_recipe", run)

    assert call(tmp_path, "--set", "tracking.uri=null") == 1

    assert [each.tracking.uri for each in runs] == [
        None if named else f"sqlite:///{tmp_path / 'work'}/mlflow.db"
    ]


def test_a_release_that_was_rolled_back_since_is_not_called_champion(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = make_release(tmp_path / "release", "champion", "Version 2 is champion.")
    # The registry says 1, and the step's artifact is reused.
    monkeypatch.setattr(retrain, "run_recipe", lambda *_: StepResults(uris={"release": release}))

    assert call(tmp_path) == 0

    assert "was rolled back since; version 1 stays champion" in capsys.readouterr().err


def test_text_that_is_refused_is_no_failure_and_no_command_to_repeat(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(derived: Recipe, _: object) -> StepResults:
        with suppress(DataError), record_step(derived, "run-1", "admit"):
            raise DataError("the new text is refused for 1 reason: growth")
        return StepResults(exit_code=3, run="run-1")

    events: list[Event] = []
    monkeypatch.setattr(retrain, "run_recipe", run)
    monkeypatch.setattr(retrain, "notify", events.append)

    assert call(tmp_path) == 3

    assert [(each.kind, each.run, each.stage) for each in events] == [("refused", "run-1", "admit")]
    assert "the new text is refused for 1 reason: growth" in events[0].message
    assert "the champion stays as it is" in events[0].resume
    assert "the champion stays as it is" in after_failure(str(recipe.storage.root), "run-1")
    assert "run the same command again" in after_failure(str(recipe.storage.root), "run-2")


def test_how_the_first_champion_is_made_repeats_the_options(
    tmp_path: Path, recipe: Recipe, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.aliases.clear()

    assert call(tmp_path, "--set", "seed=1") == 3

    first = f"make the first one: anadil run {tmp_path}/recipe.json --set seed=1 --work {tmp_path}/work, then"
    assert first in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "num_events"), [(PreflightError("no memory"), 1), (Stopped("no memory"), 0)]
)
def test_an_error_before_the_run_is_told_to_people(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, error: AnadilError, num_events: int
) -> None:
    def run(*_: object) -> StepResults:
        raise error

    events: list[Event] = []
    monkeypatch.setattr(retrain, "run_recipe", run)
    monkeypatch.setattr(retrain, "notify", events.append)

    assert call(tmp_path) == error.exit_code

    # Whoever stops it knows.
    assert [(each.kind, each.run, each.message) for each in events] == [
        ("failed", NAME, "no memory")
    ] * num_events


def test_without_new_text_it_ends_at_once(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text/2.jsonl").unlink()
    monkeypatch.delattr(retrain, "run_recipe")

    assert call(tmp_path) == 0

    said = capsys.readouterr().err
    assert "no new text: no file of the inputs is new to the champion; nothing to do" in said


def test_a_second_retraining_is_refused_while_one_runs(
    tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    with exclusive(str(recipe.storage.root), NAME):
        assert call(tmp_path) == 4

    assert "it retrains anadil-az; wait for its end" in capsys.readouterr().err


def test_a_plan_is_that_of_the_week_and_starts_none(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(retrain, "run_recipe")

    assert call(tmp_path, "--plan") == 0
    assert "Fits" in capsys.readouterr().out

    assert call(tmp_path, "--plan", "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    # Two steps are the fewest of a week, and the champion has learnt 40 documents.
    assert [phase["steps"] for phase in plan["phases"]] == [2]
    assert {each["source"] for each in plan["text"]} == {"earlier", "new"}
    assert not (tmp_path / "store/retrain").exists()


def test_a_retraining_above_its_budget_begins_no_run(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(retrain, "run_recipe")
    rented = ("--set", "cluster.instance=ml.p5.48xlarge")

    assert call(tmp_path, "--set", "retrain={max_usd: 0.0001}", *rented) == 7

    said = capsys.readouterr().err
    assert re.search(r"retrain.max_usd: the retraining is planned at USD .*, above USD 0.00", said)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_retraining_that_was_killed_behind_the_alias_is_finished_by_the_next(
    tmp_path: Path,
    recipe: Recipe,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_recorded: bool,
) -> None:
    runs: list[Recipe] = []

    def killed(derived: Recipe, _: object) -> StepResults:
        uris = make_week(derived, until="release" if is_recorded else "evaluate")
        registry.set_champion(uris["model"], "2")
        raise SystemExit(137)

    def finished(derived: Recipe, _: object) -> StepResults:
        runs.append(derived)
        return StepResults(
            uris={"release": make_release(tmp_path / "release", "champion", "Version 2 is champion.")}
        )

    monkeypatch.setattr(retrain, "run_recipe", killed)
    with pytest.raises(SystemExit):
        call(tmp_path)
    monkeypatch.setattr(retrain, "run_recipe", finished)

    # Its files are the champion's by now.
    assert call(tmp_path) == 0

    assert [each.clean.inputs for each in runs] == [(str(tmp_path / "text/2.jsonl"),)] * (not is_recorded)
    assert ("Version 2 is champion." in capsys.readouterr().err) != is_recorded


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lease.ObjectLease, "poll_s", 0.01)
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    if request.param == "s3":
        yield f"{request.getfixturevalue('bucket')}/root"
    else:
        yield str(tmp_path)


def begin_run(root: str, run: str) -> Recipe:
    recipe = recipe_of(Path("/nowhere"), storage={"root": root})
    note_step(recipe, run, "clean", StepRecord(stage="clean"))
    return recipe


def test_a_second_process_is_refused_until_the_first_ends(root: str) -> None:
    with exclusive(root, NAME):
        with (
            pytest.raises(PreflightError, match=r"another run.* it retrains anadil-az; wait for its end"),
            exclusive(root, NAME),
        ):
            pass
        with exclusive(root, "anadil-ja"):
            pass

    with exclusive(root, NAME):
        pass


def test_a_claim_holds_between_the_steps_of_its_run(root: str, caplog: pytest.LogCaptureFixture) -> None:
    begin_run(root, "run-1")
    claim(root, NAME, "run-1")
    claim(root, NAME, "run-1")

    with pytest.raises(
        PreflightError, match=r"run run-1 retrains it now; .* If it is gone, remove .*claim\.json"
    ):
        claim(root, NAME, "run-2")
    with pytest.raises(PreflightError, match="run run-1 retrains it now"), exclusive(root, NAME):
        pass
    free(root, NAME, "run-2")
    with pytest.raises(PreflightError, match="run-1"):
        claim(root, NAME, "run-2")

    free(root, NAME, "run-1")
    claim(root, NAME, "run-2")


def test_the_claim_of_a_run_that_has_ended_is_taken_over(root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    begin_run(root, "run-1")
    claim(root, NAME, "run-1")
    end_run(root, "run-1", 1)

    claim(root, NAME, "run-2")

    assert (
        "run run-1, which retrained anadil-az, has ended (failed) and left its claim; taking over"
        in caplog.text
    )


def test_a_claim_without_a_record_is_no_ended_run(root: str) -> None:
    claim(root, NAME, "run-1")

    with pytest.raises(PreflightError, match="run-1 retrains it now"):
        claim(root, NAME, "run-2")
