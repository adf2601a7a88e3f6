"""Run tasks of `clean` in pods of the run's own: an Indexed Job of Kubernetes, or a RayCluster."""

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.launch.job import ApiObject, JobKind, labels_of, true_conditions
from anadil.launch.kubernetes.client import Api, JobApi, Outage
from anadil.launch.kubernetes.ledger import POD_VARIABLE
from anadil.launch.kubernetes.manifests import POD_WORK, Container, checked_name, queue_labels, template
from anadil.launch.kubernetes.watcher import find_root_cause, report_job_failure
from anadil.recipe.cluster import Resources
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Task
from anadil.runtime.executors.task_files import first_error, write_tasks
from anadil.runtime.job import Job
from anadil.runtime.termination import DETERMINISTIC

log = logging.getLogger(__name__)

CONTAINER = "clean"
# Pods at a time where the recipe says nothing: nobody knows how many CPUs a cluster has to spare.
DEFAULT_WORKERS = 8
# Resources of one process, which limits itself to 2 GiB beside its libraries (0.4 GiB).
WORKER = Resources(cpu="1", memory="3Gi")
# Resources of the head, which runs no tasks. Measured: Ray 2.60 takes some 0.8 GiB beside the tasks.
RAY_HEAD = Resources(cpu="1", memory="4Gi")
RAY_WORKER = WORKER.model_copy(update={"memory": "4Gi"})  # With Ray's own helpers and its shared memory.
RETRIES = 5  # Times that a pod is tried again which was killed; a record that kills its process costs none.
KEPT_S = 3_600  # How long a job that has ended stays where its driver is gone.
RAY_VERSION = "2.60.0"  # Version in the image; KubeRay asks for it.
# Not that of its page, which would let anybody who reaches it run code; see it with `kubectl port-forward`.
RAY_PORTS = (("gcs-server", 6379), ("client", 10_001))
# URL that KubeRay's own probes read with wget, which the image lacks.
RAY_HEALTH = "http://localhost:52365/api/local_raylet_healthz"
RAY_MEMORY_BYTES = 200 * 1024**2  # Ray's store of objects: texts do not go through it.
INDEXED_JOB = JobKind(
    name="job", title="Job", group="batch", version="v1", plural="jobs", container=CONTAINER,
    job_label="batch.kubernetes.io/job-name", index_label="batch.kubernetes.io/job-completion-index", selector="",
    suspend=("suspend",), done="Complete", operator="Kubernetes itself",
)  # fmt: skip
# Source: Kubernetes, batch/v1 JobSpec: most completions of an Indexed Job with a limit for each index.
MAX_TASKS = 100_000
RUN_AGAIN = "run the same command again: tasks that are done are reused"
GONE_S = 600.0  # How long the pods of a deleted job may take to go.
RAYCLUSTER = JobKind(
    name="raycluster", title="RayCluster", group="ray.io", version="v1", plural="rayclusters",
    container="ray-worker", job_label="ray.io/cluster", index_label="ray.io/group",
    selector=",ray.io/node-type=worker", suspend=("suspend",), done="Ready",
    operator="the KubeRay operator 1.1 or newer; look for it with `kubectl get deployments -A | grep kuberay`",
)  # fmt: skip
CLIENT_PORT = 10_001
START_S = 1_800.0  # How long pods may take to start: nodes are bought and images pulled.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPods:
    """Facts of one run that its manifests hold."""

    recipe: Recipe
    name: str
    run: str = ""
    owners: tuple[dict[str, Any], ...] = ()  # With whose end the pods end.
    namespace: str | None = None
    token: str = ""  # Token of a Ray cluster. Without one, anybody who reaches the cluster can run code.

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the job or the cluster."""
        return {
            "name": checked_name(self.name),
            **({"namespace": self.namespace} if self.namespace else {}),
            "labels": self.labels | queue_labels(self.recipe.cluster),
            **({"ownerReferences": list(self.owners)} if self.owners else {}),
        }

    @property
    def labels(self) -> dict[str, str]:
        """Labels of everything that belongs to the run."""
        return labels_of("clean", self.name, self.run, "anadil-clean")

    def template(self, container: Container, asked: Resources) -> dict[str, Any]:
        """Return a pod template."""
        return template(
            container, self.recipe.cluster, self.labels, machine=None, devices=0, nodes=1, asked=asked,
            key="cluster.resources.clean",
        )  # fmt: skip

    def container(self, command: tuple[str, ...] = (), arguments: tuple[str, ...] = ()) -> Container:
        """Return a container in the image of the stage."""
        cluster = self.recipe.cluster
        environment = {"ANADIL_LOG": "json", "ANADIL_WORK": cluster.work or POD_WORK}
        return Container(
            name=CONTAINER, image=self.recipe.image_of("clean"), command=command, arguments=arguments,
            environment=environment,
        )  # fmt: skip


def indexed_job(pods: CleanPods, folder: str, digest: str, num_tasks: int, workers: int) -> dict[str, Any]:
    """Return a job of one pod for each task of a folder, whose list has this digest; `workers` run at a time."""
    # Source: Kubernetes, "Indexed Job", "Backoff limit per index" (from 1.29 on), "Pod failure policy".
    container = pods.container(("python", "-m", "anadil.runtime.executors.task_files"), (folder, digest))
    pod = pods.template(container, WORKER)
    pod["spec"]["restartPolicy"] = "Never"  # which a limit for each index asks for
    stop = {"containerName": CONTAINER, "operator": "In", "values": sorted(DETERMINISTIC)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": num_tasks,
            "parallelism": min(workers, num_tasks),
            "backoffLimitPerIndex": RETRIES,
            "maxFailedIndexes": 0,
            "ttlSecondsAfterFinished": KEPT_S,
            "podFailurePolicy": {
                "rules": [
                    # An eviction or a lost node costs no retry; an error that would come again ends the job at once.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": stop},
                ]
            },
            "template": pod,
        },
    }


def ray_cluster(pods: CleanPods, workers: int) -> dict[str, Any]:
    """Return a cluster of the KubeRay operator: a head that runs no tasks, and a pod for each of the workers."""
    # Source: KubeRay 1.1 and newer, apis/ray/v1; the operator writes `ray start` into the containers.
    plain = pods.container()
    if pods.token:
        plain.environment.update(ray_authentication(pods.token))
    head, worker = replace(plain, name="ray-head", ports=RAY_PORTS), replace(plain, name="ray-worker")
    common = {"object-store-memory": str(RAY_MEMORY_BYTES), "disable-usage-stats": "true"}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": pods.metadata,
        "spec": {
            "rayVersion": RAY_VERSION,
            "enableInTreeAutoscaling": False,
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "127.0.0.1", **common},
                "template": _ray_pod(pods, head, RAY_HEAD),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": workers,
                    "minReplicas": workers,
                    "maxReplicas": workers,
                    "rayStartParams": {"num-cpus": "1", **common},
                    "template": _ray_pod(pods, worker, RAY_WORKER),
                }
            ],
        },
    }


def ray_authentication(token: str) -> dict[str, str]:
    """Return the environment of each member of a cluster of Ray. Source: Ray 2.60, "Token authentication"."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def _ray_pod(pods: CleanPods, container: Container, asked: Resources) -> dict[str, Any]:
    pod = pods.template(container, asked)
    [only] = pod["spec"]["containers"]
    del only["args"]  # the operator's
    asks = f"import urllib.request; urllib.request.urlopen({RAY_HEALTH!r}, timeout=4)"
    probe = {"exec": {"command": ["python", "-c", asks]}, "periodSeconds": 10, "timeoutSeconds": 5}
    only["readinessProbe"] = probe | {"failureThreshold": 10}
    only["livenessProbe"] = probe | {"initialDelaySeconds": 60, "failureThreshold": 30}
    return pod


