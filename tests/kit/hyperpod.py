"""The example of a cluster, and answers of AWS about it."""

import functools
import os
from pathlib import Path
from typing import Any

import boto3
import yaml

from anadil.launch.hyperpod.config import Description
from tests.kit.aws import Fakes

EXAMPLE = Path(__file__).parents[2] / "examples" / "hyperpod" / "cluster.yaml"
SYSTEM = "fs-0123456789abcdef0"
ON_STUBS = (
    "create_data_repository_association",
    "describe_data_repository_associations",
    "create_data_repository_task",
    "describe_data_repository_tasks",
)  # Calls of FSx that moto has not.


def example() -> dict[str, Any]:
    """The example as data."""
    data: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return data


def described(**changes: Any) -> Description:
    """The example, with some keys changed."""
    return Description.model_validate({**example(), **changes})


def eks(**changes: Any) -> dict[str, Any]:
    """An EKS cluster as HyperPod needs it."""
    cluster = {
        "name": "anadil",
        "status": "ACTIVE",
        "version": "1.33",
        "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"},
        **changes,
    }
    return {"cluster": cluster}


class Mixed:
    """FSx: moto's file systems, and answers in a queue for what moto has not."""

    def __init__(self, moto: Any, stub: Any) -> None:
        self._moto = moto
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub if name in ON_STUBS else self._moto, name)

    def get_paginator(self, name: str) -> Any:
        """A paginator of whoever has the call."""
        return (self._stub if name in ON_STUBS else self._moto).get_paginator(name)


@functools.cache
def _client(service: str, endpoint: str) -> Any:
    """A client of moto's server; reading the model of EC2 takes a second."""
    return boto3.client(service, region_name="us-east-1", endpoint_url=endpoint)


class Cloud:
    """moto's server for every service, but for EKS and the links of FSx, which are stubbed."""

    def __init__(self) -> None:
        self.fakes = Fakes("eks", "fsx")
        self._clients: dict[str, Any] = {"eks": self.fakes("eks")}

    def __call__(self, service: str) -> Any:
        if service not in self._clients:
            made = _client(service, os.environ["AWS_ENDPOINT_URL"])
            self._clients[service] = Mixed(made, self.fakes("fsx")) if service == "fsx" else made
        return self._clients[service]
