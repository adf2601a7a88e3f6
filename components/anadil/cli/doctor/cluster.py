"""`anadil doctor --cluster`: what a run on a cluster needs, each line with its remedy.

One root cause is told once: where the API does not answer, or the namespace is not there,
the lines that depend on it are skipped and say so.
"""

from collections.abc import Callable, Iterable

from anadil.cli.doctor import images, kubernetes, namespace_objects, nodes, services, storage
from anadil.cli.doctor.client import Api, Refused, Unreachable, connect
from anadil.cli.doctor.local import Check, check_data
from anadil.cli.doctor.timeout import bounded
from anadil.recipe.sections import Recipe

JOB_BACKENDS = tuple(kubernetes.JOB_API)
OF_JOBS = ("job API", "training operator", "permissions", "queue")
"""What only training jobs of their own need."""
OF_NAMESPACE = ("permissions", "queue", "volumes", "service account", "secrets")
DEPENDENT = ("namespace", *OF_JOBS, "volumes", "service account", "secrets", "nodes")
UNREACHABLE = "set KUBECONFIG, or aws eks update-kubeconfig --name CLUSTER; then kubectl version must answer"
INPUTS_PATIENCE_S = 60.0
"""Files of three keys, each of which has ten seconds, and the model."""
STORAGE_PATIENCE_S = 25.0
"""A dead endpoint is given up after some 10 s of retries, in writing and in removing."""


def examine_cluster(recipe: Recipe, *, kubeflow_host: str | None = None) -> list[Check]:
    """Check API, namespace, operator, rights, queue, volumes, Secrets, nodes, storage and servers.

    Args:
        recipe: Its section `cluster` says what is needed.
        kubeflow_host: Address of Kubeflow Pipelines; left out, KF_PIPELINES_ENDPOINT.
    """
    checks = _kubernetes(recipe)
    checks += bounded("images", lambda: images.check_images(recipe.cluster))
    checks += bounded("storage", lambda: storage.check_storage(recipe), STORAGE_PATIENCE_S)
    checks += storage.check_checkpoints(recipe)
    checks += bounded("inputs", lambda: check_data(recipe, here=False), INPUTS_PATIENCE_S)
    checks += bounded("kubeflow pipelines", lambda: services.check_kubeflow(kubeflow_host))
    checks += bounded("mlflow", lambda: services.check_mlflow(recipe))
    return checks


def _kubernetes(recipe: Recipe) -> list[Check]:
    cluster = recipe.cluster
    found: list[Api] = []

    def reach() -> Iterable[Check]:
        try:
            api = connect()
            yield from kubernetes.check_version(api, cluster)
            found.append(api)
        except (Unreachable, Refused) as error:
            remedy = (
                UNREACHABLE if isinstance(error, Unreachable) else "log in again; see kubectl auth whoami"
            )
            yield Check(name="kubernetes", status="failed", detail=str(error), remedy=remedy)

    checks = bounded("kubernetes", reach)
    if not found:
        return checks + [_skipped(name, "the cluster's API does not answer") for name in DEPENDENT]
    return checks + _inside(found[0], recipe)


def _inside(api: Api, recipe: Recipe) -> list[Check]:
    cluster = recipe.cluster
    namespace = cluster.namespace or api.default_namespace
    work: dict[str, Callable[[], Iterable[Check]]] = {
        "job API": lambda: kubernetes.check_job_api(api, cluster),
        "training operator": lambda: kubernetes.check_operator(api, cluster),
        "permissions": lambda: kubernetes.check_rights(api, cluster, namespace),
        "queue": lambda: namespace_objects.check_queue(api, cluster, namespace),
        "volumes": lambda: namespace_objects.check_volumes(api, recipe, namespace),
        "service account": lambda: namespace_objects.check_service_account(
            api, cluster, namespace, recipe.storage.root
        ),
        "secrets": lambda: namespace_objects.check_secrets(api, cluster, namespace),
        "nodes": lambda: nodes.check_nodes(api, recipe),
    }
    checks = bounded("namespace", lambda: kubernetes.check_namespace(api, cluster, namespace))
    absent = _failed(checks, "namespace")
    no_jobs = cluster.backend not in JOB_BACKENDS
    for name, look in work.items():
        if no_jobs and name in OF_JOBS:
            checks.append(
                _skipped(name, f"cluster.backend is {cluster.backend}: no job of its own is made here")
            )
        elif absent and name in OF_NAMESPACE:
            checks.append(_skipped(name, f"the namespace {namespace} cannot be used"))
        elif cluster.backend == "sagemaker" and name == "nodes":
            checks.append(_skipped(name, "SageMaker trains on machines of its own"))
        elif name == "training operator" and _failed(checks, "job API"):
            checks.append(_skipped(name, "it has no jobs to look after: their API is not served"))
        else:
            checks += bounded(name, look)
    return checks


def _failed(checks: list[Check], name: str) -> bool:
    return any(check.name == name and check.status == "failed" for check in checks)


def _skipped(name: str, detail: str) -> Check:
    return Check(name=name, status="skipped", detail=detail)