class IndexedJob:
    """The executor `job`: one Indexed Job for each `map`, followed and deleted by the process that drives it."""

    def __init__(self, recipe: Recipe, work: Path, pause_s: float = 2.0) -> None:
        """Prepare for a directory of work that pods and this process see; `pause_s` is between two looks at a job."""
        self.num_workers = recipe.clean.workers or DEFAULT_WORKERS
        self._recipe, self._work, self._pause_s = recipe, work, pause_s

    def __enter__(self) -> Self:
        check_shared_work(self._recipe, self._work)
        self._api = JobApi(INDEXED_JOB, self._recipe.cluster.namespace)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing but a job that failed, which Kubernetes deletes after an hour."""

    def map(
        self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None] = lambda: None
    ) -> None:
        """Run the tasks in pods; see `Executor.map`."""
        for first in range(0, len(tasks), MAX_TASKS):
            self._map(function, tasks[first : first + MAX_TASKS], tick)

    def _map(self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None]) -> None:
        step = function.__name__.replace("_", "-")
        folder = self._work / f"tasks-{step}"
        digest = write_tasks(folder, function, tasks)
        identity = hashlib.sha256(f"{self._work} {digest}".encode()).hexdigest()[:10]
        pods = CleanPods(
            recipe=self._recipe, name=f"anadil-clean-{step}-{identity}", owners=own_pod(self._api),
            namespace=self._api.namespace, run=os.environ.get("ANADIL_RUN_ID", ""),
        )  # fmt: skip
        manifest = indexed_job(pods, str(folder), digest, len(tasks), self.num_workers)
        made = make_anew(self._api, manifest, self._pause_s)
        try:
            error = self._follow(made, folder, tick)
        except BaseException:
            delete_quietly(self._api, made)
            raise
        if error:  # Kubernetes has ended its pods; the job stays for its hour, to be looked at
            raise error
        delete_quietly(self._api, made)

    def _follow(self, made: ApiObject, folder: Path, tick: Callable[[], None]) -> AnadilError | None:
        """Wait until all tasks are done; return the error of a task, or why the pods ended, if the job failed."""
        name, num_logged = made["metadata"]["name"], 0
        for job in poll(self._api, name, f"job {name}", self._pause_s, tick):
            if job is None or job["metadata"]["uid"] != made["metadata"]["uid"]:
                raise RetryableError(f"job {name}: it was deleted by another user; {RUN_AGAIN}")
            conditions = true_conditions(job)
            if "Failed" in conditions or "FailureTarget" in conditions:
                return first_error(folder) or self._why(job)
            done = int((job.get("status") or {}).get("succeeded") or 0)
            if done > num_logged:
                log.info("job %s: %d of %d tasks done", name, done, job["spec"]["completions"])
                num_logged = done
            if "Complete" in conditions:
                tick()  # of the shards that ended since the last look
                break
        return None

    def _why(self, job: ApiObject) -> AnadilError:
        """Return why a job failed whose tasks have written no error: the last words of the pod that failed first."""
        name = job["metadata"]["name"]
        try:
            workers = self._api.workers(name)
        except AnadilError as error:
            log.warning("pods of job %s cannot be read: %s", name, error)
            workers = []
        return report_job_failure(self._api, job, find_root_cause(self._api, workers, (), ()), workers)


def check_shared_work(recipe: Recipe, work: Path) -> None:
    """Refuse a directory of tasks and results that no volume of the pods holds."""
    if not any(volume.holds(str(work)) for volume in recipe.cluster.volumes if not volume.read_only):
        raise PreflightError(
            f"clean.engine: {recipe.clean.engine}: {work} is on no volume that the pods mount; name a directory of a "
            "claim in cluster.volumes (ReadWriteMany) as cluster.work, or as storage.root"
        )


def delete_quietly(api: JobApi, made: ApiObject) -> None:
    """Delete an object; where that fails, log it, as the error before matters more and the next run deletes it."""
    name = made["metadata"]["name"]
    try:
        api.delete(name, made["metadata"]["uid"])
    except AnadilError as error:
        log.warning(
            "%s cannot be deleted (%s); the next run deletes it, or: kubectl delete %s %s -n %s",
            name, error, api.kind.name, name, api.namespace,
        )  # fmt: skip


def poll(
    api: JobApi, name: str, what: str, pause_s: float, tick: Callable[[], None] = lambda: None
) -> Iterator[ApiObject | None]:
    """Yield an object that this process has just made, again and again; bear an API that does not answer."""
    outage = Outage()
    outage.end()
    while True:
        tick()
        try:
            job = api.get(name)
        except (RetryableError, PreflightError) as error:
            outage.bear(what, error, RUN_AGAIN)
        else:
            outage.end()
            yield job
        time.sleep(pause_s)


def own_pod(api: Api) -> tuple[ApiObject, ...]:
    """Return this pod as an owner, so that what it has made goes with it; nothing where we run elsewhere."""
    name = os.environ.get(POD_VARIABLE) or os.environ.get("POD_NAME", "")
    pod = api.own_pod(name, "this pod is not known, so its end does not end its helpers")
    return ({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]},) if pod else ()


def make_anew(api: JobApi, manifest: ApiObject, pause_s: float) -> ApiObject:
    """Create the object of a manifest; one that a killed driver has left is deleted first."""
    # Finished work of the old pods has its marker, and two that do the same do each other no harm.
    deadline, outage = time.monotonic() + GONE_S, Outage()
    name, made = manifest["metadata"]["name"], None
    while made is None:
        try:
            if (made := api.create(manifest)) is None and time.monotonic() <= deadline:
                api.delete(name)
        except RetryableError as error:
            # Hours of shards may be done by now: an API that restarts ends them no more here than while they run.
            outage.bear(f"{api.kind.title} {name}", error, RUN_AGAIN, "waits to be made")
            deadline = time.monotonic() + GONE_S
        else:
            outage.end()
            if made is None and time.monotonic() > deadline:
                raise RetryableError(f"{name}: of an earlier run, and does not go; delete it and run again")
        if made is None:
            time.sleep(pause_s)
    log.info("made %s %s in namespace %s", api.kind.title, name, api.namespace)
    return made


class RayCluster:
    """Context manager that gives the address of a cluster of its own."""

    def __init__(self, job: Job, pause_s: float = 2.0) -> None:
        self._job, self._pause_s = job, pause_s
        self._made: tuple[JobApi, ApiObject] | None = None

    def __enter__(self) -> str:
        recipe, work = self._job.recipe, self._job.work
        check_shared_work(recipe, work)
        api = JobApi(RAYCLUSTER, recipe.cluster.namespace)
        name = f"anadil-clean-{hashlib.sha256(str(work).encode()).hexdigest()[:10]}"
        token = secrets.token_hex(32)
        os.environ.update(ray_authentication(token))
        pods = CleanPods(
            recipe=recipe, name=name, token=token, owners=own_pod(api), namespace=api.namespace,
            run=os.environ.get("ANADIL_RUN_ID", ""),
        )  # fmt: skip
        manifest = ray_cluster(pods, recipe.clean.workers or DEFAULT_WORKERS)
        self._made = api, make_anew(api, manifest, self._pause_s)
        try:
            return self._address(api, name)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *error: object) -> None:
        if self._made:
            delete_quietly(*self._made)
            self._made = None

    def _address(self, api: JobApi, name: str) -> str:
        deadline = time.monotonic() + START_S
        for cluster in poll(api, name, f"RayCluster {name}", self._pause_s):
            status = (cluster or {}).get("status") or {}
            # A worker is ready when it has joined the head.
            if int(status.get("readyWorkerReplicas") or status.get("availableWorkerReplicas") or 0):
                service = (status.get("head") or {}).get("serviceName") or f"{name}-head-svc"
                return f"ray://{service}.{api.namespace}.svc:{CLIENT_PORT}"
            if time.monotonic() > deadline:
                reason = status.get("reason") or status.get("state") or "no status"
                raise PreflightError(
                    f"RayCluster {name}: no worker within {START_S / 60:.0f} minutes ({reason}); see "
                    f"`kubectl describe raycluster {name}` and its pods"
                )
        raise AssertionError("a poll does not end")
