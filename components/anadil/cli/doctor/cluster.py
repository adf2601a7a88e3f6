"""`anadil doctor --cluster`: what a run on a cluster needs, each line with its remedy.

One root cause is reported once: where the API does not answer, or the namespace is not there,
the lines that depend on it are skipped and say so.
"""

from collections.abc import Callable, Iterable

from anadil.cli.doctor import images, kubernetes, namespace_objects, nodes, services, storage
from anadil.cli.doctor.local import CheckResult, check_data, failed, skipped
from anadil.cli.doctor.timeout import with_timeout
from anadil.core.errors import PreflightError, RetryableError
from anadil.launch.kubernetes.api.client import Api, Patience, Refused
from anadil.launch.kubernetes.api.kinds import JOB_KINDS
from anadil.recipe.sections import Recipe

JOB_CHECKS = ("job API", "training operator", "permissions", "queue")
"""What only training jobs of their own need."""
NAMESPACE_CHECKS = ("permissions", "queue", "volumes", "service account", "secrets")
DEPENDENT = ("namespace", *JOB_CHECKS, "volumes", "service account", "secrets", "nodes")
ONE_ATTEMPT = Patience(attempts=1, connect_s=3.0, read_s=8.0)
"""People wait for the answer, and may ask again."""
UNREACHABLE = "set KUBECONFIG, or aws eks update-kubeconfig --name CLUSTER; then kubectl version must answer"
INPUTS_PATIENCE_S = 60.0
"""Files of three keys, each of which has ten seconds, and the model."""
STORAGE_PATIENCE_S = 25.0
"""A dead endpoint is given up after some 10 s of retries, in writing and in removing."""


def run_cluster_checks(recipe: Recipe, *, kubeflow_host: str | None = None) -> list[CheckResult]:
    """Check API, namespace, operator, rights, queue, volumes, Secrets, nodes, storage and servers.

    Args:
        recipe: Its section `cluster` says what is needed.
        kubeflow_host: Address of Kubeflow Pipelines; left out, KF_PIPELINES_ENDPOINT.
    """
    checks = _kubernetes(recipe)
    checks += with_timeout("images", lambda: images.check_images(recipe))
    checks += with_timeout("storage", lambda: storage.check_storage(recipe), STORAGE_PATIENCE_S)
    checks += storage.check_checkpoints(recipe)
    checks += with_timeout("inputs", lambda: check_data(recipe, here=False), INPUTS_PATIENCE_S)
    checks += with_timeout("kubeflow pipelines", lambda: services.check_kubeflow(kubeflow_host))
    checks += with_timeout("mlflow", lambda: services.check_mlflow(recipe))
    return checks


def _kubernetes(recipe: Recipe) -> list[CheckResult]:
    found: list[Api] = []

    def reach() -> Iterable[CheckResult]:
        remedy = UNREACHABLE
        try:
            api = Api(recipe.cluster.namespace, ONE_ATTEMPT)
            yield from kubernetes.check_version(api, recipe.cluster)
            found.append(api)
            return
        except Refused as error:
            detail, remedy = str(error), "log in again; see kubectl auth whoami"
        except PreflightError as error:
            detail, _, remedy = str(error).partition("; ")
        except RetryableError as error:
            detail = str(error).partition("; ")[0]
        yield failed("kubernetes", detail, remedy)

    checks = with_timeout("kubernetes", reach)
    if not found:
        return checks + [skipped(name, "the cluster's API does not answer") for name in DEPENDENT]
    return checks + _inside(found[0], recipe)


def _inside(api: Api, recipe: Recipe) -> list[CheckResult]:
    cluster = recipe.cluster
    work: dict[str, Callable[[], Iterable[CheckResult]]] = {
        "job API": lambda: kubernetes.check_job_api(api, cluster),
        "training operator": lambda: kubernetes.check_operator(api, cluster),
        "permissions": lambda: kubernetes.check_access(api, cluster),
        "clean engine": lambda: kubernetes.check_engine(api, recipe.clean.engine),
        "queue": lambda: namespace_objects.check_queue(api, cluster),
        "volumes": lambda: namespace_objects.check_volumes(api, recipe),
        "service account": lambda: namespace_objects.check_service_account(api, cluster, recipe.storage.root),
        "secrets": lambda: namespace_objects.check_secrets(api, cluster),
        "nodes": lambda: nodes.check_nodes(api, recipe),
    }
    checks = with_timeout("namespace", lambda: kubernetes.check_namespace(api, cluster))
    absent = _has_failed(checks, "namespace")
    no_jobs = cluster.backend not in JOB_KINDS
    for name, look in work.items():
        if no_jobs and name in JOB_CHECKS:
            checks.append(
                skipped(name, f"cluster.backend is {cluster.backend}: no job of its own is made here")
            )
        elif absent and name in NAMESPACE_CHECKS:
            checks.append(skipped(name, f"the namespace {api.namespace} cannot be used"))
        elif cluster.backend == "sagemaker" and name == "nodes":
            checks.append(skipped(name, "SageMaker trains on machines of its own"))
        elif name == "training operator" and _has_failed(checks, "job API"):
            checks.append(skipped(name, "it has no jobs: their API is not served"))
        else:
            checks += with_timeout(name, look)
    return checks


def _has_failed(checks: list[CheckResult], name: str) -> bool:
    return any(check.name == name and check.status == "failed" for check in checks)
