"""The same bytes, whoever runs the tasks."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from anadil.artifacts import ranged, storage
from anadil.core.errors import PreflightError
from anadil.launch.clean import CLUSTER_ENGINES
from anadil.launch.kubernetes.clean_pods import IndexedJob
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor
from anadil.runtime.executors.engines import executor_of
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Job
from tests.kit.clean_inputs import write_inputs
from tests.kit.clean_stage import clean, content, stats
from tests.kit.harm import bad_and_harmful, install_harm

SETTINGS: dict[str, Any] = {"max_bad_records": 0.5, "shard_bytes": 4_000}
KILLED = "0.jsonl:5: kills the process that works on it (SIGSEGV)"


def test_processes_run_the_stage_where_nothing_else_is_said(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"clean": {"workers": 3}})
    job = Job(recipe=recipe, inputs={}, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    made = executor_of(job)

    assert isinstance(made, Processes)
    assert made.num_workers == 3


def test_an_engine_that_the_program_does_not_have_is_refused_with_the_one_that_has(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"clean": {"engine": "job"}})
    job = Job(recipe=recipe, inputs={}, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    with pytest.raises(PreflightError, match=r"engine: job: .*anadil\.launch\.clean` in the image clean-ray"):
        executor_of(job)

    assert isinstance(executor_of(replace(job, engines=CLUSTER_ENGINES)), IndexedJob)


def test_files_of_a_bucket_give_the_corpus_that_files_of_a_disk_give(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "PIECE_BYTES", 1_500)
    files = write_inputs(tmp_path / "raw")
    expected = content(clean(tmp_path / "disk", *files, max_bad_records=0.5))
    uris = [f"{bucket}/{path.name}" for path in files]
    for path, uri in zip(files, uris, strict=True):
        storage.store(uri).write(uri, path.read_bytes())
    monkeypatch.setattr(storage, "local_copy", None)  # nothing is fetched whole

    assert content(clean(tmp_path / "bucket", *uris, **SETTINGS)) == expected


def test_ray_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(
        PreflightError, match=r"clean.engine: ray needs the packages of Ray; run pip install 'anadil\[ray\]'"
    ):
        clean(tmp_path, *write_inputs(tmp_path / "raw"), executor=_ray(tmp_path))


def test_a_cluster_that_does_not_answer_is_asked_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anadil.runtime.executors import ray_tasks

    asked: list[str] = []

    class Silent:
        @staticmethod
        def init(address: str, **_: Any) -> None:
            asked.append(address)
            raise ConnectionError("no server")

        @staticmethod
        def shutdown() -> None: ...

    monkeypatch.setitem(sys.modules, "ray", Silent)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    monkeypatch.setattr(ray_tasks, "PAUSE_S", 0.0)

    with pytest.raises(PreflightError, match=r"Ray does not answer at ray://head:10001: no server; correct"):
        _ray(tmp_path).__enter__()
    assert asked == ["ray://head:10001"] * 3


class _Started:
    """An executor that others have started and will end."""

    def __init__(self, executor: Executor) -> None:
        self.num_workers, self.map = executor.num_workers, executor.map

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Started]:
    """Ray, whose processes die of a harmful record."""
    pytest.importorskip("ray", reason="Ray is not installed")
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        install_harm("crash", folder / "site", patch)
        with _ray(folder / "work") as executor:
            yield _Started(executor)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_bytes_of_one_process_and_leaves_out_a_record_that_kills(
    tmp_path: Path, ray: _Started
) -> None:
    files = write_inputs(tmp_path / "raw")
    unreadable, harmful = bad_and_harmful(files[0])
    files[0].write_bytes(unreadable)
    expected = content(clean(tmp_path / "one", *files, max_bad_records=0.5))
    files[0].write_bytes(harmful)

    corpus = clean(tmp_path / "ray", *files, executor=ray, **SETTINGS)

    assert content(corpus) == expected
    assert stats(corpus)["bad_records"]["first"][0] == KILLED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_task_of_a_worker_of_ray_that_is_killed_is_done_by_another(tmp_path: Path, ray: _Started) -> None:
    tasks = [_Task(tmp_path / str(number)) for number in range(3)]

    ray.map(kill_the_first_worker, tasks)

    assert all(task.folder.read_text() == "done" for task in tasks)
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_task_raises_on_ray_ends_the_run_with_its_own_error(tmp_path: Path, ray: _Started) -> None:
    with pytest.raises(PreflightError, match="no disk left"):
        ray.map(refuse, [_Task(tmp_path / "0")])


class _Task:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name


def kill_the_first_worker(task: _Task) -> None:
    killed = task.folder.parent / "killed"
    if not killed.exists():
        killed.touch()
        os.kill(os.getppid(), 9)  # Ray's worker, whose process this is
    task.folder.write_text("done")


def refuse(task: _Task) -> None:
    raise PreflightError("no disk left")


def _ray(work: Path) -> Any:
    from anadil.runtime.executors.ray_tasks import RayTasks

    return RayTasks(2, work)
