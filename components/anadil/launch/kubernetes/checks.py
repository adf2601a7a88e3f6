"""The checks of `anadil doctor --cluster`, which ask the cluster, object storage and servers."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anadil.core.errors import PreflightError, RetryableError
from anadil.core.format import counted
from anadil.launch.job import JOB_KINDS, JobKind, annotations, labels
from anadil.launch.kubernetes.clean_pods import INDEXED_JOB, RAYCLUSTER
from anadil.launch.kubernetes.client import Api, Refused, RetryPolicy
from anadil.launch.kubernetes.manifests import RUNTIME
from anadil.launch.kubernetes.nodes import check_nodes, share_one_node
from anadil.preflight import services
from anadil.preflight.checks import CHECKS
from anadil.recipe.cluster import Volume
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import CHANNELS
from anadil.runtime.check import (
    CLUSTER_DOCTOR,
    Check,
    CheckResult,
    PlannedRun,
    failed,
    passed,
    report,
    skipped,
)

# People wait for the answer, and may ask again.
ONE_ATTEMPT = RetryPolicy(attempts=1, connect_s=3.0, read_s=8.0)
UNREACHABLE = "set KUBECONFIG, or aws eks update-kubeconfig --name CLUSTER; then kubectl version must answer"
ASK_S = 15.0  # Longest time of one check; each of its questions has its own, shorter limit.
INPUTS_S = 60.0  # Files of one key have ten seconds; the tokenizer of a base model may come from the hub.
STORAGE_S = 25.0  # A dead endpoint is given up after some 10 s of retries, in writing and in removing.
Question = Callable[[Api, Recipe], Iterable[CheckResult]]
INSTALL = {
    "pytorchjob": "install the training operator: kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4'",
    "trainjob": "install Kubeflow Trainer 2: kubectl apply --server-side -k "
    "'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0'",
    "raycluster": "install KubeRay 1.1 or newer: kubectl apply --server-side -k "
    "'github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.4.2'; or set clean.engine: job",
}
# Label of the operator's Deployment. Source: manifests of kubeflow/training-operator 1.9, of the
# HyperPod chart, and of kubeflow/trainer 2.
OPERATOR_LABEL = {
    "pytorchjob": "control-plane=kubeflow-training-operator",
    "trainjob": "app.kubernetes.io/name=trainer,app.kubernetes.io/component=manager",
}
# Versions of Kubernetes. Source: SageMaker AI guide, "Getting started with Amazon EKS support in HyperPod".
OLDEST, NEWEST = (1, 28), (1, 34)
# Operators that HyperPod resumes jobs of. Source: Amazon SageMaker AI, job auto-resume, and the HyperPod chart.
AUTO_RESUME_VERSIONS = ("v1.7.0", "v1.8.0", "v1.8.1", "v1-855e096")
ENGINE_KINDS = {"job": INDEXED_JOB, "ray": RAYCLUSTER}  # `clean.engine` -> what it makes in the cluster.
KUEUE = "kueue.x-k8s.io"
# IAM role of a ServiceAccount. Source: Amazon EKS, IAM roles for service accounts.
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Driver whose volumes cannot be renamed or appended to. Source: awslabs/mountpoint-s3, SEMANTICS.md.
MOUNTPOINT = "s3.csi.aws.com"


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
        yield from check_version(run.api(), run.recipe)
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
            if error.status == 403:
                yield skipped(name, "may not be read with your rights", "ask whoever runs the cluster")
            else:
                yield failed(name, f"the API answers {error}", "see the API server's health")

    return Check(name=name, function=function, needs=("kubernetes", *needs), seconds=ASK_S)


class AccessRule(NamedTuple):
    """Verbs that a command needs for one resource of the job namespace."""

    group: str
    resource: str  # With the subresource, as a Role names it: `pods/log`.
    verbs: tuple[str, ...]

    def as_role(self, verbs: tuple[str, ...]) -> str:
        """Format the rule of a Role, in YAML's short form."""
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: [{", ".join(verbs)}]}}'


POD_RULES = (
    AccessRule("", "pods", ("get", "list")),
    AccessRule("", "pods/log", ("get",)),
    AccessRule("", "events", ("list",)),
)


