"""Questions to the Kubernetes API: JSON in and out, a few seconds each, nothing tried twice."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from anadil.core.errors import PreflightError

CONNECT_S = 3.0
READ_S = 8.0
"""Longest silence inside an answer."""
IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own namespace. Source: Kubernetes, "Accessing the API from within a Pod"."""


class Unreachable(PreflightError):
    """The API gave no answer, or there is no configuration that says where it is."""


class Refused(PreflightError):
    """The API answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One cluster, seen with the rights of whoever asks."""

    client: Any
    """`kubernetes.client.ApiClient`."""
    host: str
    context: str
    """Context of the kubeconfig; `pod` inside a cluster."""
    default_namespace: str

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """The JSON of a path.

        Raises:
            Unreachable: No answer.
            Refused: An answer of 400 and above, such as 403 or 404.
        """
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def find(self, path: str) -> dict[str, Any] | None:
        """The same, or None where there is nothing."""
        try:
            return self.get(path)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the API answers to an object; only reviews are sent, which it does not keep."""
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        for setting in self.client.configuration.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        try:
            # The client's own `call_api` takes other arguments in every few releases; its pool, with
            # certificates and proxy, stays.
            answer = self.client.rest_client.pool_manager.request(
                method,
                f"{self.host}{path}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=Timeout(connect=CONNECT_S, read=READ_S),
                retries=False,
            )
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self.host}: {_short(error)}") from None
        try:
            data = json.loads(answer.data)
        except ValueError:
            data = None
        if answer.status >= 400:
            raise Refused(answer.status, _reason(answer.status, data))
        if not isinstance(data, dict):
            raise Unreachable(f"{self.host}{path}: answers, but not as the Kubernetes API does")
        return data


def connect() -> Api:
    """The cluster of the kubeconfig (KUBECONFIG, `~/.kube/config`), or the one that this pod runs in.

    Raises:
        PreflightError: The client is not installed.
        Unreachable: There is no usable configuration.
    """
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ImportError:
        raise PreflightError("the Kubernetes client is not installed: pip install 'anadil[launch]'") from None
    settings = client.Configuration()
    try:
        if IN_CLUSTER_NAMESPACE.is_file() and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=settings)
            context = "pod"
            namespace = IN_CLUSTER_NAMESPACE.read_text(encoding="ascii").strip()
        else:
            # Named, because the library looks at the variable only when it is imported.
            file = os.environ.get("KUBECONFIG")
            config.load_kube_config(file, client_configuration=settings)
            _, active = config.list_kube_config_contexts(file)
            context, namespace = active["name"], active["context"].get("namespace") or "default"
    except (config.ConfigException, YAMLError, OSError, LookupError, TypeError, ValueError) as error:
        raise Unreachable(f"no usable kubeconfig: {_short(error)}") from None
    return Api(
        client=client.ApiClient(settings), host=settings.host, context=context, default_namespace=namespace
    )


def below(namespace: str, resource: str, name: str = "", group: str = "") -> str:
    """The path of namespaced objects; `group` is such as `apps/v1`, empty for the core."""
    base = f"/apis/{group}" if group else "/api/v1"
    end = f"/{quote(name)}" if name else ""
    return f"{base}/namespaces/{quote(namespace)}/{resource}{end}"


def _reason(status: int, data: object) -> str:
    message = data.get("message") if isinstance(data, dict) else None
    return f"{status} {message or ''}".strip()


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
