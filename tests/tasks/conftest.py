"""Questions that a model can answer or not, as task files, and the small models of the tests of evaluate."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, external_side_files
from tests.evaluate.conftest import save_model
from tests.kit.rows import write_rows

QUESTIONS: list[dict[str, Any]] = [
    {"question": "Bakı hansı dənizin sahilindədir?", "choices": ["Xəzər", "Qara", "Aralıq"], "answer": 0},
    {"question": "Nənəm nə bişirir?", "choices": ["çörək", "daş"], "answer": "A"},
    {"question": "Qatar hara çatdı?", "choices": ["bağa", "stansiyaya"], "answer": "stansiyaya"},
]
TASK: dict[str, Any] = {
    "task": "own_questions",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "questions.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Data sets stay in the test's folder, and no network is asked."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(autouse=True, scope="session")
def _machine_described_once() -> Iterator[None]:
    """The harness describes the machine for each candidate, with `pip list` and more, at 0.8 s of CPU."""
    from torch.utils import collect_env

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_env, "get_pretty_env_info", functools.cache(collect_env.get_pretty_env_info))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "base", 300)
    save_model(folder / "model", 420, seed=1)
    save_model(folder / "adapter/merged", 420, seed=2)
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """A file of questions with choices."""
    return write_rows(tmp_path / "questions.jsonl", QUESTIONS)


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """A directory with a task file and its data."""
    folder = tmp_path / "own"
    folder.mkdir()
    write_rows(folder / "questions.jsonl", [{**row, "answer": 0} for row in QUESTIONS])
    (folder / "task.yaml").write_text(yaml.safe_dump(TASK))
    return folder


@pytest.fixture
def job_of(models: Path, tmp_path: Path) -> Callable[..., Job]:
    """A job of the stage on the small models."""

    def made(*tasks: str, **evaluate: Any) -> Job:
        recipe = Recipe.model_validate({
            "base": {"model": str(models / "base")}, "pretrain": {"sequence_length": 64},
            "evaluate": {"tasks": tasks, **evaluate},
        })  # fmt: skip
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        return Job(
            recipe=recipe, inputs={word: models / word for word in ("model", "adapter")},
            side_files=external_side_files(STAGES["tasks"], recipe), out=out, work=out, base_cache=out,
        )  # fmt: skip

    return made
