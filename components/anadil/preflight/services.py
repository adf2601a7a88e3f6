"""Kubeflow Pipelines and MLflow: whether they answer, in a version and a setting that work."""

import base64
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anadil.core.log import masked
from anadil.preflight.check import CheckResult, failed, passed, skipped
from anadil.recipe.sections import Recipe
from anadil.runtime.mlflow_spool import tracking_uri

KFP_VARIABLE = "KF_PIPELINES_ENDPOINT"  # Where kfp's own client looks for the server.
OLDEST_KFP = (2, 16)
"""First version whose server takes IAM roles of ServiceAccounts. Source: kubeflow/pipelines pull request 12512."""
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """Answer of a server; status 0 where there was none."""

    status: int
    text: str

    def json(self) -> dict[str, Any]:
        """The table in it; an empty one where it holds something else."""
        try:
            data = json.loads(self.text)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer too: it leads to a login page."""


def http_get(url: str, headers: Mapping[str, str]) -> HttpReply:
    """One GET; only http and https are spoken."""
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError as error:
        return HttpReply(status=0, text=f"no web address ({error})")
    if scheme not in ("http", "https"):
        return HttpReply(status=0, text=f"{scheme}:// is no web address")
    opener = urllib.request.build_opener(_NoRedirect)
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
    uri = tracking_uri(recipe, default="off")
    if uri is None or uri == "off":
        yield skipped("mlflow", "no tracking server is set")
        return
    if not uri.startswith(("http://", "https://")):
        remedy = "set tracking.uri: http://mlflow:5000 or the like"
        detail = f"{masked(uri)}: pods do not share a database file"
        yield failed("mlflow", detail, remedy)
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
        remedy = "see its log; is this the address of MLflow 3?"
        detail = f"{base} answers {answer.status} to a search of experiments"
        yield failed("mlflow", detail, remedy)
    else:
        yield passed("mlflow", f"{base} answers")


def _without_password(uri: str) -> tuple[str, dict[str, str]]:
    """The address without user and password, and the headers that stand for them."""
    parts = urllib.parse.urlsplit(uri)
    user = parts.username or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = parts.password or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    host = parts.netloc.rpartition("@")[2]
    base = urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))
    if user:
        pair = base64.b64encode(
            f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}".encode()
        ).decode()
        return base, {"Authorization": f"Basic {pair}"}
    return base, ({"Authorization": f"Bearer {token}"} if token else {})
