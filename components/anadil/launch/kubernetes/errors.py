"""Error answers and outages of the Kubernetes API as errors of ours with their remedies."""

import json
import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import AnadilError, PreflightError, RetryableError

log = logging.getLogger(__name__)

USER_IN_MESSAGE = re.compile(r'User "([^"]+)"')
MAX_CHARS = 600
AGAIN = "; run the same command again, which finds the job"  # Whoever waits for the API leaves this out.
API_S = 1_800.0  # An upgrade of a control plane takes some minutes. Assumption.


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of the API."""

    verb: str
    resource: str  # Plural, with the subresource: `pods/log`.
    group: str = ""  # API group; empty for the core.
    namespace: str
    name: str = ""
    operator: str = ""  # The operator that brings the resource, where it is not part of Kubernetes.


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
    """Read an error answer; proxies in front of the API server do not answer JSON."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    plain = {"message": body[:MAX_CHARS].decode(errors="replace")}
    fields: dict[str, Any] = parsed if isinstance(parsed, dict) else plain
    message = " ".join(str(fields.get("message") or "").split())[:MAX_CHARS]
    return ErrorResponse(status=status, message=message, details=fields.get("details") or {})


def error_from_response(call: ApiCall, answer: ErrorResponse) -> AnadilError:
    """Return the error that an answer stands for; it names the missing rule or object."""
    where = f"namespace {call.namespace}"
    if answer.status == 401:
        return PreflightError(
            "the cluster does not know who asks (401): the token has run out or belongs to another cluster; sign in "
            "again, such as with `aws eks update-kubeconfig --name CLUSTER`"
        )
    if answer.status == 403 and " cannot " in answer.message:
        match = USER_IN_MESSAGE.search(answer.message)
        rule = {"apiGroups": [call.group], "resources": [call.resource], "verbs": [call.verb]}
        return PreflightError(
            f"{match[1] if match else 'whoever asks'} may not {call.verb} {call.resource} in {where}; add this rule "
            f"to a Role that is bound to it: {json.dumps(rule)}"
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


class Outage:
    """The time since the API's last answer, for whoever follows an object."""

    def __init__(self, limit_s: float = API_S) -> None:
        """Begin to count; `limit_s` is the longest time without an answer."""
        self._limit_s = limit_s
        self._answered_s = time.monotonic()
        self.has_answered = False  # True if the API has ever answered.
        self._reported = ""

    def end(self) -> None:
        """Note an answer."""
        self._answered_s = time.monotonic()
        self.has_answered = True
        self._reported = ""

    def bear(self, what: str, error: AnadilError, remedy: str) -> None:
        """Log once that an object cannot be seen."""
        # A good right, token or certificate is refused while an API server restarts, so a refusal after the first
        # answer is borne like silence.
        refused, text = isinstance(error, PreflightError), str(error).removesuffix(AGAIN)
        if (refused and not self.has_answered) or time.monotonic() - self._answered_s > self._limit_s:
            raise error if refused else RetryableError(f"{what}: {text}; {remedy}")
        if text != self._reported:
            log.warning("%s runs on, but cannot be seen: %s", what, text)
            self._reported = text
