"""Names of tasks are looked up before pre-training, not when they are run."""

from pathlib import Path

import pytest

from anadil.cli import main
from anadil.preflight import checks
from anadil.preflight.checks import inspect_tasks, named_nowhere
from anadil.recipe.load import load_recipe

FILES = {
    "one.yaml": "task: one\ndataset_path: json\n",
    "group.yml": 'group: "all_of_them"  # a group\ntask:\n  - one\n  - two\n',
    "tagged.yaml": "include: one.yaml\ntask: two\ntag:\n  - exams\n",
    "words.yaml": "task: other\ndescription: one more task is three\n",
}


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A harness with a few tasks."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(checks, "_harness", lambda: [tmp_path])
    return tmp_path


def test_tasks_groups_and_tags_are_found_and_words_in_a_description_are_not(harness: Path) -> None:
    names = ["one", "two", "all_of_them", "exams", "other", "three", "on"]

    assert named_nowhere(names, [harness]) == ["three", "on"]


def test_names_that_are_known_and_shipped_ones_pass(harness: Path) -> None:
    assert harness
    recipe = load_recipe("smoke", ["evaluate.tasks=[az, one, tumlu_azerbaijani]"])

    assert inspect_tasks(recipe).detail == "2 names of tasks found"


def test_without_the_harness_nothing_is_said_against_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_harness", list)

    found = inspect_tasks(load_recipe("smoke", ["evaluate.tasks=[no_such, tumlu_azerbaijani]"]))

    assert found.status == "skipped"
    assert found.detail == "no_such not looked up, because lm_eval is not installed here"


def test_a_name_that_a_task_file_of_the_recipe_may_hold_is_not_called_unknown(
    harness: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()

    found = inspect_tasks(load_recipe("smoke", [f"evaluate.tasks=[one, mine, {own}]"]))

    assert harness
    assert found.status == "skipped"
    assert found.detail == "mine: only a task file of the recipe may hold it"


@pytest.mark.slow
def test_a_name_that_does_not_exist_is_refused_with_the_nearest_by_recipe_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval", reason="pip install 'anadil[tasks]'")
    file = tmp_path / "recipe.yaml"
    file.write_text("language: az\nevaluate: {tasks: [belebele_az_Latn]}\n")

    assert main.main(["recipe", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert "lm-evaluation-harness has no task 'belebele_az_Latn'; nearest: " in said
    assert "belebele_azj_Latn" in said
