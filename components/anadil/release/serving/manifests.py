"""Kubernetes objects that serve a model: KServe's InferenceService, or vLLM as a Deployment with its Service.

Both speak OpenAI's protocol, run without rights and write to their scratch volumes only. There is no server of ours.
`objects.yaml` has the objects; manifests/serving is made from them, and a test compares the chart with them.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.core.format import GIB
from anadil.release.serving.served_model import MEMORY_SHARE

Kind = Literal["kserve", "vllm"]
Object = dict[str, Any]

TEMPLATES = Path(__file__).with_name("objects.yaml")
VLLM_IMAGE = "vllm/vllm-openai:v0.33.0"
# Name of an InferenceService; its objects append `-predictor` and more.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# Name of a namespace, strict enough for claims and accounts. Source: Kubernetes, RFC 1123 label names.
OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OBJECTS: Mapping[Kind, tuple[str, ...]] = {"kserve": ("InferenceService",), "vllm": ("Deployment", "Service")}
"""Kind of server -> its objects, beside account and network policy."""
PROBES: Mapping[Kind, Mapping[str, object]] = {
    "kserve": {"port": 8080, "probed": 8080, "alive": "/v2/health/live", "ready": "/v2/health/ready"},
    "vllm": {"port": 8000, "probed": "http", "alive": "/health", "ready": "/health"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim that holds the model, and where recipes mount it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A served model and its resources."""

    name: str
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
                f"--name {self.name!r}: is not a name of an InferenceService; use up to 40 lowercase letters, digits and `-`, "
                "beginning with a letter and not ending in `-`"
            )
        others = {
            "--claim": self.claim.name if self.claim else "",
            "--service-account": self.service_account,
            "--namespace": self.namespace,
        }
        for option, value in others.items():
            if value and not all(map(OBJECT.fullmatch, value.split("."))):
                raise RecipeError(
                    f"{option} {value!r}: is not a name of a Kubernetes object; use lowercase letters, digits and `-`"
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
    accounts = () if serving.service_account else ("ServiceAccount",)
    values = _values(serving, kind)
    made = [_filled(_templates()[name], values) for name in (*accounts, *OBJECTS[kind], "NetworkPolicy")]
    if serving.claim and kind == "vllm":
        deployment = next(each for each in made if each["kind"] == "Deployment")
        del deployment["spec"]["template"]["spec"]["initContainers"]  # nothing to bring
    return made


@cache
def _templates() -> Mapping[str, Any]:
    templates: Mapping[str, Any] = yaml.safe_load(TEMPLATES.read_text(encoding="utf-8"))
    return templates


def _values(serving: Serving, kind: Kind) -> dict[str, object]:
    """Values of the `$names` in `objects.yaml`; None drops what holds it."""
    claim, disk = serving.claim, f"{math.ceil(1.1 * serving.file_bytes / GIB) + 1}Gi"
    on_claim = serving.on_claim if claim else ""
    labels = _templates()["labels"] | {"app.kubernetes.io/instance": serving.name}
    return {
        **PROBES[kind],
        "name": serving.name,
        "namespace": serving.namespace or None,
        "account": serving.account,
        "uri": serving.uri,
        "digest": serving.digest or None,
        "context": serving.context,
        "dtype": serving.dtype,
        "memory_share": f"{MEMORY_SHARE:g}",
        "cpu": str(2 + 2 * serving.gpus),
        # Weights pass through main memory, and /dev/shm counts as memory.
        "memory": f"{math.ceil(serving.weight_bytes / GIB) + 16}Gi",
        "gpus": str(serving.gpus),
        "image": serving.image,
        "tools_image": serving.tools_image,
        "chat_template": "--chat-template=/models/chat_template.jinja" if serving.has_template else None,
        "disk": disk,
        "claim": {"claimName": claim.name, "readOnly": True} if claim else None,
        "scratch": None if claim else {"sizeLimit": disk},
        "sub_path": on_claim or None,
        # KServe brings every key with this prefix: without the slash also what lies beside the model.
        "storage_uri": f"pvc://{claim.name}/{on_claim}" if claim else f"{serving.uri}/",
        "pods": {"serving.kserve.io/inferenceservice": serving.name} if kind == "kserve" else labels,
    }


def _filled(node: Any, values: Mapping[str, object]) -> Any:
    """A copy of a template with its values; entries without a value are dropped."""
    if isinstance(node, dict):
        entries = {key: _filled(value, values) for key, value in node.items()}
        return {key: value for key, value in entries.items() if value is not None}
    if isinstance(node, list):
        return [value for each in node if (value := _filled(each, values)) is not None]
    if not isinstance(node, str):
        return node
    # A scalar that is one name keeps the value's type. Values are filled in after parsing, so none can add YAML.
    return values[node[1:]] if node.startswith("$") else Template(node).substitute(values)
