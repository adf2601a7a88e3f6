"""Kubernetes objects that serve a model: KServe's InferenceService, or vLLM as a Deployment with its Service.

Both speak OpenAI's protocol, run as a user without rights and write to their scratch volumes alone. There is no
server of ours. manifests/serving and the chart hold the same objects.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.core.format import GIB
from anadil.release.serving.served_model import MEMORY_SHARE

Kind = Literal["kserve", "vllm"]
Object = dict[str, Any]

VLLM_IMAGE = "vllm/vllm-openai:v0.33.0"
RUNTIME = "kserve-huggingfaceserver"
"""The ClusterServingRuntime of KServe that runs vLLM. Source: kserve/kserve, config/runtimes."""
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Name of an InferenceService; its objects append `-predictor` and more."""
OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Name of a namespace, strict enough for claims and accounts. Source: Kubernetes, RFC 1123 label names."""
MODELS = "/models"
"""Where vLLM finds the model."""
USER = 10_001
"""User and group of every image of ours, and of the files on a claim."""
HOME = "/home/anadil"
VLLM_PORT = 8000
KSERVE_PORT = 8080
START_MINUTES = 60
"""That weights may take from storage into GPUs: 140 GB at 40 MB/s. Assumption."""
CLIENT = {"anadil.dev/client": "true"}
"""Label of other namespaces whose pods may ask, such as that of a gateway."""
GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim that holds the model, and where recipes mount it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A served model and its resources."""

    name: str
    """Name of the objects, and of the model in requests."""
    uri: str
    """The model's directory: `s3://`, or a path on `claim`."""
    context: int
    """Tokens of the longest text, question and answer together."""
    gpus: int
    weight_bytes: int
    file_bytes: int
    dtype: str = "bfloat16"
    digest: str = ""
    has_template: bool = True
    claim: Claim | None = None
    service_account: str = ""
    """One that is there; empty: one is made, called as the model."""
    image: str = VLLM_IMAGE
    tools_image: str = f"anadil/tools:{__version__}"
    """Brings a model from S3 for vLLM; KServe brings it by itself."""
    namespace: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise RecipeError(
                f"--name {self.name!r}: is no name of an InferenceService; give up to 40 small letters, digits and `-`, "
                "the first a letter, the last none of `-`"
            )
        others = {
            "--claim": self.claim.name if self.claim else "",
            "--service-account": self.service_account,
            "--namespace": self.namespace,
        }
        for option, value in others.items():
            if value and not all(map(OBJECT.fullmatch, value.split("."))):
                raise RecipeError(
                    f"{option} {value!r}: is no name of an object of Kubernetes; give small letters, digits and `-`"
                )
        if self.claim is None and "://" not in self.uri:
            raise RecipeError(
                f"{self.uri}: a path of this machine, which no pod sees; give a model on s3://, or say which claim it "
                "lies on, as --claim fsx=/fsx"
            )
        if self.claim is not None and not f"{self.uri}/".startswith(f"{self.claim.path.rstrip('/')}/"):
            raise RecipeError(
                f"--claim {self.claim.name}={self.claim.path}: {self.uri} does not lie there; give the path at which "
                "the claim is mounted"
            )

    @property
    def account(self) -> str:
        """The service account of the pod, whose role reads the model."""
        return self.service_account or self.name

    @property
    def on_claim(self) -> str:
        """The model's place on the claim."""
        assert self.claim is not None
        return self.uri.removeprefix(self.claim.path.rstrip("/")).strip("/")


def objects(serving: Serving, kind: Kind) -> list[Object]:
    """Render the objects, in the order to apply them."""
    account = {
        **_head(serving, "v1", "ServiceAccount", serving.account),
        "automountServiceAccountToken": False,
    }
    server = [_inference_service(serving)] if kind == "kserve" else [_deployment(serving), _service(serving)]
    return [*([] if serving.service_account else [account]), *server, _network_policy(serving, kind)]


