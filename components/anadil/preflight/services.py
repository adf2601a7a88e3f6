"""Check what a run on a cluster uses beside Kubernetes: images, storage, Kubeflow Pipelines, MLflow."""

import base64
import json
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.storage import BUILT_IN
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import AnadilError, PreflightError, RecipeError
from anadil.core.log import masked
from anadil.core.stages import FLOW, IMAGES
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import TENSORBOARD, WANDB, tensorboard_folder
from anadil.runtime.alerts import NoRedirect
from anadil.runtime.check import CheckResult, failed, passed, skipped
from anadil.runtime.job import earlier_place, files_key, named_files, named_side_files, recipes_of, value_of
from anadil.runtime.tracking_spool import tracker_address

KFP_VARIABLE = "KF_PIPELINES_ENDPOINT"  # Where kfp's own client looks for the server.
# First version whose server takes IAM roles of ServiceAccounts. Source: kubeflow/pipelines pull request 12512.
OLDEST_KFP = (2, 16)
TIMEOUT_S = 5.0
PROBE = b"anadil doctor was here; this object may be removed\n"


def check_images(recipe: Recipe) -> Iterator[CheckResult]:
    """Check which images are pinned by digest, and refuse names that only this machine knows."""
    images = {name: recipe.image_of(name) for name in sorted(set(IMAGES.values()))}
    if recipe.cluster.hyperpod and (bare := [image for image in images.values() if not _has_registry(image)]):
        remedy = "push them (docs/guides/cluster.md) and set cluster.image: REGISTRY/anadil/{stage}:{version}"
        yield failed("images", f"{bare[0]} names no registry, so nodes would ask docker.io", remedy)
        return
    loose = [name for name, image in images.items() if "@sha256:" not in image]
    if not loose:
        yield passed("images", f"all {len(images)} are pinned by digest")
        return
    # A tag works, but it may be moved under a run.
    rest = f"and {len(loose) - 1} more go" if len(loose) > 1 else "goes"
    remedy = "pin them in cluster.digests, so that every pod of a run holds the same program"
    yield passed("images", f"{images[loose[0]]} {rest} by tag", remedy)


