import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from anadil.core.errors import DataError, IntegrityError, PreflightError, RetryableError
from anadil.launch.kubernetes import clean_pods
from anadil.launch.kubernetes.clean_pods import CONTAINER, IndexedJob
from anadil.recipe.sections import Recipe
from anadil.runtime.executors import task_files
from anadil.runtime.job import Job
from tests.kit.clean_inputs import write_inputs
from tests.kit.clean_stage import InThisProcess, clean, content, stats
from tests.kit.fake_batch import Batch, Object
from tests.kit.fake_server import refused, serving
from tests.kit.following import QUICK
from tests.kit.harm import bad_and_harmful, install_harm


class _Task:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name


def write(task: _Task) -> None:
    task.folder.write_text("done")


def refuse(task: _Task) -> None:
    raise DataError(f"{task.name}: nothing in it")


def recipe(work: Path) -> Recipe:
    volumes = [{"claim": "shared", "path": str(work)}]
    return Recipe.model_validate({"cluster": {"volumes": volumes}, "clean": {"engine": "job", "workers": 3}})


def words(template: Object) -> list[str]:
    """The command line of a pod; `$$` is a dollar sign for Kubernetes."""
    [container] = template["spec"]["containers"]
    return [*container["command"], *(word.replace("$$", "$") for word in container["args"])]


def run_here(template: Object, index: int) -> int:
    """A pod in this process."""
    *_, folder, digest = words(template)
    try:
        task_files.run_task(Path(folder), digest, index)
    except (DataError, IntegrityError, PreflightError) as error:
        return error.exit_code
    return 0