def _labels(serving: Serving) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "anadil",
        "app.kubernetes.io/component": "serve",
        "app.kubernetes.io/instance": serving.name,
    }


def _head(serving: Serving, version: str, kind: str, name: str = "") -> Object:
    metadata: Object = {"name": name or serving.name}
    if serving.namespace:
        metadata["namespace"] = serving.namespace
    metadata["labels"] = _labels(serving)
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _origin(serving: Serving) -> dict[str, str]:
    """Annotations that say what is served."""
    return {"anadil.dev/artifact": serving.uri} | (
        {"anadil.dev/sha256": serving.digest} if serving.digest else {}
    )


def _resources(serving: Serving) -> Object:
    """Resources of the server: weights pass through main memory, and /dev/shm counts as memory."""
    memory = f"{math.ceil(serving.weight_bytes / GIB) + 16}Gi"
    return {
        "requests": {"cpu": str(2 + 2 * serving.gpus), "memory": memory, GPU: str(serving.gpus)},
        "limits": {"memory": memory, GPU: str(serving.gpus)},
    }


def _engine_arguments(serving: Serving) -> list[str]:
    """Arguments of vLLM's engine, which both servers take."""
    return [
        # Said, because servers of some versions take 16-bit floats of the other kind on their own.
        f"--dtype={serving.dtype}",
        f"--tensor-parallel-size={serving.gpus}",
        f"--gpu-memory-utilization={MEMORY_SHARE:g}",
    ]