def _has_registry(image: str) -> bool:
    """Source: distribution/reference: a first part with `.`, `:` or the word localhost is a host."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def check_storage(recipe: Recipe) -> Iterator[CheckResult]:
    """Write, read and remove a small object below an `s3://` root; look a directory up in the volumes."""
    root = recipe.storage.root
    if root is None:
        remedy = "set storage.root: s3://BUCKET/PREFIX, or a directory of one of cluster.volumes"
        yield failed("storage", "storage.root is not set", remedy)
    elif "://" in root:
        _write_and_remove(root)
        detail = f"an object could be written, read and removed below {root}, with your rights; pods have their own"
        yield passed("storage", detail)
    elif volume := next(
        (each for each in recipe.cluster.volumes if not each.read_only and each.holds(root)), None
    ):
        detail = f"{root} is on claim {volume.claim}; pods alone can tell whether it can be written"
        yield passed("storage", detail)
    else:
        detail = f"{root} is on none of cluster.volumes that can be written, so no pod would see it"
        yield failed("storage", detail, "use s3://, or name the claim of that directory in cluster.volumes")


def _write_and_remove(root: str) -> None:
    place = join(root, f"doctor-{uuid.uuid4().hex[:12]}")
    store = storage.store(root)
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        source = Path(folder) / "probe"
        source.mkdir()
        (source / MANIFEST).write_bytes(PROBE)
        readable = False
        try:
            store.put_directory(source, place)
            store.read(join(place, MANIFEST))
            readable = True
        finally:
            # Nothing is left behind. If reading failed, that is the cause to report, not that the removal fails too.
            with nullcontext() if readable else suppress(AnadilError):
                store.remove_directory(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """Answer of a server; status 0 where there was none."""

    status: int
    text: str

    def json(self) -> dict[str, Any]:
        """Return the table in it; an empty one where it holds something else."""
        try:
            data = json.loads(self.text)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


def http_get(url: str, headers: Mapping[str, str]) -> HttpReply:
    """Send one GET by http or https."""
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError as error:
        return HttpReply(status=0, text=f"no web address ({error})")
    if scheme not in ("http", "https"):
        return HttpReply(status=0, text=f"{scheme}:// is no web address")
    # A redirect is an answer too: it leads to a login page.
    opener = urllib.request.build_opener(NoRedirect)
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310  # the scheme is checked above
    try:
        with opener.open(request, timeout=TIMEOUT_S) as reply:
            return HttpReply(status=reply.status, text=reply.read(65_536).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            return HttpReply(status=error.code, text=error.read(65_536).decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError, ValueError) as error:
        return HttpReply(status=0, text=str(getattr(error, "reason", error)))


def check_kubeflow(host: str | None) -> Iterator[CheckResult]:
    """Check that Kubeflow Pipelines answers, and is new enough."""
    name = "kubeflow pipelines"
    host = (host or os.environ.get(KFP_VARIABLE, "")).rstrip("/")
    if not host:
        remedy = f"give --kubeflow-host or set {KFP_VARIABLE}, such as http://localhost:8080 with kubectl port-forward"
        yield skipped(name, "no address is given", remedy)
        return
    host = host if "://" in host else f"http://{host}"
    answer = http_get(f"{host}/apis/v2beta1/healthz", {})
    shown = masked(host)
    if answer.status == 0:
        remedy = "kubectl -n kubeflow port-forward service/ml-pipeline-ui 8080:80, then http://localhost:8080"
        yield failed(name, f"{shown}: {answer.text}", remedy)
    elif answer.status in (301, 302, 303, 307, 308, 401, 403):
        remedy = "it wants a login: use a port-forward, or the address inside the cluster"
        yield failed(name, f"{shown} answers {answer.status}", remedy)
    elif answer.status != 200 or not answer.json():
        remedy = "give the address of Kubeflow Pipelines 2, without a path of its pages"
        yield failed(name, f"{shown} answers {answer.status} without its health", remedy)
    else:
        yield _kubeflow_version(name, shown, answer.json())


def _kubeflow_version(name: str, host: str, health: dict[str, Any]) -> CheckResult:
    # The API server says tag_name, the server of the pages apiServerTagName.
    tag = str(health.get("apiServerTagName") or health.get("tag_name") or "unknown")
    match = re.match(r"v?(\d+)\.(\d+)", tag)
    if match is None:
        detail = f"{host} answers; it does not tell its version ({tag})"
        return passed(name, detail, "see that it is 2.16 or newer")
    version = (int(match[1]), int(match[2]))
    if version < OLDEST_KFP:
        remedy = "upgrade to 2.16 or newer: older servers do not read S3 with the role of a ServiceAccount"
        return failed(name, f"{host} runs {tag}", remedy)
    return passed(name, f"{host} runs {tag}")


def check_mlflow(recipe: Recipe) -> Iterator[CheckResult]:
    """Check that the tracking server answers, also by the name by which it is called."""
    uri = tracker_address(recipe, default="off")
    if uri is None or uri == "off":
        yield skipped("mlflow", "no tracking server is set")
        return
    if not uri.startswith(("http://", "https://")):
        yield _pods_tracker(recipe, uri)
        return
    base, headers = _without_password(uri.rstrip("/"))
    if http_get(f"{base}/health", headers).status == 0:
        # Runs do without: what cannot be sent is kept and sent later.
        remedy = "start it, or check from inside the cluster if this name is known only there"
        yield skipped("mlflow", f"{base} does not answer from here", remedy)
        return
    # /health answers under any name; the API does not.
    answer = http_get(f"{base}/api/2.0/mlflow/experiments/search?max_results=1", headers)
    if answer.status == 403 and "host header" in answer.text.lower():
        name = urllib.parse.urlsplit(base).netloc
        remedy = f"start it with --allowed-hosts '{name}' (or MLFLOW_SERVER_ALLOWED_HOSTS)"
        detail = f"{base} is healthy, but refuses calls by the name {name} (Invalid Host header)"
        yield failed("mlflow", detail, remedy)
    elif answer.status in (401, 403):
        remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (pods: cluster.secrets)"
        yield failed("mlflow", f"{base} answers {answer.status}", remedy)
    elif answer.status != 200:
        detail = f"{base} answers {answer.status} to a search of experiments"
        yield failed("mlflow", detail, "see its log; is this the address of MLflow 3?")
    else:
        yield passed("mlflow", f"{base} answers")


def warn_of_tracker(recipe: Recipe) -> Iterator[CheckResult]:
    """Warn of a tracker that no pod reaches, without a call. A pod may get a login that no recipe names."""
    uri = recipe.tracking.uri or "off"
    if uri == "off" or uri.startswith(("http://", "https://")):
        return
    result = _pods_tracker(recipe, uri)
    if result.status == "failed":
        yield skipped(result.name, result.detail, result.remedy)


def _pods_tracker(recipe: Recipe, uri: str) -> CheckResult:
    scheme = uri.partition(":")[0].lower()
    if scheme == WANDB:
        given = {key: secret for secret, keys in recipe.cluster.secrets.items() for key in keys}
        # Without a login a pod keeps its lines, which end with it. With WANDB_MODE it is said what becomes of them.
        if secret := given.get("WANDB_API_KEY") or given.get("WANDB_MODE"):
            return passed("wandb", f"{uri}: pods have the login of the Secret {secret}")
        remedy = "name a Secret that holds WANDB_API_KEY: cluster.secrets: {wandb: [WANDB_API_KEY]}"
        return failed("wandb", f"{uri}: pods have no login of W&B, so nothing would arrive", remedy)
    if scheme == TENSORBOARD:
        folder = tensorboard_folder(uri)
        claims = [each for each in recipe.cluster.volumes if not each.read_only and each.holds(folder)]
        if claims:
            return passed("tensorboard", f"{folder} is on claim {claims[0].claim}")
        remedy = (
            "name the claim of that directory in cluster.volumes, or set tracking.uri: http://mlflow:5000"
        )
        return failed("tensorboard", f"{uri}: pods do not share a directory", remedy)
    if scheme.startswith("sqlite"):
        remedy = "set tracking.uri: http://mlflow:5000 or the like"
        return failed("mlflow", f"{masked(uri)}: pods do not share a database file", remedy)
    return skipped("mlflow", f"{masked(uri)} is asked by pods alone")


def _without_password(uri: str) -> tuple[str, dict[str, str]]:
    """Return the address without user and password, and the headers that stand for them."""
    parts = urllib.parse.urlsplit(uri)
    user = parts.username or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = parts.password or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    host = parts.netloc.rpartition("@")[2]
    base = urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))
    if user:
        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        return base, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return base, ({"Authorization": f"Bearer {token}"} if token else {})


def check_reach(recipe: Recipe) -> None:
    """Refuse a recipe with places that exist on one machine only."""
    models: dict[str, tuple[str, ...]] = {"base.model": (recipe.base.model,)}
    # The key of its models is a property of the section, which is what a user writes.
    named = (stage.models for stage in FLOW if stage.models)
    models |= {key.partition(".")[0]: value_of(recipe, key) or () for key in named}
    places = {
        "storage.root": (recipe.storage.root or "",),
        **{
            files_key(stage, part): named_files(stage, part)
            for stage in FLOW
            if stage.files.key
            for part in recipes_of(stage, recipe)
        },
        **{key: names for stage in FLOW for key, names in named_side_files(stage, recipe).items()},
        **{
            key: tuple(each for each in named if each.startswith(("/", ".", "~")) or Path(each).is_dir())
            for key, named in models.items()
        },
        **{key: (place,) for stage in FLOW for key, place in earlier_place(stage, recipe).items()},
    }
    mistakes = [
        f"  {key}: {value or 'not set'}"
        for key, values in places.items()
        for value in values
        if "://" not in value
        and not (value.startswith(BUILT_IN) and key != "storage.root")
        and not any(volume.holds(value) for volume in recipe.cluster.volumes)
    ]
    if mistakes:
        raise RecipeError(
            "no step on the cluster would see\n" + "\n".join(mistakes) + "\n"
            "  put it on s3://, or on a claim of cluster.volumes, such as "
            "cluster.volumes=[{claim: fsx, path: /fsx}]"
        )


def check_shared(
    recipe: Recipe, target: str, backend: str, stage: str = "pretrain", nodes: int | None = None
) -> None:
    """Refuse a stage whose machines would save into one directory that they do not share.

    The target is the artifact's URI or the root above it; machines of `finetune` always save together.
    """
    nodes, parallel = nodes or recipe.cluster.nodes, recipe.pretrain.parallelism
    degrees = {name: getattr(parallel, name) for name in ("shard", "tensor", "context", "pipeline")}
    needed = [f"pretrain.parallelism.{name}={degree}" for name, degree in degrees.items() if degree > 1]
    if recipe.pretrain.copies.archive:
        needed.append("pretrain.copies.archive")
    if stage == "finetune":
        needed = [f"finetune.batch_size={recipe.finetune.batch_size}"]
    if backend == "local" or nodes == 1 or not needed or "://" not in target:
        return
    keys = ", ".join(needed)
    if backend == "sagemaker":
        raise PreflightError(
            f"cluster.backend: sagemaker gives each of the {nodes} machines (cluster.nodes) a checkpoint directory "
            f"of its own, but {stage} needs one that all machines see ({keys}); set cluster.nodes=1, or "
            "cluster.backend=pytorchjob, or leave those keys out"
        )
    if recipe.cluster.work is None:
        raise PreflightError(
            f"cluster.work: not set, and beside {target} each of the {nodes} machines (cluster.nodes) would keep "
            f"checkpoints in its own pod, but {stage} needs a directory that all machines see ({keys}); put "
            "cluster.work on a volume that they all mount, such as cluster.volumes=[{claim: fsx, path: /fsx}] and "
            "cluster.work=/fsx/work"
        )