def run_in_a_process(template: Object, index: int) -> int:
    environment = os.environ | {task_files.INDEX_VARIABLE: str(index)}
    [python, *arguments] = words(template)
    assert python == "python"
    return subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """A cluster whose pods run in this process."""
    monkeypatch.setattr(task_files, "Processes", lambda _: InThisProcess())
    served = Batch(run_here)
    with serving(served, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield served


def run_tasks(
    work: Path, function: Callable[[Any], None] = write, tick: Callable[[], None] = lambda: None
) -> list[Path]:
    tasks = [_Task(work / str(number)) for number in range(4)]
    with IndexedJob(recipe(work), work, pause_s=0.01) as executor:
        executor.map(function, tasks, tick)
    return [task.folder for task in tasks]


def test_each_task_is_a_pod_and_the_job_is_deleted_when_it_is_done(batch: Batch, tmp_path: Path) -> None:
    made = run_tasks(tmp_path)

    assert [path.read_text() for path in made] == ["done"] * 4
    [job] = batch.made
    assert batch.deleted == [job["metadata"]["name"]]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (4, 3)
    assert job["metadata"].get("ownerReferences") is None


def test_what_a_task_raises_ends_the_job_and_is_told(batch: Batch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0: nothing in it"):
        run_tasks(tmp_path, refuse)

    assert batch.ran == [0]
    assert batch.deleted == [], "it stays for its hour, to be looked at"


def test_a_pod_that_is_killed_is_tried_again(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter([137, 137])
    monkeypatch.setattr(
        batch, "_run_pod", lambda template, index: next(codes, 0) or run_here(template, index)
    )

    run_tasks(tmp_path)

    assert batch.ran == [0, 0, 0, 1, 2, 3]


def dead_pod(name: str, **terminated: object) -> Object:
    status = {"name": CONTAINER, "restartCount": 0, "state": {"terminated": terminated}}
    return {
        "metadata": {
            "name": name, "uid": f"of {name}", "labels": {"batch.kubernetes.io/job-completion-index": "2"},
        },
        "spec": {"nodeName": "node-7"},
        "status": {"phase": "Failed", "containerStatuses": [status]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("terminated", "message"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, r"pod shards-2.*node node-7.*OOMKilled.*more memory is needed"),
        (
            {
                "exitCode": 4,
                "reason": "Error",
                "message": '{"exit_code": 4, "message": "clean.language_model: lid.bin is not there; mount it"}',
            },
            r"pod shards-2.*lid.bin is not there; mount it, exit code 4",
        ),
    ],
    ids=["out of memory", "its own words"],
)  # fmt: skip
def test_the_last_words_of_the_pod_that_failed_are_told_and_its_job_stays(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminated: Object, message: str
) -> None:
    monkeypatch.setattr(batch, "_run_pod", lambda *_: 4)
    batch.pods["shards-2"] = dead_pod("shards-2", **terminated)

    with pytest.raises(PreflightError, match=message):
        run_tasks(tmp_path)

    assert batch.deleted == [], "its pods would go with it"


@pytest.mark.parametrize(
    ("status", "at_first"), [(503, False), (403, False), (429, False), (500, False), (503, True)]
)
def test_an_api_that_is_away_or_refuses_for_a_while_does_not_end_the_run(
    batch: Batch, tmp_path: Path, status: int, at_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anadil.launch.kubernetes import client

    monkeypatch.setattr(client, "RetryPolicy", lambda: QUICK)
    batch.outages = [refused(status, "the server is starting", {})] * 12
    batch.is_away_at_first = at_first

    made = run_tasks(tmp_path)

    assert [path.read_text() for path in made] == ["done"] * 4
    assert not batch.outages


def test_a_job_that_cannot_be_deleted_hides_no_error_and_spoils_no_result(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from anadil.launch.kubernetes.client import JobApi

    def refuse_to_delete(*_: object) -> bool:
        raise PreflightError("may not delete jobs")

    monkeypatch.setattr(JobApi, "delete", refuse_to_delete)

    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()

    made = run_tasks(one)
    with pytest.raises(ZeroDivisionError):
        run_tasks(two, tick=lambda: print(1 / 0))

    assert [path.read_text() for path in made] == ["done"] * 4
    assert caplog.text.count("cannot be deleted (may not delete jobs)") == 2


def test_a_job_that_a_killed_driver_has_left_is_made_anew(batch: Batch, tmp_path: Path) -> None:
    run_tasks(tmp_path)
    [job] = batch.made
    batch.objects[f"/apis/batch/v1/namespaces/team/jobs/{job['metadata']['name']}"] = {
        "metadata": {"name": "x", "uid": "of another time"}
    }

    run_tasks(tmp_path)

    assert len(batch.deleted) == 3


def test_a_job_that_somebody_deletes_ends_the_run_to_be_started_again(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_run", lambda _: None)

    with pytest.raises(RetryableError, match="it was deleted by another user"):
        run_tasks(tmp_path, tick=batch.objects.clear)


def test_the_pod_of_the_driver_owns_the_job(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anadil.launch.kubernetes.clean_pods import own_pod
    from anadil.launch.kubernetes.client import Api

    monkeypatch.setenv("KFP_POD_NAME", "driver-1")
    batch.pods["driver-1"] = {"metadata": {"name": "driver-1", "uid": "4711"}}
    monkeypatch.setattr(Api, "is_in_own_namespace", True)

    assert own_pod(Api()) == ({"apiVersion": "v1", "kind": "Pod", "name": "driver-1", "uid": "4711"},)
    monkeypatch.setattr(Api, "is_in_own_namespace", False)
    assert own_pod(Api()) == ()


def test_a_directory_that_pods_do_not_see_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="on no volume that the pods mount"):
        IndexedJob(Recipe(), tmp_path).__enter__()


def test_tasks_that_others_have_written_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "Processes", lambda _: InThisProcess())
    folder = tmp_path / "tasks"
    digest = task_files.write_tasks(folder, write, [_Task(tmp_path / "0"), _Task(tmp_path / "1")])
    (folder / "task-000000.pickle").write_bytes((folder / "task-000001.pickle").read_bytes())

    with pytest.raises(IntegrityError, match="task 0 is not the one that was written"):
        task_files.run_task(folder, digest, 0)
    with pytest.raises(IntegrityError, match="task 1"):
        task_files.run_task(folder, "0" * 64, 1)
    with pytest.raises(PreflightError, match="every pod must see this directory"):
        task_files.run_task(tmp_path / "elsewhere", digest, 0)


def test_the_job_gives_the_same_bytes(batch: Batch, tmp_path: Path) -> None:
    files = write_inputs(tmp_path / "raw")
    expected = content(clean(tmp_path / "one", *files, max_bad_records=0.5))

    executor = IndexedJob(recipe(tmp_path), tmp_path / "job", pause_s=0.01)
    corpus = clean(tmp_path / "job", *files, executor=executor, max_bad_records=0.5, shard_bytes=4_000)

    assert content(corpus) == expected
    # Shards, what the held-out documents share, and the files of the corpus.
    assert len(batch.made) == 3
    assert batch.made[0]["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] == CONTAINER


@pytest.mark.matrix
def test_pods_that_are_processes_give_the_same_bytes_and_leave_out_a_record_that_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_inputs(tmp_path / "raw")
    unreadable, harmful = bad_and_harmful(files[0])
    files[0].write_bytes(unreadable)
    expected = content(clean(tmp_path / "one", *files, max_bad_records=0.5))
    files[0].write_bytes(harmful)
    install_harm("crash", tmp_path / "site", monkeypatch)
    batch = Batch(run_in_a_process)
    with serving(batch, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        executor = IndexedJob(recipe(tmp_path), tmp_path / "job")
        corpus = clean(tmp_path / "job", *files, executor=executor, max_bad_records=0.5)

    assert content(corpus) == expected
    assert stats(corpus)["bad_records"]["first"][0] == (
        "0.jsonl:5: kills the process that works on it (SIGSEGV)"
    )


@pytest.fixture
def ray_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # both put back afterwards
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    return Job(recipe=recipe(tmp_path), inputs={}, out=tmp_path, work=tmp_path, base_cache=tmp_path)


def test_a_ray_cluster_is_made_awaited_and_deleted(batch: Batch, ray_job: Job) -> None:
    ready = {"readyWorkerReplicas": 1, "head": {"serviceName": "ours-head-svc"}}
    Timer(0.3, lambda: batch.made[0].update(status=ready)).start()

    with clean_pods.RayCluster(ray_job, pause_s=0.02) as address:
        assert address == "ray://ours-head-svc.team.svc:10001"
        assert batch.made[0]["spec"]["workerGroupSpecs"][0]["replicas"] == 3
        assert batch.deleted == []
        # Who has not the token may not run code there.
        for group in (batch.made[0]["spec"]["headGroupSpec"], *batch.made[0]["spec"]["workerGroupSpecs"]):
            variables = group["template"]["spec"]["containers"][0]["env"]
            assert {"name": "RAY_AUTH_TOKEN", "value": os.environ["RAY_AUTH_TOKEN"]} in variables

    assert batch.deleted == [batch.made[0]["metadata"]["name"]]


def test_a_ray_cluster_whose_workers_do_not_come_is_deleted_and_told(
    batch: Batch, ray_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_pods, "START_S", 0.0)

    with pytest.raises(PreflightError, match="no worker within"):
        clean_pods.RayCluster(ray_job, pause_s=0.02).__enter__()
    assert len(batch.deleted) == 1
