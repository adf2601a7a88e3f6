"""A Kubernetes API over HTTP for tests, with a small training operator and a kubelet that tests play.

Answers, statuses and messages are those of an API server; the operator's conditions those of
kubeflow/trainer v1.9.4, pkg/util/status.go. Only what the launcher asks for is there.
"""

import itertools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.kit.fake_objects import (
    NAMESPACE,
    end,
    fits,
    life,
    merge,
    new_pod,
    now,
    number,
    remove_condition,
    set_condition,
)
from tests.kit.fake_server import refused
from tests.kit.http_server import Reply

JOBS = re.compile(
    r"/apis/(?P<group>[\w.]+)/(?P<version>\w+)/namespaces/(?P<ns>[\w-]+)/(?P<plural>\w+)(/(?P<name>[\w.-]+))?"
)
CORE = re.compile(r"/api/v1/namespaces/(?P<ns>[\w-]+)/(?P<plural>pods|events)(/(?P<name>[\w.-]+))?")
KINDS = {"pytorchjobs": "kubeflow.org", "trainjobs": "trainer.kubeflow.org"}
CONTAINER = "pytorch"
WAIT_S = 20.0


@dataclass(slots=True)
class Fault:
    """What happens to the next requests that fit, instead of an answer."""

    method: str
    pattern: str
    times: int
    reply: Reply | None = None  # None: the connection is cut without a word.
    after: bool = False  # True: the request is carried out, and only its answer is lost.


@dataclass(slots=True)
class LogCut:
    """The next reading of a log breaks off."""

    after_bytes: int = 1_000_000
    before: str = "\0"  # Or before a line with this text.


