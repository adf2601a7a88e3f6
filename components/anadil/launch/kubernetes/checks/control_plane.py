"""The cluster itself: its API, the job namespace, the training operator, your rights."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anadil.launch.kinds import JOB_KINDS, JobKind
from anadil.launch.kubernetes.api.client import Api, Refused
from anadil.launch.kubernetes.executors.indexed_job import INDEXED_JOB
from anadil.launch.kubernetes.executors.ray_cluster import RAYCLUSTER
from anadil.launch.manifests.trainjob import RUNTIME
from anadil.preflight.check import CheckResult, failed, passed, skipped
from anadil.recipe.sections import Recipe

OLDEST, NEWEST = (1, 28), (1, 34)
"""Versions that HyperPod runs. Source: Amazon SageMaker AI, HyperPod on EKS, 2026."""
INSTALL = {
    "pytorchjob": "install the training operator: kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4'",
    "trainjob": "install Kubeflow Trainer 2: kubectl apply --server-side -k "
    "'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0'",
    "raycluster": "install KubeRay 1.1 or newer: kubectl apply --server-side -k "
    "'github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.4.2'; or set clean.engine: job",
}
OPERATOR_LABEL = {
    "pytorchjob": "control-plane=kubeflow-training-operator",
    "trainjob": "app.kubernetes.io/name=trainer,app.kubernetes.io/component=manager",
}
"""Label of the operator's Deployment. Source: manifests of kubeflow/training-operator 1.9, of the
HyperPod chart, and of kubeflow/trainer 2."""
AUTO_RESUME_VERSIONS = ("v1.7.0", "v1.8.0", "v1.8.1", "v1-855e096")
"""Operators that HyperPod resumes jobs of. Source: Amazon SageMaker AI, job auto-resume, and the HyperPod chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """Verbs that the launcher needs for one resource of the job namespace."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """As a Role names it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def as_role(self, verbs: tuple[str, ...]) -> str:
        """The rule of a Role, in YAML's short form."""
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.name}"], verbs: [{", ".join(verbs)}]}}'


POD_RULES = (
    AccessRule(group="", resource="pods", verbs=("get", "list")),
    AccessRule(group="", resource="pods", subresource="log", verbs=("get",)),
    AccessRule(group="", resource="events", verbs=("list",)),
)


def launcher_rules(backend: str) -> tuple[AccessRule, ...]:
    """Rights that `anadil launch` needs in the job namespace."""
    kind = JOB_KINDS[backend]
    verbs = ("get", "list", "create", "patch", "delete")
    return (AccessRule(group=kind.group, resource=kind.plural, verbs=verbs), *POD_RULES)


ENGINE_KINDS = {"job": INDEXED_JOB, "ray": RAYCLUSTER}  # `clean.engine` -> what it makes in the cluster.


def engine_rules(kind: JobKind) -> tuple[AccessRule, ...]:
    """Rights that a pod of `clean` needs to make pods of its own."""
    own = AccessRule(group=kind.group, resource=kind.plural, verbs=("get", "create", "delete"))
    return (own, POD_RULES[0], POD_RULES[2])


