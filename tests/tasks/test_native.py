"""Tasks of a language, as they are listed, fetched and scored."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.cli import main
from anadil.core.errors import DataError
from anadil.recipe.sections import Recipe
from anadil.tasks import harness
from anadil.tasks.check import TaskFiles, _harness, inspect_tasks
from anadil.tasks.native import (
    FOLDER,
    _by_language,
    benchmark_of,
    benchmarks,
    languages,
    named_tasks,
    native_tasks,
)
from anadil.tasks.run import run
from anadil.tasks.shipped.az_eval import process_results
from tests.tasks.conftest import TASK


def recipe_of(tasks: Any, language: str = "az") -> Recipe:
    return Recipe.model_validate({"language": language, "evaluate": {"tasks": tasks}})


def test_every_task_of_the_table_exists_in_the_harness_or_here() -> None:
    named = {each.task for tasks in _by_language().values() for each in tasks}

    assert named <= TaskFiles([FOLDER, *_harness()]).own.keys()


def test_every_benchmark_has_languages_and_every_turkic_language_a_task() -> None:
    used = {each.benchmark.name for tasks in _by_language().values() for each in tasks}

    assert used == {each.name for each in benchmarks().values()}
    assert {"az", "kk", "tr", "uz", "ky", "tt", "ka", "ug", "crh", "kaa", "ja"} <= set(languages())
    assert len(languages()) > 180


def test_auto_stands_for_the_tasks_of_the_language_in_any_spelling_and_keeps_its_place() -> None:
    found = named_tasks(recipe_of(["mine", "auto", "belebele_kaz_Cyrl"], "kaz_Cyrl"))

    assert found[:2] == ["mine", "belebele_kaz_Cyrl"]
    assert "tumlu_kazakh" in found
    assert len(set(found)) == len(found)
    assert named_tasks(recipe_of("auto", "kk")) == found[1:]


def test_auto_takes_no_task_that_has_a_reason_against_it() -> None:
    listed = {each.task: each.benchmark.why_not for each in native_tasks("eu")}

    assert listed["basque_bench_flores_en-eu"].startswith("its data comes as a script")
    assert "basque_bench_flores_en-eu" not in named_tasks(recipe_of("auto", "eu"))


def test_auto_in_a_language_without_tasks_is_said_and_no_mistake() -> None:
    found = inspect_tasks(recipe_of("auto", "eo"))

    assert found.status == "passed"
    assert "no benchmark has tasks in eo" in found.detail


def test_a_run_of_auto_in_such_a_language_measures_nothing(
    job_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = replace(job_of("auto"), recipe=recipe_of("auto", "eo"))

    assert run(job) == {"tasks": 0, "candidates": 0}

    assert json.loads((job.out / "tasks.json").read_text()) == {}
    assert "no task in eo, nothing is measured" in caplog.text


def test_tasks_of_a_language_are_listed_with_what_they_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tasks", "list", "kk", "-o", "json"]) == 0

    rows = {row["task"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["belebele_kaz_Cyrl"] == {
        "task": "belebele_kaz_Cyrl", "benchmark": "Belebele", "auto": True, "why_not": "", "items": 900, "chance": 0.25,
        "measures": "reading comprehension, translated by people",
    }  # fmt: skip
    assert main.main(["tasks", "list"]) == 0
    listed = capsys.readouterr().out
    assert "kk        Kazakh" in listed
    # An id in another script than the usual one has no row of its own.
    assert "ur-Latn   Urdu" in listed
    assert len(listed.splitlines()) == len(languages())


def test_a_language_without_tasks_is_refused_by_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tasks", "list", "kbd"]) == 3
    assert "no benchmark has tasks in 'kbd'" in capsys.readouterr().err
    assert main.main(["tasks", "list", "xx"]) == 3
    assert "'xx': no language has this id" in capsys.readouterr().err


def test_fetch_writes_the_questions_that_clean_looks_for(
    tmp_path: Path, task_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, items = tmp_path / "recipe.yaml", tmp_path / "items.jsonl"
    recipe.write_text(f"language: az\nevaluate: {{tasks: [{task_folder}]}}\n")

    assert main.main(["tasks", "fetch", str(recipe), "--items", str(items)]) == 0

    assert capsys.readouterr().out == "own_questions: 3 questions\n"
    rows = [json.loads(line) for line in items.read_text().splitlines()]
    assert [row["task"] for row in rows] == ["own_questions"] * 3
    assert rows[1]["text"] == "Nənəm nə bişirir?\nçörək\ndaş"


def test_only_a_task_of_auto_is_skipped_if_its_data_is_a_script(
    tmp_path: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = harness.place_task_files(
        [str(task_folder / "task.yaml"), str(task_folder / "questions.jsonl")], tmp_path / "in"
    )

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found x.py")

    monkeypatch.setattr("datasets.load_dataset", refused)
    with pytest.raises(DataError, match="data of own_questions cannot be read"):
        harness.find_tasks(names, tmp_path / "in")

    _, found = harness.find_tasks(names, tmp_path / "in", optional=names)

    assert found == {}
    assert "skipped: evaluate.tasks: the data of own_questions" in caplog.text
    assert "Dataset scripts are no longer supported, but found x.py)" in caplog.text


def test_a_task_that_is_in_no_table_measures_nothing_known() -> None:
    assert benchmark_of(TASK["task"]) is None
    assert (benchmark_of("tumlu_tatar") or benchmarks()["flores"]).name == "TUMLU-mini"


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ("Şəki.", (1, 1, 1, 1)),
        ("Şəkidə", (1, 1, 1, 1)),
        ("Şəkinin", (0, 1, 1, 1)),
        ("Seki", (0, 0, 1, 1)),
        ("Шәки", (0, 0, 0, 1)),
        ("Шәкидән", (0, 0, 0, 1)),
        ("ŞƏKİ", (1, 1, 1, 1)),
        ("Bakı", (0, 0, 0, 0)),
        ("", (0, 0, 0, 0)),
    ],
)
def test_a_short_answer_is_accepted_from_the_step_that_explains_how_it_differs(
    said: str, steps: tuple[int, ...]
) -> None:
    found = process_results({"answer": "Şəki", "answer_aliases": ["Şəkidə"]}, [said])

    assert tuple(found.values()) == steps