def launcher_rules(backend: str) -> tuple[AccessRule, ...]:
    """Return the rights that `anadil launch` needs in the job namespace."""
    kind = JOB_KINDS[backend]
    return (AccessRule(kind.group, kind.plural, ("get", "list", "create", "patch", "delete")), *POD_RULES)


def engine_rules(kind: JobKind) -> tuple[AccessRule, ...]:
    """Return the rights that a pod of `clean` needs to make pods of its own."""
    return (AccessRule(kind.group, kind.plural, ("get", "create", "delete")), POD_RULES[0], POD_RULES[2])


def check_version(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the API answers."""
    answer = api.read("/version")
    version = tuple(int(re.sub(r"\D.*", "", str(answer[key]))) for key in ("major", "minor"))
    context = api.connection.context
    place = f"context {context}" if context else "of this pod"
    detail = f"{answer['gitVersion']} at {api.connection.host} ({place})"
    span = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
    if OLDEST <= version <= NEWEST:
        yield passed("kubernetes", detail)
    elif recipe.cluster.hyperpod:
        yield failed("kubernetes", detail, f"HyperPod runs Kubernetes {span}")
    else:
        yield passed("kubernetes", detail, f"tests of anadil and HyperPod cover {span}; others may work")


def check_namespace(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the job namespace exists, that HyperPod watches it, and that it lets our pods in."""
    namespace = api.namespace
    if recipe.cluster.hyperpod and namespace != "kubeflow" and not namespace.startswith("hyperpod"):
        detail = (
            f"{namespace}: HyperPod resumes jobs only in `kubeflow` and namespaces that begin with hyperpod"
        )
        yield failed("namespace", detail, "set cluster.namespace, such as hyperpod-ns-TEAM")
        return
    answer = api.find(f"/api/v1/namespaces/{namespace}")
    if answer is None:
        remedy = f"kubectl create namespace {namespace}, or correct cluster.namespace"
        yield failed("namespace", f"{namespace}: there is none", remedy)
        return
    phase = answer.get("status", {}).get("phase", "Active")
    if phase != "Active":
        remedy = "wait until it is gone and create it again, or choose another"
        yield failed("namespace", f"{namespace}: {phase}", remedy)
        return
    yield passed("namespace", namespace)
    level = labels(answer).get("pod-security.kubernetes.io/enforce")
    detail = f"enforces {level}" if level else "no level is enforced here"
    remedy = f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted"
    yield passed("pod security", f"{detail}; pods of anadil keep to restricted", "" if level else remedy)


def check_job_api(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the API serves the jobs of the recipe's backend, in the version that we write."""
    backend = recipe.cluster.backend
    kind = JOB_KINDS[backend]
    name, path = f"{kind.plural}.{kind.group}", f"/apis/{kind.group}/{kind.version}"
    if _serves(api, kind):
        yield passed("job API", f"{name} {kind.version} is served")
        if backend == "trainjob":
            yield _runtime(api, f"{path}/clustertrainingruntimes/{RUNTIME}")
        return
    remedy = INSTALL[backend]
    for other in JOB_KINDS.values():
        if other != kind and _serves(api, other):
            remedy += f"; or set cluster.backend: {other.name}, which is here ({other.plural}.{other.group})"
    group = api.find(f"/apis/{kind.group}")
    versions = ", ".join(each["version"] for each in group["versions"]) if group else ""
    served = f"the group is served in {versions}" if versions else "the group is not served at all"
    yield failed("job API", f"{name} {kind.version} is not served ({served})", remedy)


def _runtime(api: Api, path: str) -> CheckResult:
    """Check the runtime of a TrainJob, without which the manager admits none."""
    name = "training runtime"
    try:
        answer = api.find(path)
    except Refused as error:
        if error.status != 403:
            raise
        return skipped(name, "may not be read with your rights")
    if answer is not None:
        return passed(name, RUNTIME)
    remedy = (
        "kubectl apply --server-side -k "
        "'https://github.com/kubeflow/trainer.git/manifests/overlays/runtimes?ref=v2.3.0'"
    )
    return failed(name, f"there is no ClusterTrainingRuntime {RUNTIME}", remedy)


def _serves(api: Api, kind: JobKind) -> bool:
    served = api.find(f"/apis/{kind.group}/{kind.version}")
    return any(each["name"] == kind.plural for each in (served or {}).get("resources", ()))


def check_operator(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the operator that turns jobs into pods is ready."""
    name, label = "training operator", OPERATOR_LABEL[recipe.cluster.backend]
    answer = api.read("/apis/apps/v1/deployments", labelSelector=label).get("items") or []
    if not answer:
        detail = f"no Deployment with the label {label}"
        yield skipped(name, detail, "see that it runs: kubectl get deployments -A")
        return
    deployment = answer[0]
    namespace = deployment["metadata"]["namespace"]
    place = f"{namespace}/{deployment['metadata']['name']}"
    image = str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])
    if not deployment.get("status", {}).get("readyReplicas", 0):
        remedy = f"kubectl -n {namespace} describe pods -l {label}"
        yield failed(name, f"{place} ({image}): no replica is ready", remedy)
        return
    unknown = recipe.cluster.hyperpod and image.rsplit(":", 1)[-1] not in AUTO_RESUME_VERSIONS
    remedy = f"HyperPod documents auto-resume with {', '.join(AUTO_RESUME_VERSIONS[:3])}" if unknown else ""
    yield passed(name, f"{place} is ready ({image})", remedy)


def check_access(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check the rights that `anadil launch` needs in the job namespace."""
    yield _access(api, "permissions", launcher_rules(recipe.cluster.backend), "a launcher does")


def check_engine(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the cluster serves what `clean.engine` makes, and that you may make it."""
    engine = recipe.clean.engine
    kind = ENGINE_KINDS.get(engine)
    if kind is None:
        return
    if _serves(api, kind):
        yield passed("clean engine", f"{kind.plural}.{kind.group} {kind.version} is served")
    else:
        detail = f"clean.engine is {engine}, and the cluster has no {kind.plural}.{kind.group} {kind.version}"
        remedy = INSTALL.get(kind.name, "see kubectl api-resources --api-group=batch")
        yield failed("clean engine", detail, remedy)
    yield _access(api, "clean permissions", engine_rules(kind), "`clean` does with its pods")


def _access(api: Api, name: str, rules: tuple[AccessRule, ...], what: str) -> CheckResult:
    missing = {}
    for rule in rules:
        denied = tuple(verb for verb in rule.verbs if not _allowed(api, rule, verb))
        if denied:
            missing[rule] = denied
    who = _who(api)
    if not missing:
        count = sum(len(rule.verbs) for rule in rules)
        return passed(name, f"{who} may do all {count} things that {what} in {api.namespace}")
    listed = "; ".join(f"{', '.join(verbs)} {rule.resource}" for rule, verbs in missing.items())
    needed = ", ".join(rule.as_role(verbs) for rule, verbs in missing.items())
    remedy = f"add to a Role in {api.namespace} that is bound to {who}: {needed}"
    return failed(name, f"{who} may not: {listed} (namespace {api.namespace})", remedy)


def _allowed(api: Api, rule: AccessRule, verb: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    attributes = {"namespace": api.namespace, "verb": verb, "group": rule.group, "resource": resource}
    if subresource:
        attributes["subresource"] = subresource
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.review("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"].get("allowed"))


def _who(api: Api) -> str:
    """Return the name that the API knows you by; `you` where it does not tell (before 1.28)."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer: dict[str, Any] = api.review("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except Refused:
        return "you"
    return str(answer["status"]["userInfo"]["username"])


def check_queue(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the LocalQueue, which must take jobs, and for the priority class."""
    cluster = recipe.cluster
    group = api.find(f"/apis/{KUEUE}")
    path = f"/apis/{group['preferredVersion']['groupVersion']}" if group else ""
    queues = f"{path}/namespaces/{api.namespace}/localqueues"
    if cluster.queue is None:
        if names := _names(api.read(queues)) if group else []:
            detail = f"cluster.queue is not set, though {api.namespace} has {', '.join(names)}"
            yield skipped("queue", detail, f"set cluster.queue: {names[0]}, if jobs here must queue")
        else:
            yield skipped("queue", "cluster.queue is not set")
        return
    if group is None:
        remedy = "install Kueue (HyperPod: the add-on amazon-sagemaker-hyperpod-taskgovernance), or leave cluster.queue out"
        yield failed("queue", f"{KUEUE} is not served", remedy)
        return
    answer = api.find(f"{queues}/{cluster.queue}")
    if answer is None:
        names = _names(api.read(queues))
        one_of = f"set cluster.queue to one of {', '.join(names)}"
        remedy = one_of if names else "create it, or leave cluster.queue out"
        yield failed("queue", f"{api.namespace} has no LocalQueue {cluster.queue}", remedy)
        return
    status = answer.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    active: dict[str, Any] = conditions.get("Active", {})
    if active.get("status") != "True":
        reason = active.get("message") or active.get("reason") or "Kueue has not checked it yet"
        remedy = f"see kubectl -n {api.namespace} describe localqueue {cluster.queue}"
        yield failed("queue", f"{cluster.queue} is not active: {reason}", remedy)
        return
    num_pending = counted(status.get("pendingWorkloads", 0), "job")
    yield passed("queue", f"{cluster.queue} is active, {num_pending} waiting in it")
    if cluster.priority and api.find(f"{path}/workloadpriorityclasses/{cluster.priority}") is None:
        names = _names(api.read(f"{path}/workloadpriorityclasses"))
        one_of = f"set cluster.priority to one of {', '.join(names)}"
        remedy = one_of if names else "leave cluster.priority out"
        yield failed("priority", f"there is no WorkloadPriorityClass {cluster.priority}", remedy)


def _names(answer: dict[str, Any]) -> list[str]:
    return sorted(str(each["metadata"]["name"]) for each in answer.get("items") or ())


def check_volumes(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that each claim is bound to a volume that all nodes can mount and checkpoints can live on."""
    if not recipe.cluster.volumes:
        yield skipped("volumes", "cluster.volumes names no claim")
    for volume in recipe.cluster.volumes:
        yield _claim(api, recipe, volume)


def _claim(api: Api, recipe: Recipe, volume: Volume) -> CheckResult:
    cluster = recipe.cluster
    name = f"claim {volume.claim}"
    answer = api.find(api.core_path("persistentvolumeclaims", volume.claim))
    if answer is None:
        remedy = "create it (manifests/ and the chart do), or correct cluster.volumes"
        return failed(name, f"{api.namespace} has no such claim", remedy)
    modes = set(answer["spec"].get("accessModes") or ())
    shared = {"ReadWriteMany"} | ({"ReadOnlyMany"} if volume.read_only else set())
    # All pods of a node may use a volume that the node mounts.
    on_one = "ReadWriteOnce" in modes and cluster.nodes > 1 and share_one_node(api, recipe)
    if cluster.nodes > 1 and not modes & shared and not on_one:
        detail = f"{', '.join(sorted(modes))}, but {cluster.nodes} nodes mount it"
        return failed(name, detail, f"make the claim {' or '.join(sorted(shared))} (FSx for Lustre, EFS)")
    phase = answer.get("status", {}).get("phase", "Pending")
    if phase != "Bound":
        return _unbound(api, name, answer, phase)
    if volume.holds(cluster.work or "") and _driver(api, answer["spec"].get("volumeName", "")) == MOUNTPOINT:
        detail = "Mountpoint for S3 cannot rename or append, so no checkpoint can be written there"
        return failed(name, detail, "put cluster.work on FSx for Lustre, EFS or EBS")
    size = (answer["status"].get("capacity") or {}).get("storage", "")
    return passed(name, f"bound, {size} {', '.join(sorted(modes))}, mounted at {volume.path}")


def _driver(api: Api, volume_name: str) -> str:
    """Return the CSI driver of a volume; empty where it may not be read."""
    try:
        volume = api.find(f"/api/v1/persistentvolumes/{volume_name}") if volume_name else None
    except Refused:
        return ""
    return str((volume or {}).get("spec", {}).get("csi", {}).get("driver", ""))


def _unbound(api: Api, name: str, claim: dict[str, Any], phase: str) -> CheckResult:
    asked, described = claim["spec"].get("storageClassName"), f"describe pvc {claim['metadata']['name']}"
    try:
        classes = api.read("/apis/storage.k8s.io/v1/storageclasses").get("items") or []
    except Refused:
        return failed(name, phase, f"see kubectl -n {claim['metadata'].get('namespace')} {described}")
    if asked is None:
        chosen = [each for each in classes if annotations(each).get(DEFAULT_CLASS) == "true"]
        lack = "it names no storage class, and no class is the default"
    else:
        chosen = [each for each in classes if each["metadata"]["name"] == asked]
        lack = f"there is no storage class {asked}"
    if claim["spec"].get("volumeName"):
        remedy = f"see kubectl describe pv {claim['spec']['volumeName']}: class, size and modes must agree"
        return failed(name, f"{phase}: waits for its volume", remedy)
    if not chosen:
        names = ", ".join(_names({"items": classes})) or "none"
        remedy = f"name one of the classes that are here ({names}), or create a PersistentVolume for it"
        return failed(name, f"{phase}: {lack}", remedy)
    if chosen[0].get("volumeBindingMode") == "WaitForFirstConsumer":
        return passed(name, f"{phase}: bound as soon as a pod mounts it")
    detail = f"{phase}: class {chosen[0]['metadata']['name']} has made no volume yet"
    return failed(name, detail, f"see kubectl {described}")


def check_service_account(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the ServiceAccount of jobs, and for the AWS role that it takes."""
    account = recipe.cluster.service_account or "default"
    answer = api.find(api.core_path("serviceaccounts", account))
    if answer is None:
        create = f"kubectl -n {api.namespace} create serviceaccount {account}"
        remedy = f"{create}, or correct cluster.service_account"
        yield failed("service account", f"{api.namespace} has no {account}", remedy)
        return
    role = annotations(answer).get(ROLE_ANNOTATION)
    if role:
        yield passed("service account", f"{account} takes {role} (IRSA)")
    elif (recipe.storage.root or "").startswith("s3://"):
        detail = (
            f"{account} names no AWS role: Pod Identity, Secrets or the node's role must give access to S3"
        )
        remedy = f"annotate it with {ROLE_ANNOTATION}, or make a Pod Identity association"
        yield passed("service account", detail, remedy)
    else:
        yield passed("service account", account)


def check_secrets(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the keys of each Secret; values are never read."""
    cluster = recipe.cluster
    if not cluster.secrets and not cluster.notifications:
        yield skipped("secrets", "the recipe names none")
    for secret, keys in cluster.secrets.items():
        yield _secret(api, secret, set(keys), every=True)
    if cluster.notifications:
        yield _secret(api, cluster.notifications, {channel.variable for channel in CHANNELS}, every=False)


def _secret(api: Api, secret: str, keys: set[str], *, every: bool) -> CheckResult:
    name = f"secret {secret}"
    try:
        answer = api.find(api.core_path("secrets", secret))
    except Refused as error:
        if error.status != 403:
            raise
        remedy = f"ask somebody who may: kubectl -n {api.namespace} describe secret {secret}"
        return skipped(name, "may not be read with your rights", remedy)
    if answer is None:
        example = " ".join(f"--from-literal={key}=..." for key in sorted(keys))
        remedy = f"kubectl -n {api.namespace} create secret generic {secret} {example}"
        return failed(name, f"{api.namespace} has none of this name", remedy)
    missing = keys - set(answer.get("data") or ())
    if missing and (every or missing == keys):
        which = f"{'' if every else 'one of '}{', '.join(sorted(missing))}"
        return failed(name, f"lacks {which}", "add what it lacks to the Secret")
    return passed(name, f"holds {', '.join(sorted(keys - missing))}")


# In order; what only some backends need says so itself.
CLUSTER: tuple[Check[ClusterRun], ...] = (
    Check(name="kubernetes", function=_reach, seconds=ASK_S),
    _ask("namespace", check_namespace),
    _ask("job API", check_job_api, of_jobs=True),
    _ask("training operator", check_operator, "job API", of_jobs=True),
    _ask("permissions", check_access, "namespace", of_jobs=True),
    _ask("clean engine", check_engine),
    _ask("queue", check_queue, "namespace", of_jobs=True),
    _ask("volumes", check_volumes, "namespace"),
    _ask("service account", check_service_account, "namespace"),
    _ask("secrets", check_secrets, "namespace"),
    _ask("nodes", check_nodes),
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
