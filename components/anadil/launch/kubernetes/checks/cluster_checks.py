"""The checks of `anadil doctor --cluster`, which ask the cluster, object storage and servers."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from anadil.core.errors import PreflightError, RetryableError
from anadil.launch.kinds import JOB_KINDS
from anadil.launch.kubernetes.api.client import Api, Refused, RetryPolicy
from anadil.launch.kubernetes.checks import control_plane, namespace_objects, nodes
from anadil.preflight import services
from anadil.preflight.check import Check, CheckResult, failed, report, skipped
from anadil.preflight.checks import CHECKS, CLUSTER_DOCTOR, PlannedRun
from anadil.recipe.sections import Recipe

# People wait for the answer, and may ask again.
ONE_ATTEMPT = RetryPolicy(attempts=1, connect_s=3.0, read_s=8.0)
UNREACHABLE = "set KUBECONFIG, or aws eks update-kubeconfig --name CLUSTER; then kubectl version must answer"
ASK_S = 15.0  # Longest time of one check; each of its questions has its own, shorter limit.
INPUTS_S = 60.0  # Files of one key have ten seconds; the tokenizer of a base model may come from the hub.
STORAGE_S = 25.0  # A dead endpoint is given up after some 10 s of retries, in writing and in removing.
Question = Callable[[Api, Recipe], Iterable[CheckResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """A recipe, and the cluster of this kubeconfig or pod."""

    recipe: Recipe
    api: Callable[[], Api]
    kubeflow_host: str | None


def run_cluster_checks(recipe: Recipe, *, kubeflow_host: str | None = None) -> list[CheckResult]:
    """Return the results of all checks of a cluster; without a host, Kubeflow is at KF_PIPELINES_ENDPOINT."""
    api = functools.cache(lambda: Api(recipe.cluster.namespace, ONE_ATTEMPT))
    subject = ClusterRun(recipe=recipe, api=api, kubeflow_host=kubeflow_host)
    data = [replace(each, seconds=INPUTS_S) for each in CHECKS if CLUSTER_DOCTOR in each.by]
    planned = PlannedRun(by=CLUSTER_DOCTOR, recipe=recipe, here=False)
    return [*report(CLUSTER, subject), *report(data, planned), *report(SERVERS, subject)]


def _reach(run: ClusterRun) -> Iterator[CheckResult]:
    remedy = UNREACHABLE
    try:
        yield from control_plane.check_version(run.api(), run.recipe)
        return
    except Refused as error:
        detail, remedy = str(error), "log in again; see kubectl auth whoami"
    except PreflightError as error:
        detail, _, remedy = str(error).partition("; ")
    except RetryableError as error:
        detail = str(error).partition("; ")[0]
    yield failed("kubernetes", detail, remedy)


def _ask(name: str, question: Question, *needs: str, of_jobs: bool = False) -> Check[ClusterRun]:
    """Return a check that asks the API; `of_jobs` if only training jobs of their own need it."""

    def function(run: ClusterRun) -> Iterator[CheckResult]:
        backend = run.recipe.cluster.backend
        if of_jobs and backend not in JOB_KINDS:
            yield skipped(name, f"cluster.backend is {backend}: no job of its own is made here")
            return
        try:
            yield from question(run.api(), run.recipe)
        except Refused as error:
            if error.answer.status == 403:
                yield skipped(name, "may not be read with your rights", "ask whoever runs the cluster")
            else:
                yield failed(name, f"the API answers {error}", "see the API server's health")

    return Check(name=name, function=function, needs=("kubernetes", *needs), seconds=ASK_S)


# In order; what only some backends need says so itself.
CLUSTER: tuple[Check[ClusterRun], ...] = (
    Check(name="kubernetes", function=_reach, seconds=ASK_S),
    _ask("namespace", control_plane.check_namespace),
    _ask("job API", control_plane.check_job_api, of_jobs=True),
    _ask("training operator", control_plane.check_operator, "job API", of_jobs=True),
    _ask("permissions", control_plane.check_access, "namespace", of_jobs=True),
    _ask("clean engine", control_plane.check_engine),
    _ask("queue", namespace_objects.check_queue, "namespace", of_jobs=True),
    _ask("volumes", namespace_objects.check_volumes, "namespace"),
    _ask("service account", namespace_objects.check_service_account, "namespace"),
    _ask("secrets", namespace_objects.check_secrets, "namespace"),
    _ask("nodes", nodes.check_nodes),
    Check(name="images", function=lambda run: services.check_images(run.recipe)),
    Check(name="storage", function=lambda run: services.check_storage(run.recipe), seconds=STORAGE_S),
)
SERVERS: tuple[Check[ClusterRun], ...] = (
    Check(
        name="kubeflow pipelines",
        function=lambda run: services.check_kubeflow(run.kubeflow_host),
        seconds=ASK_S,
    ),
    Check(name="mlflow", function=lambda run: services.check_mlflow(run.recipe), seconds=ASK_S),
)
