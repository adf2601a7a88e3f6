"""Tasks of `clean` as pods of an Indexed Job: made, followed and taken away by the process that drives them."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from anadil.clean.executors import Task
from anadil.clean.executors.task_files import first_error, write_tasks
from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.launch.kubernetes.client import Api, JobApi
from anadil.launch.kubernetes.kinds import ApiObject, JobKind, true_conditions
from anadil.launch.kubernetes.ledger import POD_VARIABLE
from anadil.launch.manifests.clean_pods import CONTAINER, DEFAULT_WORKERS, CleanPods, indexed_job
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job

log = logging.getLogger(__name__)

INDEXED_JOB = JobKind(
    name="job",
    title="Job",
    group="batch",
    version="v1",
    plural="jobs",
    container=CONTAINER,
    job_label="batch.kubernetes.io/job-name",
    index_label="batch.kubernetes.io/job-completion-index",
    selector="",
    suspend=("suspend",),
    done="Complete",
    operator="Kubernetes itself",
)
MAX_TASKS = 100_000
"""Source: Kubernetes, batch/v1 JobSpec: most completions of an Indexed Job with a limit for each index."""
GONE_S = 600.0
"""How long it is waited for the pods of a deleted job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How often the job is polled."""

    pause_s: float = 2.0


def executor(job: Job) -> "IndexedJob":
    """Pods for a run of the stage."""
    return IndexedJob(job.recipe, job.work)


class IndexedJob:
    """One job for each `map`."""

    def __init__(self, recipe: Recipe, work: Path, polling: Polling | None = None) -> None:
        """Connect to nothing yet.

        Args:
            recipe: What the pods are made of.
            work: Directory that they and this process see.
            polling: How often the job is polled.
        """
        self.num_workers = recipe.clean.workers or DEFAULT_WORKERS
        self._recipe = recipe
        self._work = work
        self._polling = polling or Polling()
        self._api: JobApi | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            PreflightError: There is no cluster, or the pods would not see the directory.
        """
        check_shared_work(self._recipe, self._work)
        self._api = JobApi(INDEXED_JOB, self._recipe.cluster.namespace)
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is left: each job was deleted when it had ended."""

    def map(
        self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None] = lambda: None
    ) -> None:
        """See `Executor.map`."""
        assert self._api is not None
        for first in range(0, len(tasks), MAX_TASKS):
            self._map(function, tasks[first : first + MAX_TASKS], tick)

    def _map(self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None]) -> None:
        assert self._api is not None
        step = function.__name__.replace("_", "-")
        folder = self._work / f"tasks-{step}"
        digest = write_tasks(folder, function, tasks)
        identity = hashlib.sha256(f"{self._work} {digest}".encode()).hexdigest()[:10]
        pods = CleanPods(
            recipe=self._recipe, name=f"anadil-clean-{step}-{identity}", owners=own_pod(self._api),
            namespace=self._api.namespace, run=os.environ.get("ANADIL_RUN_ID", ""),
        )  # fmt: skip
        manifest = indexed_job(pods, str(folder), digest, len(tasks), self.num_workers)
        made = make_anew(self._api, manifest, self._polling.pause_s)
        try:
            self._follow(made, folder, tick)
        finally:
            self._api.delete(made["metadata"]["name"], made["metadata"]["uid"])

    def _follow(self, made: ApiObject, folder: Path, tick: Callable[[], None]) -> None:
        """Wait until all tasks are done.

        Raises:
            AnadilError: What a task raised, or why the pods ended.
        """
        assert self._api is not None
        name, said = made["metadata"]["name"], 0
        while True:
            job = self._api.get(name)
            if job is None or job["metadata"]["uid"] != made["metadata"]["uid"]:
                raise RetryableError(
                    f"job {name}: it was deleted by another user; run again, finished tasks are reused"
                )
            conditions = true_conditions(job)
            if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
                raise first_error(folder) or self._why(name, failed)
            done = int((job.get("status") or {}).get("succeeded") or 0)
            if done > said:
                log.info("job %s: %d of %d tasks done", name, done, job["spec"]["completions"])
                said = done
            tick()
            if "Complete" in conditions:
                return
            time.sleep(self._polling.pause_s)

    def _why(self, name: str, failed: ApiObject) -> AnadilError:
        """Why a job failed whose tasks have said nothing."""
        assert self._api is not None
        words = {
            str((status.get("state") or {}).get("terminated", {}).get("reason", ""))
            for pod in self._api.pods(name)
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
        } - {"", "Completed", "Error"}
        said = f"{failed.get('message', '')} {' '.join(sorted(words))}".strip()
        return PreflightError(
            f"job {name}: its pods fail ({said}); see `kubectl describe pods -l job-name={name}` and "
            "raise what they lack"
        )


def check_shared_work(recipe: Recipe, work: Path) -> None:
    """Make sure that pods see the directory in which tasks and their results lie.

    Raises:
        PreflightError: It is on no volume that they mount.
    """
    if not any(volume.holds(str(work)) for volume in recipe.cluster.volumes if not volume.read_only):
        raise PreflightError(
            f"clean.engine: {recipe.clean.engine}: {work} is on no volume that the pods mount; name a directory of a "
            "claim in cluster.volumes (ReadWriteMany) as cluster.work, or as storage.root"
        )


def own_pod(api: Api) -> tuple[ApiObject, ...]:
    """This pod as an owner, so that what it has made goes with it; none where we run elsewhere."""
    name = os.environ.get(POD_VARIABLE) or os.environ.get("POD_NAME")
    if not name or not api.is_in_own_namespace:
        return ()
    try:
        pod = api.pod(name)
    except AnadilError as error:
        log.warning("this pod is not known, so its end does not end its helpers: %s", error)
        return ()
    if pod is None:
        return ()
    return ({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]},)


def make_anew(api: JobApi, manifest: ApiObject, pause_s: float) -> ApiObject:
    """The object of a manifest; one that a killed driver has left is deleted first.

    What its pods have done is found by its marker, and two that do the same do each other no harm.

    Raises:
        RetryableError: The old one does not go.
    """
    deadline = time.monotonic() + GONE_S
    name = manifest["metadata"]["name"]
    while (made := api.create(manifest)) is None:
        if time.monotonic() > deadline:
            raise RetryableError(f"{name}: of an earlier run, and does not go; delete it and run again")
        api.delete(name)
        time.sleep(pause_s)
    log.info("made %s %s in namespace %s", api.kind.title, name, api.namespace)
    return made
