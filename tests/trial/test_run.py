import json
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Figures, Job, is_left_out
from anadil.trial import run as trial_run
from anadil.trial.reuse import FOLDER
from anadil.trial.run import run

from .conftest import MakeJob, trial_job


@pytest.fixture(scope="session")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Figures]:
    """A trial that nothing interrupts."""
    job = trial_job(root, tmp_path_factory.mktemp("whole"))
    return job, run(job)


def table(folder: Path) -> Any:
    return json.loads((folder / "trial.json").read_text(encoding="utf-8"))


def tried(monkeypatch: pytest.MonkeyPatch, most: int = 99) -> list[str]:
    """Names of the finalists that are trained from here on; the one after `most` is interrupted."""
    names: list[str] = []
    real = trial_run.try_finalist

    def note(job: Job, finalist: Any, *rest: Any) -> Any:
        if len(names) == most:
            raise KeyboardInterrupt
        names.append(finalist.name)
        return real(job, finalist, *rest)

    monkeypatch.setattr(trial_run, "try_finalist", note)
    return names


def test_finalists_are_trained_at_equal_compute_and_the_winners_tokenizer_is_the_artifact(
    whole: tuple[Job, Figures], root: Path
) -> None:
    job, figures = whole
    shown = table(job.out)
    by_name = {each["name"]: each for each in shown["finalists"]}
    winner = root / "tokenizer" / "candidates" / str(figures["winner"])
    assert list(by_name) == ["base", "extend-300", "replace-300"]
    assert by_name["base"]["steps"] == 20
    for each in by_name.values():
        per_step = each["flops"] / each["steps"]
        assert abs(each["flops"] - shown["flops"]) <= per_step / 2
        assert each["interval"][0] <= each["bits_per_byte"] <= each["interval"][1]
        assert set(each["keep"]) == {"en"}
        assert each["words_in_context"] > 0
    assert by_name["extend-300"]["rows"] > by_name["base"]["rows"]
    assert by_name["extend-300"]["steps"] < by_name["base"]["steps"]
    assert shown["winner"] == figures["winner"]
    for file in winner.iterdir():
        assert (job.out / file.name).read_bytes() == file.read_bytes()
    content = {path.relative_to(job.out).as_posix() for path in job.out.rglob("*") if path.is_file()}
    assert content - set(job.varying) == {file.name for file in winner.iterdir()}


def test_a_killed_trial_begins_with_the_first_unfinished_finalist(
    make_job: MakeJob, whole: tuple[Job, Figures], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tried(monkeypatch, most=1)
    with pytest.raises(KeyboardInterrupt):
        run(make_job())
    monkeypatch.undo()
    after = tried(monkeypatch)
    again = make_job()

    run(again)

    first, second = table(whole[0].out), table(again.out)
    for each in [*first["finalists"], *second["finalists"]]:
        del each["seconds"]
    assert before == ["base"]
    assert after == ["extend-300", "replace-300"]
    assert first == second


def test_a_pod_of_one_strategy_gives_what_the_trial_of_all_gives_for_it(
    make_job: MakeJob, whole: tuple[Job, Figures]
) -> None:
    alone, every = make_job(strategies=["extend"]), whole[0]

    run(alone)

    [own] = table(alone.out)["finalists"]
    [same] = [each for each in table(every.out)["finalists"] if each["name"] == own["name"]]
    for each in (own, same):
        del each["seconds"], each["why_not"]
    assert own == same
    nats = [json.loads((job.out / FOLDER / "extend-300.json").read_text())["nats"] for job in (alone, every)]
    assert nats[0] == nats[1]


def test_without_the_key_there_is_no_trial_and_no_other_key() -> None:
    plain = Recipe.model_validate({"tokenizer": {"strategies": ["base", "extend"]}})
    tries = Recipe.model_validate({"tokenizer": {"strategies": ["base", "extend"], "trial": {"steps": 5}}})

    assert is_left_out(STAGES["trial"], plain)
    assert not is_left_out(STAGES["trial"], tries)
    for stage in ("tokenizer", "pretrain", "report"):
        sections = STAGES[stage].sections
        assert recipe_origin(plain, sections) == recipe_origin(tries, sections)
    sections = STAGES["trial"].sections
    assert recipe_origin(tries, sections).items() >= {("recipe tokenizer.trial.steps", "5")}


def test_a_trial_that_the_recipe_does_not_name_is_refused(make_job: MakeJob) -> None:
    job = make_job()
    settings = job.recipe.tokenizer.model_copy(update={"trial": None})
    object.__setattr__(job, "recipe", job.recipe.model_copy(update={"tokenizer": settings}))

    with pytest.raises(RecipeError, match=r"tokenizer\.trial: not set"):
        run(job)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategies": ["extend"], "trial": {"steps": 5}}, "has one"),
        ({"trial": {"steps": 0}}, "greater than 0"),
        ({"choice": "extend", "trial": {"steps": 5}}, "leaves trial nothing to choose"),
        ({"trial": {"steps": 5, "strategies": ["surgery"]}}, "are not among strategies"),
    ],
)
def test_a_trial_that_can_choose_nothing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe.model_validate({"tokenizer": settings})
