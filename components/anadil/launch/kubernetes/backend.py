"""The backends `pytorchjob` and `trainjob`: start, follow, inspect and stop training jobs on Kubernetes."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from anadil.artifacts import artifact
from anadil.core.errors import AnadilError, DataError, RecipeError, RetryableError, Stopped
from anadil.launch import job as jobs
from anadil.launch.kubernetes.client import ONCE, Api, JobApi, RetryPolicy
from anadil.launch.kubernetes.ledger import POD_VARIABLE, JobLedger
from anadil.launch.kubernetes.manifests import render_pytorchjob, render_trainjob
from anadil.launch.kubernetes.pod_log import PodLog
from anadil.launch.kubernetes.pods import parse_time, pending_message, queue_message
from anadil.launch.kubernetes.watcher import Pace, Watcher, find_root_cause
from anadil.runtime.signals import handle_signals
from anadil.runtime.termination import is_deterministic

log = logging.getLogger(__name__)

BEGUN = ("Running", "Succeeded", "Failed")  # Phases of a pod whose container has started.
CREATE_ATTEMPTS = 5  # Jobs of the same name that may come and go while we make ours.
CANCEL_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Added to a deadline that the operator counts from when it first sees a job: twice the time that pods have to
# start (`Pace.startup_s`).
START_UP_S = 3_600


class KubernetesBackend:
    """Jobs of one kind in one namespace."""

    def __init__(
        self, kind: str, namespace: str | None = None, *, pace: Pace | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        self._kind = jobs.JOB_KINDS[kind]
        self._namespace = namespace
        self._pace = pace or Pace()
        self._retry_policy = retry_policy

    def render(self, job: jobs.TrainingJob) -> dict[str, Any]:
        """Return the manifest; see `JobBackend.render`."""
        return render_trainjob(job) if self._kind == jobs.TRAINJOB else render_pytorchjob(job)

    def run(self, job: jobs.TrainingJob, *, detach: bool = False) -> None:
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

    def status(self, name: str) -> jobs.JobStatus:
        """Return the state of a job; see `JobBackend.status`."""
        api, job = self._job(name)
        workers = api.workers(name)
        running = sum(worker.running for worker in workers)
        state, message = self._kind.state(job, running=running), ""
        if "deletionTimestamp" in job["metadata"] and state not in jobs.FINAL:
            state, message = "stopped", "told to end; its workers save first"
        nodes = _num_nodes(job) or len(workers)
        reason, exit_code = "", None
        failed = state not in jobs.FINAL and any(worker.failures for worker in workers)
        cause = find_root_cause(api, workers, [], []) if state == "failed" or failed else None
        if cause and failed and running == nodes:
            # An earlier start ended; the job itself is running.
            message = f"runs again; before, {cause.text}"
        elif cause:
            reason, message, exit_code = cause.failure.reason, cause.text, cause.exit_code
        elif state == "queued":
            message = queue_message(job)
        elif state not in jobs.FINAL and running < nodes:
            message = pending_message(self._kind, workers, api.events(name, job["metadata"]["uid"]), nodes)
        ledger = JobLedger()
        ledger.load(self._kind, job)
        restarts = max([ledger.counter.ended, *(worker.restarts for worker in workers)])
        return jobs.JobStatus(
            name=name, state=state, reason=reason, message=message, nodes=nodes, running=running, restarts=restarts,
            seconds=_seconds(job), artifact=jobs.annotations(job).get(jobs.TARGET_ANNOTATION, ""), exit_code=exit_code,
        )  # fmt: skip

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield log lines of the first worker; see `JobBackend.logs`."""
        api, _ = self._job(name)

        def ended() -> bool:
            job = api.get(name)
            return not follow or job is None or jobs.is_final(self._kind, job)

        def pod() -> str:
            first = (each for each in api.workers(name) if each.index == 0)
            begun = (each for each in first if each.running or each.failures or each.phase in BEGUN)
            return next((each.pod for each in begun), "")

        if not follow and not pod():
            raise DataError(f"{name}: no log, worker 0 has not started; `anadil status {name}` says why")
        yield from PodLog(api, pod, retry_s=self._pace.poll_s).lines(ended)

    def stop(self, name: str) -> bool:
        """Tell the job to end; see `JobBackend.stop`."""
        api, job = self._job(name)
        ended = jobs.is_final(self._kind, job) and not _keeps(api, job)
        if not ended:
            api.delete(name, job["metadata"]["uid"])
        return not ended

    def _job(self, name: str) -> tuple[JobApi, jobs.ApiObject]:
        api = JobApi(self._kind, self._namespace, self._retry_policy)
        job = api.get(name)
        if job is None:
            where = f"namespace {api.namespace}; look with --namespace"
            raise DataError(f"{name}: no such {self._kind.title} in {where}")
        return api, job


