"""Render the pods that clean side by side: an Indexed Job of Kubernetes, or a cluster of KubeRay.

A pod of either runs one process, in the image of the stage, and sees the directory of `cluster.work`.
"""

from dataclasses import dataclass, replace
from typing import Any

from anadil.launch.job import labels_of
from anadil.launch.manifests.pod import POD_WORK, Container, checked_name, queue_labels, template
from anadil.recipe.cluster import Resources
from anadil.recipe.sections import Recipe
from anadil.runtime.termination import DETERMINISTIC

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
    """Return a job of one pod for each task of a folder, whose list has this digest; `workers` run at a time.

    Source: Kubernetes, "Indexed Job", "Backoff limit per index" (in every cluster from 1.29 on) and
    "Pod failure policy".
    """
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
    """Return a cluster of the KubeRay operator: a head that runs no tasks, and a pod for each of the workers.

    Source: KubeRay 1.1 and newer, apis/ray/v1; the operator writes `ray start` into the containers.
    """
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
