"""AWS at the border: requests against botocore's own models, answers in a fixed order."""

import functools
from collections.abc import Mapping
from typing import Any

import boto3
import botocore.session
from botocore.stub import Stubber
from botocore.validate import ParamValidator

SESSION = botocore.session.get_session()


def mistakes_of(service: str, operation: str, arguments: Mapping[str, Any]) -> str:
    """What botocore says against a request; it checks names, types and lengths."""
    shape = SESSION.get_service_model(service).operation_model(operation).input_shape
    return str(ParamValidator().validate(arguments, shape).generate_report())


ACTIVE: dict[str, Stubber] = {}


@functools.cache
def _client(service: str) -> Any:
    """One for all tests; reading the model of SageMaker takes longer than a test."""
    return boto3.client(
        service, region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing"
    )


class Fakes:
    """Clients whose answers stand in a queue; any other call than the next one is an error."""

    def __init__(self, *services: str) -> None:
        self._clients = {service: _client(service) for service in services}
        self.stubs = {service: Stubber(client) for service, client in self._clients.items()}
        for service, stub in self.stubs.items():
            if service in ACTIVE:
                ACTIVE[service].deactivate()
            ACTIVE[service] = stub
            stub.activate()

    def __call__(self, service: str) -> Any:
        return self._clients[service]

    def answer(
        self, service: str, call: str, answer: Mapping[str, Any], asked: Mapping[str, Any] | None = None
    ) -> None:
        """The next answer of a service, to these arguments where they are given."""
        self.stubs[service].add_response(call, dict(answer), None if asked is None else dict(asked))

    def refuse(self, service: str, call: str, code: str, message: str = "", status: int = 400) -> None:
        """The next answer of a service: an error."""
        self.stubs[service].add_client_error(call, code, message, http_status_code=status)

    def done(self) -> None:
        """Every answer was asked for."""
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()