def stop_run(
    run: str, *, kind: str, namespace: str | None = None, retry_policy: RetryPolicy | None = None
) -> list[str]:
    """End the jobs of a pipeline run that run, or have failed and keep workers; return their names."""
    api = JobApi(jobs.JOB_KINDS[kind], namespace, retry_policy)
    stopped = []
    for job in api.jobs(f"{jobs.OUR_JOBS},{jobs.RUN_LABEL}={run}"):
        if "deletionTimestamp" in job["metadata"] or (jobs.is_final(api.kind, job) and not _keeps(api, job)):
            continue
        if api.delete(job["metadata"]["name"], job["metadata"]["uid"]):
            stopped.append(job["metadata"]["name"])
    return stopped


def _keeps(api: JobApi, job: jobs.ApiObject) -> bool:
    # Those of a job that ended well may still write.
    workers = api.workers(job["metadata"]["name"]) if "Failed" in jobs.true_conditions(job) else []
    return any(worker.holds_node for worker in workers)


def _num_nodes(job: jobs.ApiObject) -> int:
    spec = job.get("spec") or {}
    if "trainer" in spec:
        return int(spec["trainer"].get("numNodes", 1))
    replicas = (spec.get("pytorchReplicaSpecs") or {}).values()
    return sum(int(each.get("replicas", 1)) for each in replicas)


