import json
from pathlib import Path

from anadil.core.stages import STAGES
from anadil.evaluate.run import _table
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Job, is_left_out


def test_what_the_stage_tasks_found_goes_into_the_scores_as_it_is(tmp_path: Path) -> None:
    found = {"own": {"base": {"metric": "acc", "value": 0.5, "stderr": None, "chance": 0.25}}}
    (tmp_path / "tasks.json").write_text(json.dumps(found))

    def job(inputs: dict[str, Path]) -> Job:
        return Job(recipe=Recipe(), inputs=inputs, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    assert _table(job({"tasks": tmp_path}), "tasks", "tasks.json") == found
    assert _table(job({}), "tasks", "tasks.json") == {}


def test_a_recipe_without_tasks_leaves_the_stage_out_and_tasks_alone_decide_no_scores() -> None:
    without, named = Recipe(), Recipe.model_validate({"evaluate": {"tasks": ["az"], "task_shots": 5}})

    assert is_left_out(STAGES["tasks"], without)
    assert not is_left_out(STAGES["tasks"], named)
    sections = STAGES["evaluate"].sections
    assert recipe_origin(without, sections) == recipe_origin(named, sections)
    assert recipe_origin(without, STAGES["tasks"].sections) != recipe_origin(named, STAGES["tasks"].sections)
