"""`anadil retrain`: its exit codes, and what it writes and says."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.cli.runs import retrain
from anadil.cli.runs.run import after_failure
from anadil.core.errors import AnadilError, DataError, PreflightError, Stopped
from anadil.preflight.week_cost import RunCost
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.release_record import FILE, ReleaseRecord
from anadil.retrain.exclusive import exclusive
from anadil.retrain.ledger import Ledger
from anadil.runtime.run_record import record_step, write_recipe
from anadil_pipelines.laptop import StepResults
from tests.kit.retraining import NAME, Registry, add_text, make_week, recipe_of

if TYPE_CHECKING:
    from anadil.runtime.alerts import Event

DEAR = RunCost(documents=1, tokens=1, steps=1, hours=1.0, usd=6.0)


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
    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert (entry.outcome, entry.exit_code, entry.champion, entry.num_files) == (outcome, code, "1", 1)
    assert entry.ended is not None
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
    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert entry.outcome == "challenger"


def test_a_week_that_is_refused_ends_as_its_step(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrain, "run_recipe", lambda *_: StepResults(exit_code=3))

    assert call(tmp_path) == 3

    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert (entry.outcome, entry.exit_code) == ("failed", 3)


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
    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert (entry.outcome, entry.exit_code) == ("text refused", 3)
    assert entry.reason == "admit: the new text is refused for 1 reason: growth"
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
def test_an_error_before_the_run_stands_in_the_ledger(
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

    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert (entry.outcome, entry.reason) == ("failed" if num_events else "stopped", "no memory")


def test_without_new_text_it_ends_at_once(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text/2.jsonl").unlink()
    monkeypatch.delattr(retrain, "run_recipe")

    assert call(tmp_path) == 0

    said = capsys.readouterr().err
    assert "no new text: no file of the inputs is new to the champion; nothing to do" in said
    assert [each.outcome for each in Ledger(str(recipe.storage.root), NAME).read()] == ["nothing"]


def test_a_second_retraining_is_refused_while_one_runs(
    tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    with exclusive(str(recipe.storage.root), NAME):
        assert call(tmp_path) == 4

    assert "it retrains anadil-az; wait for its end" in capsys.readouterr().err


def test_a_plan_prints_both_runs_and_starts_none(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(retrain, "run_recipe")

    assert call(tmp_path, "--plan") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["this", "retraining", "from", "the", "base"]
    assert lines[1].split() == ["documents", "40", "80"]

    assert call(tmp_path, "--plan", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["week"]["documents"] == 40
    assert not (tmp_path / "store/retrain").exists()


def test_a_retraining_above_its_budget_begins_no_run(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(retrain, "run_recipe")
    monkeypatch.setattr("anadil.preflight.week_cost._ChampionRun.cost", lambda *_, **__: DEAR)

    assert call(tmp_path, "--set", "retrain={max_usd: 5}") == 7

    assert (
        "retrain.max_usd: the retraining is estimated at USD 6.00, above USD 5.00" in capsys.readouterr().err
    )
    [entry] = Ledger(str(recipe.storage.root), NAME).read()
    assert (entry.outcome, entry.exit_code) == ("failed", 7)
    assert call(tmp_path, "--from-base", "--set", "retrain={max_usd: 5}") == 7


def test_a_run_from_the_base_needs_the_champions_corpus_for_its_price_alone(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "store/corpus")
    began: list[Recipe] = []

    def run(derived: Recipe, _: object) -> StepResults:
        began.append(derived)
        return StepResults(exit_code=4, run="run-1")

    monkeypatch.setattr(retrain, "run_recipe", run)

    for options in (("--set", "retrain={max_usd: 5}"), ("--plan",)):
        assert call(tmp_path, "--from-base", *options) == 5
        said = capsys.readouterr().err
        assert "a run from the base is priced by the champion's artifacts" in said
        assert (
            "or name its root as storage.root, or run it without --plan and without a limit: --set retrain.max_usd=null"
            in said
        )
        assert "--from-base" not in said
    assert not began

    limits = ("--set", "retrain={max_usd: 5}", "--set", "retrain.max_usd=null")
    assert call(tmp_path, "--from-base", *limits) == 4
    assert [each.clean.inputs for each in began] == [recipe.clean.inputs]


@pytest.mark.parametrize("end", ["killed", "promoted by hand"])
def test_a_retraining_that_was_killed_behind_the_alias_is_finished_by_the_next(
    tmp_path: Path,
    recipe: Recipe,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: str,
) -> None:
    release = make_release(tmp_path / "release", "champion", "Version 2 is champion.")
    root, runs = str(recipe.storage.root), []

    def killed(derived: Recipe, _: object) -> StepResults:
        model = make_week(derived)["model"]
        run = f"20261127-000000-{os.getpid()}"
        steps = {"pretrain": model if end == "killed" else "another"}
        note_steps(derived, run, steps)
        registry.set_champion(model, "2")
        raise SystemExit(137)

    def finished(derived: Recipe, _: object) -> StepResults:
        runs.append(derived)
        return StepResults(uris={"release": release})

    monkeypatch.setattr(retrain, "run_recipe", killed)
    with pytest.raises(SystemExit):
        call(tmp_path)
    [entry] = Ledger(root, NAME).read()
    shutil.rmtree(Ledger(root, NAME).folder)
    Ledger(root, NAME).write(replace(entry, outcome="running", ended=None, started=entry.started - 60))
    monkeypatch.setattr(retrain, "run_recipe", finished)

    # Its files are the champion's by now.
    assert call(tmp_path) == 0

    assert [each.clean.inputs for each in runs] == [(str(tmp_path / "text/2.jsonl"),)] * (end == "killed")
    outcomes = [each.outcome for each in Ledger(root, NAME).read()]
    assert outcomes == (["champion", "nothing"] if end == "killed" else ["running", "nothing"])
    assert ("Version 2 is champion." in capsys.readouterr().err) == (end == "killed")


def note_steps(recipe: Recipe, run: str, steps: dict[str, str]) -> None:
    """Record finished steps of a run that has not ended."""
    root = str(recipe.storage.root)
    write_recipe(root, run, recipe)
    for name, uri in steps.items():
        with record_step(recipe, run, name) as step:
            step.uri = uri
