"""Where the cluster is and who asks: from the pod that we run in, or from a kubeconfig."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import PreflightError

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Source: Kubernetes, "Accessing the Kubernetes API from a Pod"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open way to one cluster."""

    client: Any
    """`kubernetes.client.ApiClient`, for its credentials and its pool of TLS connections."""
    host: str
    namespace: str
    """Of the pod, or of the kubeconfig's context."""

    def headers(self) -> dict[str, str]:
        """Who asks; a token that has run out is read anew."""
        settings = self.client.configuration.auth_settings().values()
        return {str(each["key"]): str(each["value"]) for each in settings}

    def request(self, method: str, path: str, **more: Any) -> Any:
        """One HTTP request, tried once; `urllib3.BaseHTTPResponse`.

        The client's own classes took other arguments with release 36; its configuration and
        its pool are the same in all of them.
        """
        pool = self.client.rest_client.pool_manager
        return pool.request(method, f"{self.host}{path}", retries=False, **more)


def connect() -> Connection:
    """A connection with a pool of its own.

    Raises:
        PreflightError: The client is not installed, or nothing says where the cluster is.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise PreflightError(
            "the Kubernetes client is not installed; run pip install 'anadil[launch]'"
        ) from None
    settings = client.Configuration()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and POD_NAMESPACE.is_file()
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=settings)
            namespace = POD_NAMESPACE.read_text(encoding="utf-8").strip()
        else:
            # The client itself looks at the variable only once, when it is imported.
            file = os.environ.get("KUBECONFIG") or None
            config.load_kube_config(config_file=file, client_configuration=settings)
            _, context = config.list_kube_config_contexts(config_file=file)
            namespace = context["context"].get("namespace") or "default"
    except (config.ConfigException, OSError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PreflightError(
            f"no cluster: {reason}; set KUBECONFIG, run `aws eks update-kubeconfig --name CLUSTER`, or give the pod "
            "a ServiceAccount token"
        ) from None
    return Connection(
        client=client.ApiClient(settings), host=str(settings.host).rstrip("/"), namespace=namespace
    )


def own_namespace() -> str | None:
    """Namespace of the pod that we run in; None outside a cluster."""
    return POD_NAMESPACE.read_text(encoding="utf-8").strip() if POD_NAMESPACE.is_file() else None