ENVIRONMENT: list[Mapping[str, str]] = [
    {"name": "HOME", "value": HOME},
    # The user has no line in the image's /etc/passwd; PyTorch asks for its name.
    {"name": "USER", "value": "anadil"},
    {"name": "HF_HUB_OFFLINE", "value": "1"},
    {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
    {"name": "DO_NOT_TRACK", "value": "1"},
]
LOCKED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
TOLERATIONS = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
SCRATCH_MOUNTS = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": HOME}]  # noqa: S108  of the pod
SCRATCH = [
    {"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}},
    {"name": "home", "emptyDir": {"sizeLimit": "8Gi"}},
]


def _probe(path: str, port: str | int, *, seconds: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": seconds,
        "timeoutSeconds": min(10, seconds),
        "failureThreshold": failures,
    }


def _probes(alive: str, ready: str, port: str | int) -> Object:
    return {
        "startupProbe": _probe(alive, port, seconds=10, failures=START_MINUTES * 6),
        "readinessProbe": _probe(ready, port, seconds=10, failures=3),
        "livenessProbe": _probe(alive, port, seconds=30, failures=4),
    }


def _deployment(serving: Serving) -> Object:
    labels = _labels(serving)
    volumes: list[Object] = [
        *SCRATCH,
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        _model_volume(serving),
    ]
    spec: Object = {
        "serviceAccountName": serving.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": TOLERATIONS,
        **({} if serving.claim else {"initContainers": [_bringer(serving)]}),
        "containers": [_vllm(serving)],
        "volumes": volumes,
    }
    return {
        **_head(serving, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            "progressDeadlineSeconds": 2 * 60 * START_MINUTES,
            # The new one answers before the old one goes, for which a GPU must be free.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": _origin(serving)}, "spec": spec},
        },
    }


def _model_volume(serving: Serving) -> Object:
    if serving.claim:
        return {"name": "model", "persistentVolumeClaim": {"claimName": serving.claim.name, "readOnly": True}}
    return {"name": "model", "emptyDir": {"sizeLimit": _disk(serving)}}


def _disk(serving: Serving) -> str:
    return f"{math.ceil(1.1 * serving.file_bytes / GIB) + 1}Gi"


def _bringer(serving: Serving) -> Object:
    """Brings the model from S3, each byte compared with its manifest."""
    disk = _disk(serving)
    return {
        "name": "bring-model",
        "image": serving.tools_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "anadil.release.serving.bring_model"],
        "args": [serving.uri, MODELS],
        "env": [{"name": "HOME", "value": HOME}, {"name": "ANADIL_LOG", "value": "json"}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": disk},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*SCRATCH_MOUNTS, {"name": "model", "mountPath": MODELS}],
    }


def _vllm(serving: Serving) -> Object:
    template = [f"--chat-template={MODELS}/chat_template.jinja"] if serving.has_template else []
    mount: Object = {"name": "model", "mountPath": MODELS, "readOnly": True}
    if serving.claim and serving.on_claim:
        mount["subPath"] = serving.on_claim
    return {
        "name": "vllm",
        "image": serving.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["vllm", "serve", MODELS],
        "args": [
            f"--served-model-name={serving.name}",
            f"--max-model-len={serving.context}",
            *_engine_arguments(serving),
            *template,
            "--host=0.0.0.0",
            f"--port={VLLM_PORT}",
        ],
        "env": [*ENVIRONMENT],
        "ports": [{"name": "http", "containerPort": VLLM_PORT}],
        **_probes("/health", "/health", "http"),
        "resources": _resources(serving),
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*SCRATCH_MOUNTS, {"name": "shm", "mountPath": "/dev/shm"}, mount],  # noqa: S108  of the pod
    }


def _service(serving: Serving) -> Object:
    return {
        **_head(serving, "v1", "Service"),
        "spec": {
            "selector": _labels(serving),
            "ports": [{"name": "http", "port": VLLM_PORT, "targetPort": "http"}],
        },
    }


def _inference_service(serving: Serving) -> Object:
    # KServe brings everything whose key begins so: without the slash also what lies beside the model.
    place = f"pvc://{serving.claim.name}/{serving.on_claim}" if serving.claim else f"{serving.uri}/"
    head = _head(serving, "serving.kserve.io/v1beta1", "InferenceService")
    # A Deployment of its own: Knative would refuse the pod's security settings and volumes.
    head["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": "Standard"} | _origin(serving)
    model = {
        "modelFormat": {"name": "huggingface"},
        "runtime": RUNTIME,
        "storageUri": place,
        # Without the backend, Transformers' own generation answers where the image has no vLLM.
        "args": [
            f"--model_name={serving.name}",
            "--backend=vllm",
            f"--max_model_len={serving.context}",
            *_engine_arguments(serving),
        ],
        "env": [*ENVIRONMENT],
        **_probes("/v2/health/live", "/v2/health/ready", KSERVE_PORT),
        "resources": _resources(serving),
        "securityContext": {**LOCKED, "runAsNonRoot": True},
        "volumeMounts": SCRATCH_MOUNTS,
    }
    return {
        **head,
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "maxReplicas": 1,
                "serviceAccountName": serving.account,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                # The images of KServe have users of their own, with numbers.
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "tolerations": TOLERATIONS,
                "model": model,
                "volumes": SCRATCH,
            }
        },
    }


def _network_policy(serving: Serving, kind: Kind) -> Object:
    """In come questions of the namespace and of those that are marked; out go names and S3."""
    port = KSERVE_PORT if kind == "kserve" else VLLM_PORT
    pods = {"serving.kserve.io/inferenceservice": serving.name} if kind == "kserve" else _labels(serving)
    return {
        **_head(serving, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": CLIENT}}],
                    "ports": [{"protocol": "TCP", "port": port}],
                }
            ],
            "egress": [
                {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
                {"ports": [{"protocol": "TCP", "port": 443}]},
                # EKS Pod Identity's agent on the node, which hands out credentials.
                {
                    "to": [
                        {"ipBlock": {"cidr": "169.254.170.23/32"}},
                        {"ipBlock": {"cidr": "fd00:ec2::23/128"}},
                    ],
                    "ports": [{"protocol": "TCP", "port": 80}],
                },
            ],
        },
    }