def check_version(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the API answers; other lines depend on this one."""
    answer = api.read("/version")
    version = tuple(int(re.sub(r"\D.*", "", str(answer[key]))) for key in ("major", "minor"))
    detail = (
        f"{answer['gitVersion']} at {api.host} ({f'context {api.context}' if api.context else 'of this pod'})"
    )
    inside = OLDEST <= version <= NEWEST
    span = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
    if inside:
        yield passed("kubernetes", detail)
    elif recipe.cluster.hyperpod:
        remedy = f"HyperPod runs Kubernetes {span}"
        yield failed("kubernetes", detail, remedy)
    else:
        remedy = f"tests of anadil and HyperPod cover {span}; others may work"
        yield passed("kubernetes", detail, remedy)


def check_namespace(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the job namespace exists, that HyperPod watches it, and that it lets our pods in."""
    namespace = api.namespace
    if recipe.cluster.hyperpod and namespace != "kubeflow" and not namespace.startswith("hyperpod"):
        yield failed(
            "namespace",
            f"{namespace}: HyperPod resumes jobs only in `kubeflow` and namespaces that begin with hyperpod",
            "set cluster.namespace, such as hyperpod-ns-TEAM",
        )
        return
    answer = api.find(f"/api/v1/namespaces/{namespace}")
    if answer is None:
        remedy = f"kubectl create namespace {namespace}, or correct cluster.namespace"
        detail = f"{namespace}: there is none"
        yield failed("namespace", detail, remedy)
        return
    phase = answer.get("status", {}).get("phase", "Active")
    if phase != "Active":
        remedy = "wait until it is gone and create it again, or choose another"
        yield failed("namespace", f"{namespace}: {phase}", remedy)
        return
    yield passed("namespace", namespace)
    level = (answer["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce")
    if level:
        detail = f"enforces {level}; pods of anadil keep to restricted"
        yield passed("pod security", detail)
    else:
        remedy = f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted"
        detail = "no level is enforced here; pods of anadil keep to restricted"
        yield passed("pod security", detail, remedy)


def check_job_api(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the API serves the jobs of the recipe's backend, in the version that we write."""
    backend = recipe.cluster.backend
    kind = JOB_KINDS[backend]
    name, path = f"{kind.plural}.{kind.group}", f"/apis/{kind.group}/{kind.version}"
    if _serves(api, kind):
        yield passed("job API", f"{name} {kind.version} is served")
        if backend == "trainjob":
            yield from _runtime(api, f"{path}/clustertrainingruntimes/{RUNTIME}")
        return
    remedy = INSTALL[backend]
    for other in JOB_KINDS.values():
        if other != kind and _serves(api, other):
            remedy += f"; or set cluster.backend: {other.name}, which is here ({other.plural}.{other.group})"
    group = api.find(f"/apis/{kind.group}")
    versions = ", ".join(each["version"] for each in group["versions"]) if group else ""
    served = f"the group is served in {versions}" if versions else "the group is not served at all"
    yield failed("job API", f"{name} {kind.version} is not served ({served})", remedy)


def _runtime(api: Api, path: str) -> Iterator[CheckResult]:
    """A TrainJob only fills in a runtime; the manager admits none whose runtime is not there."""
    name = "training runtime"
    try:
        answer = api.find(path)
    except Refused as error:
        if error.answer.status != 403:
            raise
        yield skipped(name, "may not be read with your rights")
        return
    if answer is None:
        remedy = (
            "kubectl apply --server-side -k "
            "'https://github.com/kubeflow/trainer.git/manifests/overlays/runtimes?ref=v2.3.0'"
        )
        detail = f"there is no ClusterTrainingRuntime {RUNTIME}"
        yield failed(name, detail, remedy)
    else:
        yield passed(name, RUNTIME)


def _serves(api: Api, kind: JobKind) -> bool:
    served = api.find(f"/apis/{kind.group}/{kind.version}")
    return any(each["name"] == kind.plural for each in (served or {}).get("resources", ()))


def check_operator(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the operator that turns jobs into pods is ready."""
    label = OPERATOR_LABEL[recipe.cluster.backend]
    answer = api.read("/apis/apps/v1/deployments", labelSelector=label).get("items") or []
    if not answer:
        remedy = "see that it runs: kubectl get deployments -A"
        detail = f"no Deployment with the label {label}"
        yield skipped("training operator", detail, remedy)
        return
    deployment = answer[0]
    place = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    image = str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])
    ready = deployment.get("status", {}).get("readyReplicas", 0)
    if not ready:
        remedy = f"kubectl -n {deployment['metadata']['namespace']} describe pods -l {label}"
        detail = f"{place} ({image}): no replica is ready"
        yield failed("training operator", detail, remedy)
        return
    tag = image.rsplit(":", 1)[-1]
    unknown = recipe.cluster.hyperpod and tag not in AUTO_RESUME_VERSIONS
    remedy = f"HyperPod documents auto-resume with {', '.join(AUTO_RESUME_VERSIONS[:3])}" if unknown else ""
    detail = f"{place} is ready ({image})"
    yield passed("training operator", detail, remedy)


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
    missing_text = "; ".join(f"{', '.join(verbs)} {rule.name}" for rule, verbs in missing.items())
    needed = ", ".join(rule.as_role(verbs) for rule, verbs in missing.items())
    return failed(
        name,
        f"{who} may not: {missing_text} (namespace {api.namespace})",
        f"add to a Role in {api.namespace} that is bound to {who}: {needed}",
    )


def _allowed(api: Api, rule: AccessRule, verb: str) -> bool:
    attributes = {"namespace": api.namespace, "verb": verb, "group": rule.group, "resource": rule.resource}
    if rule.subresource:
        attributes["subresource"] = rule.subresource
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.review("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"].get("allowed"))


def _who(api: Api) -> str:
    """The name that the API knows you by; `you` where it does not tell (before 1.28)."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer: dict[str, Any] = api.review("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except Refused:
        return "you"
    return str(answer["status"]["userInfo"]["username"])
