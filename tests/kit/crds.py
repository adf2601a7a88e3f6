"""Definitions of custom resources, as strict as a server that refuses unknown fields.

Nine tenths of each is a pod template, which kubernetes-validate has for every version of Kubernetes. What the
operators add is below, as their types say it. The definitions themselves are half a megabyte each and prose
for the most part; where `$ANADIL_DATA/../crds` has them, a test compares.

Source: kubeflow/trainer v1.9.4 and v2.3.0, manifests/base/crds; aws/sagemaker-hyperpod-cli 011ca92,
helm_chart/HyperPodHelmChart/charts/training-operators.
"""

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.kit.kubernetes_schemas import definitions

PYTORCHJOB = ("kubeflow.org_pytorchjobs", "hyperpod-helm-chart_kubeflow.org_pytorchjobs")
"""PyTorchJob of the training operator 1.9, and of the older one that HyperPod's chart installs."""
TRAINJOB = "trainer.kubeflow.org_trainjobs"
RAYCLUSTER = "ray.io_rayclusters"
INFERENCESERVICE = "serving.kserve.io_inferenceservices"
VERSIONS = {
    INFERENCESERVICE: "1.36",
    RAYCLUSTER: "1.36",
    PYTORCHJOB[0]: "1.36",
    PYTORCHJOB[1]: "1.27",
    TRAINJOB: "1.36",
}  # Whose pod template each of them holds.

_PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs*: {"{}": {replicas: integer, restartPolicy: string, template: core.v1.PodTemplateSpec}}
  nprocPerNode: string
  elasticPolicy:
    {maxReplicas: integer, maxRestarts: integer, minReplicas: integer, nProcPerNode: integer, rdzvBackend: string,
     rdzvConf: [{key: string, value: string}], rdzvHost: string, rdzvId: string, rdzvPort: integer,
     standalone: boolean, metrics: [autoscaling.v2.MetricSpec]}
  runPolicy:
    activeDeadlineSeconds: integer
    backoffLimit: integer
    cleanPodPolicy: string
    managedBy: string
    suspend: boolean
    ttlSecondsAfterFinished: integer
    schedulingPolicy:
      {minAvailable: integer, minResources: {"{}": quantity}, priorityClass: string, queue: string,
       scheduleTimeoutSeconds: integer}
"""
_METADATA = "{annotations: {'{}': string}, finalizers: [string], labels: {'{}': string}, name: string, namespace: string}"
_TRAINJOB = f"""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  activeDeadlineSeconds: integer
  managedBy: string
  suspend: boolean
  runtimeRef*: {{apiGroup: string, kind: string, name*: string}}
  initializer:
    dataset: &source {{env: [core.v1.EnvVar], secretRef: {{name: string}}, storageUri: string}}
    model: *source
  trainer:
    {{args: [string], command: [string], env: [core.v1.EnvVar], image: string, numNodes: integer,
     numProcPerNode: integer, resourcesPerNode: core.v1.ResourceRequirements}}
  runtimePatches:
  - manager*: string
    time: string
    trainingRuntimeSpec:
      template:
        metadata: {_METADATA}
        spec:
          replicatedJobs:
          - name*: string
            template:
              metadata: {_METADATA}
              spec:
                template:
                  metadata: {_METADATA}
                  spec:
                    affinity: core.v1.Affinity
                    containers: &containers
                    - {{env: [core.v1.EnvVar], name*: string, securityContext: core.v1.SecurityContext,
                       volumeMounts: [core.v1.VolumeMount]}}
                    imagePullSecrets: [core.v1.LocalObjectReference]
                    initContainers: *containers
                    nodeSelector: {{"{{}}": string}}
                    schedulingGates: [core.v1.PodSchedulingGate]
                    securityContext: core.v1.PodSecurityContext
                    serviceAccountName: string
                    terminationGracePeriodSeconds: integer
                    tolerations: [core.v1.Toleration]
                    volumes: [core.v1.Volume]
"""
_RAYCLUSTER = """
apiVersion: ray.io/v1
kind: RayCluster
spec:
  autoscalerOptions: object
  enableInTreeAutoscaling: boolean
  headServiceAnnotations: {"{}": string}
  rayVersion: string
  suspend: boolean
  headGroupSpec*:
    {enableIngress: boolean, headService: core.v1.Service, rayStartParams*: {"{}": string}, serviceType: string,
     template*: core.v1.PodTemplateSpec}
  workerGroupSpecs:
  - {groupName*: string, maxReplicas*: integer, minReplicas*: integer, numOfHosts: integer, rayStartParams*: {"{}": string},
     replicas: integer, scaleStrategy: {workersToDelete: [string]}, template*: core.v1.PodTemplateSpec}
