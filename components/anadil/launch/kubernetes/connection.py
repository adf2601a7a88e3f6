"""Which cluster and namespace every command of ours talks to, and with whose rights."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import PreflightError
from anadil.core.install import install

# Source: Kubernetes, "Accessing the Kubernetes API from a Pod".
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open way to one cluster."""

    client: Any  # `kubernetes.client.ApiClient`, for its credentials and its pool of TLS connections.
    host: str
    context: str  # Context of the kubeconfig; empty for the cluster that this pod runs in.
    namespace: str  # Namespace of the pod, or of the kubeconfig's context.

    def headers(self) -> dict[str, str]:
        """Return credentials; an expired token is read again."""
        settings = self.client.configuration.auth_settings().values()
        return {str(each["key"]): str(each["value"]) for each in settings}

    def request(self, method: str, path: str, **more: Any) -> Any:
        """Send one HTTP request and return the `urllib3.BaseHTTPResponse`."""
        # The client's own classes took other arguments with release 36. Its configuration and its pool are the same
        # in all of them.
        pool = self.client.rest_client.pool_manager
        return pool.request(method, f"{self.host}{path}", redirect=False, **more)


def connect() -> Connection:
    """Return a connection with a pool of its own, by one rule for doctor, launcher and exit handler.

    The cluster is that of `KUBECONFIG`, also inside a pod; else that of the pod; else that of `~/.kube/config`.
    """
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ImportError:
        raise PreflightError(f"the Kubernetes client is not installed; {install('launch')}") from None
    settings = client.Configuration()
    # Passed by name: the library reads the variable only once, when it is imported.
    file = os.environ.get("KUBECONFIG") or None
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and POD_NAMESPACE.is_file()
    try:
        if in_pod and not file:
            config.load_incluster_config(client_configuration=settings)
            context, namespace = "", POD_NAMESPACE.read_text(encoding="utf-8").strip()
        else:
            config.load_kube_config(config_file=file, client_configuration=settings)
            _, active = config.list_kube_config_contexts(config_file=file)
            context, namespace = active["name"], active["context"].get("namespace") or "default"
    except (config.ConfigException, YAMLError, OSError, LookupError, TypeError, ValueError) as error:
        raise PreflightError(
            f"no cluster: {short(error)}; set KUBECONFIG, run `aws eks update-kubeconfig --name CLUSTER`, or give the "
            "pod a ServiceAccount token"
        ) from None
    host = str(settings.host).rstrip("/")
    return Connection(client=client.ApiClient(settings), host=host, context=context, namespace=namespace)


def short(error: BaseException) -> str:
    """Return an error's text in one line of 200 characters at most."""
    return " ".join(str(error).split())[:200]