@dataclass(slots=True)
class Cluster:
    """One namespace, its jobs and pods; every method is what an operator, a kubelet or a person does."""

    crds: set[str] = field(default_factory=lambda: {"pytorchjobs"})
    has_operator: bool = True
    deletion_s: float = 0.0  # Time that pods take to end.
    denied: set[tuple[str, str]] = field(default_factory=set)
    """Verb and resource that the asking account may not."""
    namespaces: set[str] = field(default_factory=lambda: {NAMESPACE})
    validate: Callable[[dict[str, Any]], list[str]] = lambda manifest: []
    changed: threading.Condition = field(default_factory=threading.Condition)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Pod's uid and start of its container -> lines."""
    faults: list[Fault] = field(default_factory=list)
    cuts: list[LogCut] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    made: int = 0  # Jobs that were ever created.
    _clock: Iterator[int] = field(default_factory=itertools.count)

    # Calls of tests

    def fail_next(
        self, method: str, pattern: str, times: int, reply: Reply | None, *, after: bool = False
    ) -> None:
        self.faults.append(Fault(method, pattern, times, reply, after))

    def job(self) -> dict[str, Any]:
        """The one job, once it is there."""
        found: dict[str, Any] = self.wait(lambda: next(iter(self.jobs.values()), None))
        return found

    def start(self) -> None:
        """Both machines of the job run, once it is there."""
        self.job()
        self.run(0, 1)

    def wait(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_S
        with self.changed:
            while not (value := found()):
                assert self.changed.wait(deadline - time.monotonic()), "waited in vain"
            return value

    def asked(self, method: str, pattern: str) -> int:
        return sum(one == method and re.search(pattern, path) is not None for one, path in self.requests)

    def await_requests(self, method: str, pattern: str, more: int = 1) -> None:
        """Until the launcher has looked so many times more."""
        before = self.asked(method, pattern)
        self.wait(lambda: self.asked(method, pattern) >= before + more)

    def run(self, *indices: int) -> None:
        """The kubelets start containers."""
        for index in indices:
            with self.edit(index) as (pod, container):
                pod["status"]["phase"] = "Running"
                container["state"] = {"running": {"startedAt": now()}}

    def log(self, index: int, *lines: str) -> None:
        with self.changed:
            written = self.logs.setdefault(life(self.pod(index)), [])
            for line in lines:
                # Nanoseconds that no clock repeats.
                written.append((time.time() + next(self._clock) * 1e-6, line))
            self.changed.notify_all()

    def crash(self, index: int, code: int, message: str = "", reason: str = "Error") -> None:
        with self.edit(index) as (pod, container):
            ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": now()}
            container["state"] = {"terminated": ended}
            if job_of(self, pod)["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never":
                pod["status"]["phase"] = "Failed"

    def back_off(self, index: int) -> None:
        """The kubelet waits before it starts a container again; the number of restarts is still the old one."""
        with self.edit(index) as (_, container):
            container["lastState"] = container["state"]
            container["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}

    def restart(self, index: int) -> None:
        """The kubelet starts a container again, in place."""
        with self.edit(index) as (_, container):
            if "terminated" in container["state"]:
                container["lastState"] = container["state"]
            container["state"] = {"running": {"startedAt": now()}}
            container["restartCount"] += 1

    def succeed(self, index: int) -> None:
        with self.edit(index) as (pod, container):
            pod["status"]["phase"] = "Succeeded"
            container["state"] = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now()}}

    def evict(self, index: int, reason: str = "Evicted") -> None:
        with self.edit(index) as (pod, _):
            pod["status"] |= {"phase": "Failed", "reason": reason, "message": "The node was low on memory."}

    def drain(self, index: int) -> None:
        """A node is emptied: the pod is marked, told to end, and saves."""
        with self.edit(index) as (pod, container):
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            pod["status"]["conditions"] = [condition]
            pod["metadata"]["deletionTimestamp"] = now()
            ended = {"exitCode": 143, "reason": "Error", "message": "", "finishedAt": now()}
            container["state"] = {"terminated": ended}

    def replace(self, index: int) -> None:
        """A controller makes a pod again."""
        with self.changed:
            old = self.pod(index)
            self._make_pod(job_of(self, old), index)
            self._reconcile()

    def keep_waiting(self, index: int, reason: str, message: str) -> None:
        with self.edit(index) as (_, container):
            container["state"] = {"waiting": {"reason": reason, "message": message}}

    def unschedulable(self, index: int, message: str) -> None:
        with self.edit(index) as (pod, _):
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [condition | {"message": message}]

    def say(self, about: str, reason: str, message: str, kind: str = "Warning", uid: str = "") -> None:
        """An event of the object that has the name now, or of one that had it before."""
        with self.changed:
            event = {"type": kind, "reason": reason, "message": message, "lastTimestamp": now()}
            there = self.jobs.get(about) or self.pods.get(about) or {"metadata": {"uid": "gone"}}
            involved = {"name": about, "uid": uid or there["metadata"]["uid"]}
            self.events.append({**event, "involvedObject": involved})

    def fail(self) -> None:
        """The operator has counted too many restarts; since 1.9.4 it leaves the pods."""
        with self.changed:
            status = next(iter(self.jobs.values()))["status"]
            end(status, "Failed", "PyTorchJob has reached the backoff limit")

    def suspend(self, *, yes: bool) -> None:
        """Kueue takes or admits the job."""
        with self.changed:
            next(iter(self.jobs.values()))["spec"]["runPolicy"]["suspend"] = yes
            self._reconcile()

    def vanish(self) -> None:
        """Somebody deletes everything at once."""
        with self.changed:
            self.jobs.clear()
            self.pods.clear()
            self.changed.notify_all()

    def pod(self, index: int) -> dict[str, Any]:
        return next(pod for pod in self.pods.values() if number(pod) == index)

    @contextmanager
    def edit(self, index: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """A pod and its container, looked at by the operator afterwards."""
        with self.changed:
            pod = self.pod(index)
            yield pod, pod["status"]["containerStatuses"][0]
            self._reconcile()

    # The API server's part

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        with self.changed:
            self.requests.append((method, path))
            self.changed.notify_all()
            faults = (each for each in self.faults if each.times and each.method == method)
            if fault := next((each for each in faults if re.search(each.pattern, path)), None):
                fault.times -= 1
                if fault.after:
                    self._answer(method, path, query, body)
                return fault.reply or Reply(status=0)
            return self._answer(method, path, query, body)

    def _answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        if found := CORE.fullmatch(path):
            return self._core(found["plural"], found["name"] or "", query)
        found = JOBS.fullmatch(path)
        if not found:
            return Reply(status=404, text="404 page not found\n")
        reading = "get" if found["name"] else "list"
        verb = {"GET": reading, "POST": "create", "DELETE": "delete", "PATCH": "patch"}[method]
        # Rights first: whoever may not look is not told that there is no such kind.
        if problem := self._forbidden(verb, found["plural"]):
            return problem
        if found["plural"] not in self.crds or KINDS[found["plural"]] != found["group"]:
            return Reply(status=404, text="404 page not found\n")
        if method == "POST":
            return self._create(found["plural"], found["ns"], body)
        if not found["name"]:
            listed = [job for job in self.jobs.values() if fits(job, query, found["plural"])]
            return Reply(body={"items": listed})
        job = self.jobs.get(found["name"])
        if job is None or job["plural"] != found["plural"]:
            about = {"name": found["name"], "group": found["group"], "kind": found["plural"]}
            return refused(404, f'{found["plural"]}.{found["group"]} "{found["name"]}" not found', about)
        if method == "DELETE":
            return self._delete(job, body)
        if method == "PATCH":
            if body.get("metadata", {}).pop("uid", job["metadata"]["uid"]) != job["metadata"]["uid"]:
                return refused(409, "the UID in the precondition does not match")
            merge(job, body)
            self._reconcile()
        return Reply(body=job)

    def _forbidden(self, verb: str, resource: str) -> Reply | None:
        if (verb, resource) not in self.denied:
            return None
        user = "system:serviceaccount:team:launcher"
        return refused(
            403, f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group'
        )

    def _core(self, plural: str, pod: str, query: dict[str, str]) -> Reply:
        if problem := self._forbidden("get" if pod else "list", plural):
            return problem
        if pod:
            about = {"name": pod, "kind": "pods"}
            return Reply(body=self.pods[pod]) if pod in self.pods else refused(404, "not found", about)
        if plural == "pods":
            return Reply(body={"items": [pod for pod in self.pods.values() if fits(pod, query)]})
        selected = dict(each.split("=", 1) for each in query.get("fieldSelector", "").split(","))
        found = [
            event
            for event in self.events
            if all(
                event["involvedObject"].get(key.rpartition(".")[2]) == value
                for key, value in selected.items()
            )
        ]
        return Reply(body={"items": found})

    def _create(self, plural: str, namespace: str, body: dict[str, Any]) -> Reply:
        name = body["metadata"]["name"]
        if namespace not in self.namespaces:
            return refused(
                404, f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        if name in self.jobs:
            about = {"name": name, "kind": plural}
            return refused(409, f'{plural}.{KINDS[plural]} "{name}" already exists', about)
        if mistakes := self.validate(body):
            return refused(422, f"{name} is invalid: {mistakes[0]}")
        job = json.loads(json.dumps(body))
        job["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        self.jobs[name] = job | {"plural": plural}
        self.made += 1
        self._reconcile()
        return Reply(status=201, body=self.jobs[name])

    def _delete(self, job: dict[str, Any], options: dict[str, Any]) -> Reply:
        if options.get("preconditions", {}).get("uid", job["metadata"]["uid"]) != job["metadata"]["uid"]:
            return refused(409, "the UID in the precondition does not match")
        assert options["propagationPolicy"] == "Foreground"
        job["metadata"] |= {"deletionTimestamp": now(), "finalizers": ["foregroundDeletion"]}
        for pod in self._pods_of(job):
            pod["metadata"]["deletionTimestamp"] = now()
        threading.Timer(self.deletion_s, self._collect, [job]).start()
        return Reply(body=job)

    def _collect(self, job: dict[str, Any]) -> None:
        with self.changed:
            for pod in self._pods_of(job):
                del self.pods[pod["metadata"]["name"]]
            self.jobs.pop(job["metadata"]["name"], None)
            self.changed.notify_all()

    # The operator's part

    def _reconcile(self) -> None:
        for job in self.jobs.values():
            if (
                self.has_operator
                and job["plural"] == "pytorchjobs"
                and "deletionTimestamp" not in job["metadata"]
            ):
                self._reconcile_job(job)
        self.changed.notify_all()

    def _reconcile_job(self, job: dict[str, Any]) -> None:
        status = job.setdefault("status", {})
        set_condition(status, "Created", "True")
        true = {each["type"] for each in status["conditions"] if each["status"] == "True"}
        if {"Failed", "Succeeded"} & true:
            return  # frozen
        worker, policy = job["spec"]["pytorchReplicaSpecs"]["Worker"], job["spec"]["runPolicy"]
        if policy.get("suspend"):
            for pod in self._pods_of(job):
                del self.pods[pod["metadata"]["name"]]
            set_condition(status, "Running", "False")
            set_condition(status, "Suspended", "True")
            status.pop("startTime", None)
            return
        set_condition(status, "Suspended", "False")
        status.setdefault("startTime", now())
        for index in set(range(worker["replicas"])) - {number(pod) for pod in self._pods_of(job)}:
            self._make_pod(job, index)
        states = [pod["status"] for pod in self._pods_of(job)]
        phases = [state["phase"] for state in states]
        restarts = sum(state["containerStatuses"][0]["restartCount"] for state in states)
        if "Failed" in phases and worker["restartPolicy"] == "Never":
            end(status, "Failed", "PyTorchJob is failed because 1 Worker replica(s) failed.")
        elif policy.get("backoffLimit") and restarts >= policy["backoffLimit"]:
            end(status, "Failed", "PyTorchJob has failed because it has reached the specified backoff limit")
        elif "Succeeded" in phases:  # elastic: any worker
            end(status, "Succeeded", "PyTorchJob is successfully completed.")
        elif "Failed" in phases:
            set_condition(status, "Restarting", "True")
            remove_condition(status, "Running")
        elif "Running" in phases:
            set_condition(status, "Running", "True")
            remove_condition(status, "Restarting")

    def _pods_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        name = job["metadata"]["name"]
        return [
            p for p in self.pods.values() if p["metadata"]["labels"]["training.kubeflow.org/job-name"] == name
        ]

    def _make_pod(self, job: dict[str, Any], index: int) -> None:
        pod = new_pod(job["metadata"]["name"], index, CONTAINER)
        self.pods[pod["metadata"]["name"]] = pod


def job_of(cluster: Cluster, pod: dict[str, Any]) -> dict[str, Any]:
    return cluster.jobs[pod["metadata"]["labels"]["training.kubeflow.org/job-name"]]