def _seconds(job: jobs.ApiObject) -> float | None:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return None
    end = parse_time(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    return max(0.0, (end - parse_time(status["startTime"])).total_seconds())


def find_or_create(
    api: JobApi, manifest: jobs.ApiObject, pace: Pace, ledger: JobLedger, *, detach: bool
) -> jobs.ApiObject:
    """Return a new job of a manifest, or the one that does the same; the ledger learns who made it."""
    body = _job_body(api, manifest, ledger, detach=detach)
    name = body["metadata"]["name"]
    for _ in range(CREATE_ATTEMPTS):
        made = api.create(body)
        if made is not None:
            ledger.see(made)
            log.info("made %s %s in namespace %s", api.kind.title, name, api.namespace)
            return made
        job = api.get(name)
        if job is None:
            continue  # gone in this moment
        if "deletionTimestamp" not in job["metadata"]:
            if not _is_useless(api.kind, job, body) or _would_fail_again(api, job):
                log.info(
                    "%s is there already; %s", name, "leaving it to itself" if detach else "following it"
                )
                ledger.see(job)
                return job
            log.info("%s: of an earlier start; deleting it and starting over", name)
            api.delete(name, job["metadata"]["uid"])
        _await_gone(api, name, job["metadata"]["uid"], pace)
    raise RetryableError(
        f"{name}: other jobs of this name are created and deleted all the time; see who creates them and run again"
    )


def _job_body(api: JobApi, manifest: jobs.ApiObject, ledger: JobLedger, *, detach: bool) -> jobs.ApiObject:
    metadata = manifest["metadata"]
    added = {} if detach else ledger.signature()
    owners = [] if detach else workflow_owner(api)
    # A launcher that follows keeps the exact deadline and counts failures. The operator's limits count time before the
    # pods exist and restarts after a drain, so they only end what has lost its launcher.
    return {
        **(manifest if detach else api.kind.with_loose_limits(manifest, START_UP_S)),
        "metadata": {
            **metadata,
            "namespace": api.namespace,
            "annotations": {**(metadata.get("annotations") or {}), **added},
            **({"ownerReferences": owners} if owners else {}),
        },
    }


def workflow_owner(api: Api) -> list[jobs.ApiObject]:
    """Return the workflow as owner, so that the job goes with the run; none outside the workflow's namespace."""
    loss = "the workflow of this step is not known, so its end does not end the job"
    pod = api.own_pod(os.environ.get(POD_VARIABLE, ""), loss)
    return [
        {
            **{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")},
            "controller": False,
            "blockOwnerDeletion": False,
        }
        for owner in pod.get("metadata", {}).get("ownerReferences", [])
        if owner.get("kind") == "Workflow"
    ]


def _await_gone(api: JobApi, name: str, uid: str, pace: Pace) -> None:
    """Wait until a deleted job and its pods are gone: new pods have the names of the old."""
    deadline = time.monotonic() + pace.deletion_s
    while True:
        job = api.get(name)
        exists = job is not None and job["metadata"]["uid"] == uid
        if not exists and (job is not None or not api.pods(name)):
            return
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{name}: still not deleted after {pace.deletion_s:g} s; check its finalizers and its pods, "
                "then run the same command again"
            )
        time.sleep(min(pace.poll_s, 2.0))


def _is_useless(kind: jobs.JobKind, job: jobs.ApiObject, body: jobs.ApiObject) -> bool:
    """Return whether a job of our name has ended without its artifact."""
    name, conditions = job["metadata"]["name"], jobs.true_conditions(job)
    has_failed = "Failed" in conditions
    if jobs.annotations(job).get(jobs.SPEC_ANNOTATION) != jobs.annotations(body).get(jobs.SPEC_ANNOTATION):
        if has_failed:
            return True  # most likely a correction of what failed
        raise RecipeError(
            f"{name}: a job of this name does something else (another recipe, image or cluster); "
            f"`anadil stop {name}` ends it, or give --run another name"
        )
    target = jobs.annotations(job).get(jobs.TARGET_ANNOTATION, "")
    return has_failed or (kind.done in conditions and artifact.read_manifest(target) is None)


def _would_fail_again(api: JobApi, job: jobs.ApiObject) -> bool:
    """Return whether a pipeline's step is tried again for a failure that is in the data or the recipe."""
    name = job["metadata"]["name"]
    if jobs.labels(job).get(jobs.RUN_LABEL) == name or "Failed" not in jobs.true_conditions(job):
        return False
    # Kubeflow Pipelines tries a step again whatever its exit code was. Following the failed job once more reports the
    # failure again, and costs no workers.
    cause = find_root_cause(api, api.workers(name), [], [])
    return cause is not None and is_deterministic(cause.exit_code, cause.message)


class _Cancelled(BaseException):
    """Not an Exception, so that nobody on the way takes it for an error of theirs."""


@contextmanager
def cancel_on_signal(api: JobApi, name: str, ledger: JobLedger) -> Iterator[None]:
    """Delete the job of this name on SIGTERM and Ctrl-C, if this launcher made it."""
    received: list[int] = []
    # With connections of its own: those of `api` may be in the midst of an answer.
    apart = api.apart()

    def receive(number: int, _frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise _Cancelled

    with handle_signals(dict.fromkeys(CANCEL_SIGNALS, receive)):
        try:
            yield
        except _Cancelled:
            # A terminated pipeline gives its step about a second: Argo signals the process group, and the container
            # goes when KFP's own launcher has died. So the first thing is one DELETE.
            if _deleted(apart, name, ledger):
                text = f"{name} was told to end, and saves what it has trained; {jobs.RESUME_HINT}"
            else:
                text = f"{name} runs on, because another launcher made it; `anadil stop {name}` ends it"
            if received[0] == signal.SIGINT:
                log.info("%s", text)
                raise KeyboardInterrupt from None
            raise Stopped(f"stopped by SIGTERM; {text}") from None


def _deleted(api: JobApi, name: str, ledger: JobLedger) -> bool:
    """Delete the job; return False where it is another launcher's."""
    for retry_policy in (ONCE, api.retry_policy):
        api.retry_policy = retry_policy
        try:
            if not ledger.is_known and (job := api.get(name)):
                ledger.see(job)  # the answer to its creation may be lost, or have been that it is there
            if ledger.is_known and not ledger.is_owner:
                return False
            api.delete(name)
        except AnadilError as error:
            failed = error
        else:
            return True
    log.warning("%s cannot be deleted, run `anadil stop %s`: %s", name, name, failed)
    return True
