"""Reachability of an MLflow address, tested within a bounded time and without MLflow's client."""

import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

SAGEMAKER = "https://{region}.experiments.sagemaker.aws"
"""Where SageMaker's managed MLflow answers. Source: sagemaker-mlflow 0.5, SageMakerMLflowHostMetadataProvider."""
SAGEMAKER_VARIABLE = "SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT"
"""Names another place; the plugin's own."""
QUESTION = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=anadil"
"""Path that is asked: it needs the database, behind a gateway that answers by itself too."""
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def answers(uri: str, within_s: float) -> bool:
    """Return whether a server answers within some seconds; True for a file."""
    # A thread, because the resolver of host names knows no time limit, and neither does a server that answers a byte now
    # and then.
    answers_seen: list[bool] = []
    thread = threading.Thread(target=lambda: answers_seen.append(_answers(uri, within_s)), daemon=True)
    thread.start()
    thread.join(within_s)
    return bool(answers_seen and answers_seen[0])


def _answers(uri: str, within_s: float) -> bool:
    scheme = uri.partition(":")[0].partition("+")[0].lower()
    try:
        if scheme in PORTS:
            parts = urlsplit(uri)
            if parts.hostname:
                socket.create_connection((parts.hostname, parts.port or PORTS[scheme]), within_s).close()
            return True
        if scheme in ("http", "https", "arn"):
            urllib.request.urlopen(_request(uri), timeout=within_s).close()  # noqa: S310  scheme is checked
        return True
    except urllib.error.HTTPError:
        return True  # it refuses, and so it answers
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # whom to trust is decided by MLflow's client
    except (OSError, ValueError):
        return False


def _request(uri: str) -> urllib.request.Request:
    """A question without credentials: what answers it matters, not what it answers."""
    if uri.startswith("arn:"):
        region = (uri.split(":") + [""] * 4)[3]
        uri = os.environ.get(SAGEMAKER_VARIABLE) or SAGEMAKER.format(region=region)
    parts = urlsplit(uri)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return urllib.request.Request(bare.geturl().rstrip("/") + QUESTION)  # noqa: S310  scheme is checked
