"""Answers of the Kubernetes API as errors of ours with their remedies."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import AnadilError, PreflightError, RetryableError

USER_IN_MESSAGE = re.compile(r'User "([^"]+)"')
MAX_CHARS = 600
AGAIN = "; run the same command again, which finds the job"
"""The end of an error of an API that is away; whoever waits for it leaves this out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of the API."""

    verb: str
    resource: str
    """Plural, with the subresource: `pods/log`."""
    group: str = ""
    """API group; empty for the core."""
    namespace: str
    name: str = ""
    operator: str = ""
    """The operator that brings the resource, where it is not part of Kubernetes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """An answer of 400 and above."""

    status: int
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    """The object of the answer, where the API server itself speaks."""

    def is_about(self, call: ApiCall) -> bool:
        """True if the object itself was not found, not its kind or namespace."""
        return self.details.get("name") == call.name and self.details.get("kind") != "namespaces"


def error_response(status: int, body: bytes) -> ErrorResponse:
    """Read an error answer; proxies in front of the API server speak no JSON."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    plain = {"message": body[:MAX_CHARS].decode(errors="replace")}
    fields: dict[str, Any] = parsed if isinstance(parsed, dict) else plain
    details: dict[str, Any] = fields.get("details") or {}
    return ErrorResponse(
        status=status,
        message=" ".join(str(fields.get("message") or "").split())[:MAX_CHARS],
        details=details,
    )


def error_from_response(call: ApiCall, answer: ErrorResponse) -> AnadilError:
    """The error that an answer is; the rule or the object that is missing, by name."""
    where = f"namespace {call.namespace}"
    if answer.status == 401:
        return PreflightError(
            "the cluster does not know who asks (401): the token has run out or belongs to another cluster; sign in "
            "again, such as with `aws eks update-kubeconfig --name CLUSTER`"
        )
    if answer.status == 403 and " cannot " in answer.message:
        match = USER_IN_MESSAGE.search(answer.message)
        return PreflightError(
            f"{match[1] if match else 'whoever asks'} may not {call.verb} {call.resource} in {where}; add this rule "
            f"to a Role that is bound to it: {rule(call)}"
        )
    if answer.status == 404 and answer.details.get("kind") == "namespaces":
        return PreflightError(f"{where}: not there; create it or correct cluster.namespace")
    if answer.status == 404 and call.operator:
        return PreflightError(
            f"the cluster has no {call.resource}.{call.group}; install {call.operator}, or choose another "
            "cluster.backend"
        )
    if answer.status in (400, 403, 413, 422):
        return PreflightError(
            f"{call.verb} {call.resource} {call.name} in {where}: refused ({answer.status}): {answer.message}; "
            "see it with `anadil launch --dry-run`"
        )
    return RetryableError(
        f"{call.verb} {call.resource} in {where}: the Kubernetes API answers {answer.status} {answer.message}{AGAIN}"
    )


def rule(call: ApiCall) -> str:
    """The line of a Role that allows a call."""
    return json.dumps({"apiGroups": [call.group], "resources": [call.resource], "verbs": [call.verb]})
