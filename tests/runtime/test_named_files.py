from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import named_side_files


def test_of_the_tasks_files_are_read_and_names_are_not() -> None:
    tasks = ["belebele_azj_Latn", "az", "own.yaml", "s3://bucket/tasks/", "questions.jsonl"]
    recipe = Recipe.model_validate({"evaluate": {"tasks": tasks}})

    places = ("builtin:az/tasks.yaml", "own.yaml", "s3://bucket/tasks/", "questions.jsonl")
    assert named_side_files(STAGES["tasks"], recipe) == {"evaluate.tasks": places}


def test_names_alone_are_no_files() -> None:
    recipe = Recipe.model_validate({"evaluate": {"tasks": ["belebele_azj_Latn"]}})

    assert named_side_files(STAGES["tasks"], recipe) == {}
