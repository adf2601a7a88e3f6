"""Make a RayCluster for one run of `clean`, and delete it with the run."""

import hashlib
import logging
import os
import secrets
import time

from anadil.core.errors import PreflightError
from anadil.launch.kinds import ApiObject, JobKind
from anadil.launch.kubernetes.api.client import JobApi
from anadil.launch.kubernetes.executors.indexed_job import (
    check_shared_work,
    delete_quietly,
    make_anew,
    own_pod,
    poll,
)
from anadil.launch.manifests.clean_pods import DEFAULT_WORKERS, CleanPods, ray_authentication, ray_cluster
from anadil.runtime.job import Job

log = logging.getLogger(__name__)

RAYCLUSTER = JobKind(
    name="raycluster", title="RayCluster", group="ray.io", version="v1", plural="rayclusters",
    container="ray-worker", job_label="ray.io/cluster", index_label="ray.io/group",
    selector=",ray.io/node-type=worker", suspend=("suspend",), done="Ready",
    operator="the KubeRay operator 1.1 or newer; look for it with `kubectl get deployments -A | grep kuberay`",
)  # fmt: skip
CLIENT_PORT = 10_001
START_S = 1_800.0  # How long pods may take to start: nodes are bought and images pulled.


class RayCluster:
    """Context manager that gives the address of a cluster of its own."""

    def __init__(self, job: Job, pause_s: float = 2.0) -> None:
        """Prepare a cluster for a run of the stage, with `pause_s` between two looks at it."""
        self._job = job
        self._pause_s = pause_s
        self._made: tuple[JobApi, ApiObject] | None = None

    def __enter__(self) -> str:
        """Make it and wait for its head and one worker.

        Raises:
            PreflightError: It does not come, or its pods would not see the directory of the run.
        """
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
