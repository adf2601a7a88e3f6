"""`helm test`: MLflow answers its API under the name that stages use, and refuses a foreign one."""

import base64
import os
import sys
import time
import urllib.error
import urllib.request

PATIENCE_S = 300
server = os.environ["MLFLOW_TRACKING_URI"].rstrip("/")
headers = {}
if "MLFLOW_TRACKING_USERNAME" in os.environ:
    login = f"{os.environ['MLFLOW_TRACKING_USERNAME']}:{os.environ['MLFLOW_TRACKING_PASSWORD']}"
    headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"


def status(**more: str) -> int:
    """What a search for experiments answers; waits while nobody answers yet."""
    address = f"{server}/api/2.0/mlflow/experiments/search?max_results=1"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            request = urllib.request.Request(address, headers=headers | more)  # noqa: S310  the chart's own
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{server}: no answer ({error}); see the MLflow pod and the network policies")
            time.sleep(3)


found = status()
if found != 200:
    sys.exit(f"{server}: status {found}; see the log of the MLflow pod (403: mlflow.allowedHosts)")
if status(Host="elsewhere.example") != 403:
    sys.exit(f"{server}: answers to any Host header; --allowed-hosts is not in force")
sys.stdout.write(f"{server}: ready\n")
