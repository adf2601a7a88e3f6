"""The backends `pytorchjob` and `trainjob`: start, follow, inspect and stop training jobs on Kubernetes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from anadil.core.errors import DataError
from anadil.launch.backend import FINAL, JobStatus
from anadil.launch.job import OUR_JOBS, RUN_LABEL, TARGET_ANNOTATION, TrainingJob
from anadil.launch.kinds import JOB_KINDS, TRAINJOB, ApiObject, annotations, is_final, true_conditions
from anadil.launch.kubernetes.client import JobApi, RetryPolicy
from anadil.launch.kubernetes.create import cancel_on_signal, find_or_create
from anadil.launch.kubernetes.ledger import JobLedger
from anadil.launch.kubernetes.pod_log import PodLog
from anadil.launch.kubernetes.pods import parse_time, pending_message, queue_message
from anadil.launch.kubernetes.watcher import Pace, Watcher, find_root_cause
from anadil.launch.manifests.training_jobs import render_pytorchjob, render_trainjob

BEGUN = ("Running", "Succeeded", "Failed")  # Phases of a pod whose container has started.


class KubernetesBackend:
    """Jobs of one kind in one namespace."""

    def __init__(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        pace: Pace | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """Prepare for a kind, `pytorchjob` or `trainjob`; without a namespace, in that of the pod or kubeconfig."""
        self._kind = JOB_KINDS[kind]
        self._namespace = namespace
        self._pace = pace or Pace()
        self._retry_policy = retry_policy

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Return the manifest; see `JobBackend.render`."""
        return render_trainjob(job) if self._kind == TRAINJOB else render_pytorchjob(job)

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Start or adopt the job and follow it; see `JobBackend.run`."""
        manifest = self.render(job)
        api = JobApi(self._kind, self._namespace or job.recipe.cluster.namespace, self._retry_policy)
        ledger = JobLedger()
        if detach:
            find_or_create(api, manifest, self._pace, ledger, detach=True)
            return
        with cancel_on_signal(api, manifest["metadata"]["name"], ledger):
            result = find_or_create(api, manifest, self._pace, ledger, detach=False)
            Watcher(api, result, job, self._pace, ledger).follow()

    def status(self, name: str) -> JobStatus:
        """Return the state of a job; see `JobBackend.status`."""
        api, job = self._job(name)
        workers = api.workers(name)
        running = sum(worker.running for worker in workers)
        state, message = self._kind.state(job, running=running), ""
        if "deletionTimestamp" in job["metadata"] and state not in FINAL:
            state, message = "stopped", "told to end; its workers save first"
        nodes = _num_nodes(job) or len(workers)
        reason, exit_code = "", None
        failed = state not in FINAL and any(worker.failures for worker in workers)
        cause = find_root_cause(api, workers, [], []) if state == "failed" or failed else None
        if cause and failed and running == nodes:
            # An earlier start ended; the job itself is running.
            message = f"runs again; before, {cause.text}"
        elif cause:
            reason, message, exit_code = cause.failure.reason, cause.text, cause.exit_code
        elif state == "queued":
            message = queue_message(job)
        elif state not in FINAL and running < nodes:
            message = pending_message(self._kind, workers, api.events(name, job["metadata"]["uid"]), nodes)
        ledger = JobLedger()
        ledger.load(self._kind, job)
        restarts = max([ledger.counter.ended, *(worker.restarts for worker in workers)])
        return JobStatus(
            name=name, state=state, reason=reason, message=message, nodes=nodes, running=running, restarts=restarts,
            seconds=_seconds(job), artifact=annotations(job).get(TARGET_ANNOTATION, ""), exit_code=exit_code,
        )  # fmt: skip

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield log lines of the first worker; see `JobBackend.logs`."""
        api, _ = self._job(name)

        def ended() -> bool:
            job = api.get(name)
            return not follow or job is None or is_final(self._kind, job)

        def pod() -> str:
            first = (each for each in api.workers(name) if each.index == 0)
            return next(
                (each.pod for each in first if each.running or each.failures or each.phase in BEGUN), ""
            )

        if not follow and not pod():
            raise DataError(f"{name}: no log, worker 0 has not started; `anadil status {name}` says why")
        yield from PodLog(api, pod, retry_s=self._pace.poll_s).lines(ended)

    def stop(self, name: str) -> bool:
        """Tell the job to end; see `JobBackend.stop`."""
        api, job = self._job(name)
        ended = is_final(self._kind, job) and not _keeps(api, job)
        if not ended:
            api.delete(name, job["metadata"]["uid"])
        return not ended

    def _job(self, name: str) -> tuple[JobApi, ApiObject]:
        api = JobApi(self._kind, self._namespace, self._retry_policy)
        job = api.get(name)
        if job is None:
            raise DataError(
                f"{name}: no such {self._kind.title} in namespace {api.namespace}; look with --namespace"
            )
        return api, job


def stop_run(
    run: str, *, kind: str, namespace: str | None = None, retry_policy: RetryPolicy | None = None
) -> list[str]:
    """End the jobs of a pipeline run that run, or have failed and keep workers; return their names."""
    api = JobApi(JOB_KINDS[kind], namespace, retry_policy)
    stopped = []
    for job in api.jobs(f"{OUR_JOBS},{RUN_LABEL}={run}"):
        if "deletionTimestamp" in job["metadata"] or (is_final(api.kind, job) and not _keeps(api, job)):
            continue
        if api.delete(job["metadata"]["name"], job["metadata"]["uid"]):
            stopped.append(job["metadata"]["name"])
    return stopped


def _keeps(api: JobApi, job: ApiObject) -> bool:
    # Those of a job that ended well may still write.
    workers = api.workers(job["metadata"]["name"]) if "Failed" in true_conditions(job) else []
    return any(worker.holds_node for worker in workers)


def _num_nodes(job: ApiObject) -> int:
    spec = job.get("spec") or {}
    if "trainer" in spec:
        return int(spec["trainer"].get("numNodes", 1))
    replicas = (spec.get("pytorchReplicaSpecs") or {}).values()
    return sum(int(each.get("replicas", 1)) for each in replicas)


def _seconds(job: ApiObject) -> float | None:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return None
    end = parse_time(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    return max(0.0, (end - parse_time(status["startTime"])).total_seconds())