"""  # Source: ray-project/kuberay, ray-operator/apis/ray/v1/raycluster_types.go, of KubeRay 1.1.
_INFERENCESERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor*:
    annotations: {"{}": string}
    canaryTrafficPercent: integer
    containerConcurrency: integer
    deploymentStrategy: apps.v1.DeploymentStrategy
    labels: {"{}": string}
    maxReplicas: integer
    minReplicas: integer
    scaleMetric: string
    scaleTarget: integer
    timeout: integer
    model:
      modelFormat*: {name*: string, version: string}
      protocolVersion: string
      runtime: string
      storage: {key: string, parameters: {"{}": string}, path: string, schemaPath: string}
      storageUri: string
"""
"""Source: kserve/kserve, pkg/apis/serving/v1beta1 (component.go, predictor.go, predictor_model.go). A predictor holds
a PodSpec too, and a model a Container, whose name and containers the controller fills in. Compared once with the
models of the package kserve 0.21.0: each field is there; those that are left out here, nothing of ours sets."""
_INLINE = {("predictor",): "core.v1.PodSpec", ("predictor", "model"): "core.v1.Container"}
QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def mistakes(name: str, manifest: Mapping[str, Any]) -> list[str]:
    """What the definition of a resource refuses in a manifest."""
    found = [leaf for error in validator(name).iter_errors(manifest) for leaf in _leaves(error)]
    return [f"{error.json_path}: {error.message}" for error in found]


@functools.cache
def validator(name: str) -> Any:
    """A strict jsonschema validator of a definition."""
    jsonschema: Any = importlib.import_module("jsonschema")
    return jsonschema.Draft202012Validator(schema(name))


def schema(name: str) -> dict[str, Any]:
    """A definition as JSON Schema; its status, which no client writes, is left out."""
    others = {TRAINJOB: _TRAINJOB, RAYCLUSTER: _RAYCLUSTER, INFERENCESERVICE: _INFERENCESERVICE}
    wanted = yaml.safe_load(others.get(name, _PYTORCHJOB))
    if name == PYTORCHJOB[1]:
        del wanted["spec"]["runPolicy"]["managedBy"]
    return {
        "type": "object",
        "required": ["spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": wanted["apiVersion"]},
            "kind": {"const": wanted["kind"]},
            "metadata": {"type": "object"},
            "spec": _inlined(_schema(wanted["spec"], VERSIONS[name]))
            if name == INFERENCESERVICE
            else _schema(wanted["spec"], VERSIONS[name]),
        },
    }


def _inlined(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of an InferenceService with the fields of Kubernetes that its parts hold too."""
    for path, kind in _INLINE.items():
        part = spec
        for key in path:
            part = part["properties"][key]
        part["properties"] = (
            _of_kubernetes(f"io.k8s.api.{kind}", VERSIONS[INFERENCESERVICE])["properties"]
            | part["properties"]
        )
    return spec


def _schema(short: Any, version: str) -> dict[str, Any]:
    """JSON Schema of the notation above: a star is a required field, `{}` stands for any name."""
    if isinstance(short, list):
        return {"type": "array", "items": _schema(short[0], version)}
    if isinstance(short, dict):
        if "{}" in short:
            return {"type": "object", "additionalProperties": _schema(short["{}"], version)}
        return {
            "type": "object",
            "required": [name.removesuffix("*") for name in short if name.endswith("*")],
            "properties": {name.removesuffix("*"): _schema(field, version) for name, field in short.items()},
            "additionalProperties": False,
        }
    if short == "quantity":
        return QUANTITY
    return _of_kubernetes(f"io.k8s.api.{short}", version) if "." in short else {"type": short}


@functools.cache
def _of_kubernetes(name: str, version: str) -> dict[str, Any]:
    """A definition of Kubernetes itself, whole and strict, without what only its own server knows."""
    if name.endswith((".Quantity", ".IntOrString")):
        return QUANTITY
    if name.endswith(".ObjectMeta"):  # of which a custom resource may hold less
        return _schema(yaml.safe_load(_METADATA), version)
    return _whole(definitions(version)[name], version)


def _whole(part: Mapping[str, Any], version: str) -> dict[str, Any]:
    if "$ref" in part:
        return _of_kubernetes(part["$ref"].rsplit("/", 1)[1], version)
    kind = part["type"]
    [kind] = [each for each in ([kind] if isinstance(kind, str) else kind) if each != "null"]
    whole: dict[str, Any] = {"type": kind}
    if "items" in part:
        whole["items"] = _whole(part["items"], version)
    if "properties" in part:
        whole["properties"] = {name: _whole(each, version) for name, each in part["properties"].items()}
        whole |= {"required": part.get("required", []), "additionalProperties": False}
    elif isinstance(part.get("additionalProperties"), dict):
        whole["additionalProperties"] = _whole(part["additionalProperties"], version)
    return whole


def _leaves(error: Any) -> Iterator[Any]:
    """The mistake itself where a schema offers several forms."""
    if not error.context:
        yield error
    for each in error.context:
        yield from _leaves(each)
