"""Client of the Kubernetes API: JSON in and out, time limits, retries, errors of ours."""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.core.install import install
from anadil.launch.job import ApiObject, JobKind
from anadil.launch.kubernetes.pods import Worker, read_workers

log = logging.getLogger(__name__)

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
MERGE_PATCH = "application/merge-patch+json"
PIECE_BYTES = 65_536
USER_IN_MESSAGE = re.compile(r'User "([^"]+)"')
MAX_CHARS = 600
AGAIN = "; run the same command again, which finds the job"  # Whoever waits for the API leaves this out.
API_S = 1_800.0  # An upgrade of a control plane takes some minutes. Assumption.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of the API."""

    verb: str
    resource: str  # Plural, with the subresource: `pods/log`.
    group: str = ""  # API group; empty for the core.
    namespace: str
    name: str = ""
    operator: str = ""  # The operator that brings the resource, where it is not part of Kubernetes.


class Refused(PreflightError):
    """An answer of 400 and above, as the API words it; proxies in front of it do not answer JSON."""

    def __init__(self, status: int, body: bytes) -> None:
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        plain = {"message": body[:MAX_CHARS].decode(errors="replace")}
        fields: dict[str, Any] = parsed if isinstance(parsed, dict) else plain
        self.status = status
        self.message = " ".join(str(fields.get("message") or "").split())[:MAX_CHARS]
        self.details: dict[str, Any] = fields.get("details") or {}
        """The object of the answer, where the API server itself speaks."""
        super().__init__(f"{status} {self.message}".strip())


def error_from_response(call: ApiCall, answer: Refused) -> AnadilError:
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
        self._limit_s = limit_s
        self._answered_s = time.monotonic()
        self.has_answered = False  # True if the API has ever answered.
        self._reported = ""

    def end(self) -> None:
        """Note an answer."""
        self._answered_s = time.monotonic()
        self.has_answered = True
        self._reported = ""

    def bear(
        self, what: str, error: AnadilError, remedy: str, state: str = "runs on, but cannot be seen"
    ) -> None:
        """Log once that the API does not answer, and what that means; raise the error after the limit."""
        # A good right, token or certificate is refused while an API server restarts, so a refusal after the first
        # answer is borne like silence.
        refused, text = isinstance(error, PreflightError), str(error).removesuffix(AGAIN)
        if (refused and not self.has_answered) or time.monotonic() - self._answered_s > self._limit_s:
            raise error if refused else RetryableError(f"{what}: {text}; {remedy}")
        if text != self._reported:
            log.warning("%s %s: %s", what, state, text)
            self._reported = text


def is_untrusted(error: BaseException) -> bool:
    """Return whether the API's certificate was refused."""
    from urllib3.exceptions import SSLError

    return isinstance(error, SSLError) and "CERTIFICATE" in str(error).upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts and time limits of a call."""

    attempts: int = 5
    pause_s: float = 1.0  # Before the second attempt; doubled with each.
    longest_pause_s: float = 30.0  # Also where the server asks for more.
    connect_s: float = 5.0
    read_s: float = 30.0  # Longest silence inside an answer; the client's own default is to wait for ever.

    def retries(self) -> Any:
        """Return the attempts as a `urllib3.Retry`."""
        from urllib3 import Retry

        longest_s = self.longest_pause_s

        class Limited(Retry):
            def increment(self, *arguments: Any, **more: Any) -> "Limited":
                if more.get("error") is not None and is_untrusted(more["error"]):
                    raise more["error"]  # a certificate that is not trusted stays so
                return super().increment(*arguments, **more)

            def get_retry_after(self, response: Any) -> float | None:
                seconds = super().get_retry_after(response)
                return None if seconds is None else min(seconds, longest_s)

        # A POST is tried again too: jobs have names, and a second creation answers 409. Jitter, so that launchers do
        # not come back at the same moment.
        return Limited(
            total=self.attempts - 1, allowed_methods=None, status_forcelist=RETRIED, raise_on_status=False,
            backoff_factor=self.pause_s / 2, backoff_max=longest_s, backoff_jitter=self.pause_s / 2,
        )  # fmt: skip


# For what has to be done within the second that a terminated step has.
ONCE = RetryPolicy(attempts=1, connect_s=1.0, read_s=1.5)


class NotReady(RetryableError):
    """The log of a container that has not started, or is gone."""


class LogStream:
    """The log of a container in pieces, as they come."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.pieces: Iterator[bytes] = answer.stream(PIECE_BYTES, decode_content=False)

    def interrupt(self) -> None:
        """Let a thread stop reading before the next piece comes."""
        # urllib3 before 2.3 cannot; then the thread stops waiting when its silence is too long.
        if hasattr(self._answer, "shutdown"):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                self._answer.shutdown()


class Api:
    """One namespace of one cluster, seen with the rights of whoever asks."""

    def __init__(self, namespace: str | None = None, retry_policy: RetryPolicy | None = None) -> None:
        self.connection = connect()
        self.namespace = namespace or self.connection.namespace
        self.retry_policy = retry_policy or RetryPolicy()

    @property
    def is_in_own_namespace(self) -> bool:
        """True if the namespace is that of the pod that we run in."""
        return not self.connection.context and self.namespace == self.connection.namespace

    def read(self, path: str, **query: str) -> ApiObject:
        """Return the object or list of a path."""
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    def find(self, path: str) -> ApiObject | None:
        """Return the object of a path, or None where there is none."""
        try:
            return self.read(path)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def review(self, path: str, body: ApiObject) -> ApiObject:
        """Return the answer to a review, which the API does not keep."""
        return self._call("POST", path, body)

    def core_path(self, resource: str, name: str = "") -> str:
        """Return the path of an object of Kubernetes itself in this namespace; without a name, of all of them."""
        path = f"/api/v1/namespaces/{quote(self.namespace)}/{resource}"
        return f"{path}/{quote(name)}" if name else path

    def pod(self, name: str) -> ApiObject | None:
        """Return a pod, or None where there is none of the name."""
        call = ApiCall(verb="get", resource="pods", namespace=self.namespace, name=name)
        return self._unless((404,), "GET", self.core_path("pods", name), call)

    def own_pod(self, name: str, loss: str) -> ApiObject:
        """Return the pod of this process; empty outside its namespace, and with the warning `loss` where it is not read."""
        # An owner in another namespace or cluster counts as absent, and what it owns would be collected at once.
        if not name or not self.is_in_own_namespace:
            return {}
        try:
            return self.pod(name) or {}
        except AnadilError as error:
            log.warning("%s: %s", loss, error)
            return {}

    def events(self, name: str, uid: str) -> list[ApiObject]:
        """Return the events of an object, oldest first; not those of one that had its name before."""
        selector = {"fieldSelector": f"involvedObject.name={name},involvedObject.uid={uid}"}
        call = ApiCall(verb="list", resource="events", namespace=self.namespace)
        events = self._items(f"{self.core_path('events')}?{urlencode(selector)}", call)
        return sorted(events, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))

    def _items(self, path: str, call: ApiCall) -> list[ApiObject]:
        items: list[ApiObject] = (self._unless((), "GET", path, call) or {}).get("items") or []
        return items

    def _unless(
        self, nothing: tuple[int, ...], method: str, path: str, call: ApiCall, body: ApiObject | None = None
    ) -> ApiObject | None:
        """Return the answer; None where its status is one of `nothing` and about the object itself."""
        try:
            return self._call(method, path, body)
        except Refused as answer:
            # A 404 may also be of its kind or its namespace.
            is_own = answer.details.get("name") == call.name and answer.details.get("kind") != "namespaces"
            if answer.status in nothing and (answer.status != 404 or is_own):
                return None
            raise error_from_response(call, answer) from None

    def _call(self, method: str, path: str, body: ApiObject | None = None) -> ApiObject:
        try:
            return self._send(method, path, body)
        except Refused as error:
            if error.status != 401 or self.retry_policy.attempts == 1:
                raise
        self.connection = connect()  # a token may have been replaced
        return self._send(method, path, body)

    def _send(self, method: str, path: str, body: ApiObject | None) -> ApiObject:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError, MaxRetryError

        headers = {"Accept": "application/json", **self.connection.headers()}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        timeout = Timeout(connect=self.retry_policy.connect_s, read=self.retry_policy.read_s)
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self.connection.request(
                method, path, body=content, headers=headers, timeout=timeout, retries=self.retry_policy.retries(),
            )  # fmt: skip
            if answer.status >= 300:
                raise Refused(answer.status, answer.data)
            result = json.loads(answer.data)
        except (HTTPError, OSError, ValueError) as error:
            reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
            if is_untrusted(reason):
                raise PreflightError(
                    f"{self.connection.host}: its certificate is not trusted ({short(reason)}); correct "
                    "certificate-authority-data in the kubeconfig, or this machine's clock"
                ) from None
            raise self._away(reason) from None
        if not isinstance(result, dict):
            raise self._away(ValueError("answers no object"))
        return result

    def _away(self, error: Exception) -> RetryableError:
        text = f"{self.connection.host}: the Kubernetes API does not answer ({short(error)}){AGAIN}"
        return RetryableError(text)


class JobApi(Api):
    """The jobs of one kind, their pods and logs."""

    def __init__(
        self, kind: JobKind, namespace: str | None = None, retry_policy: RetryPolicy | None = None
    ) -> None:
        super().__init__(namespace, retry_policy)
        self.kind = kind
        self._path = f"/apis/{kind.group}/{kind.version}/namespaces/{quote(self.namespace)}/{kind.plural}"

    def apart(self) -> "JobApi":
        """Return the same namespace through connections of its own."""
        return JobApi(self.kind, self.namespace, self.retry_policy)

    def get(self, name: str) -> ApiObject | None:
        """Return a job, or None where there is none of the name."""
        return self._unless((404,), "GET", f"{self._path}/{quote(name)}", self._about("get", name))

    def jobs(self, selector: str) -> list[ApiObject]:
        """Return jobs with these labels."""
        return self._items(f"{self._path}?{urlencode({'labelSelector': selector})}", self._about("list"))

    def create(self, body: ApiObject) -> ApiObject | None:
        """Return the new job, or None where there is one of its name already."""
        call = self._about("create", body["metadata"]["name"])
        return self._unless((409,), "POST", self._path, call, body)

    def patch(self, name: str, change: ApiObject) -> ApiObject | None:
        """Merge a change into a job; return None where it is gone, or is not the one of the change."""
        path = f"{self._path}/{quote(name)}"
        return self._unless((404, 409), "PATCH", path, self._about("patch", name), change)

    def delete(self, name: str, uid: str = "") -> bool:
        """Tell a job to end, its pods first; False where it is gone, or the name is of a job with another uid."""
        body: ApiObject = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        if uid:
            body["preconditions"] = {"uid": uid}
        call, path = self._about("delete", name), f"{self._path}/{quote(name)}"
        return self._unless((404, 409), "DELETE", path, call, body) is not None

    def pods(self, job: str) -> list[ApiObject]:
        """Return the pods of a job that train."""
        selector = f"{self.kind.job_label}={job}{self.kind.selector}"
        path = f"{self.core_path('pods')}?{urlencode({'labelSelector': selector})}"
        return self._items(path, ApiCall(verb="list", resource="pods", namespace=self.namespace))

    def workers(self, job: str) -> list[Worker]:
        """Return the workers of a job, in order."""
        return read_workers(self.kind, self.pods(job))

    @contextlib.contextmanager
    def log(self, pod: str, silence_s: float, **query: Any) -> Iterator[LogStream]:
        """Yield the log of a pod's container that trains; after `silence_s` without a byte the connection is lost."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        words = {key: str(each).lower() if isinstance(each, bool) else each for key, each in query.items()}
        path = f"{self.core_path('pods', pod)}/log?{urlencode({'container': self.kind.container, **words})}"
        call = ApiCall(verb="get", resource="pods/log", namespace=self.namespace, name=pod)
        timeout = Timeout(connect=self.retry_policy.connect_s, read=silence_s)
        headers = self.connection.headers()
        try:
            answer = self.connection.request(
                "GET", path, headers=headers, timeout=timeout, preload_content=False, retries=False
            )
            try:
                if answer.status >= 400:
                    refusal = Refused(answer.status, answer.read(PIECE_BYTES))
                    if answer.status in (401, 403):
                        raise error_from_response(call, refusal)
                    raise NotReady(f"log of {pod}: {answer.status} {refusal.message}")
                yield LogStream(answer)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise RetryableError(f"log of {pod}: {short(error)}") from None

    def _about(self, verb: str, name: str = "") -> ApiCall:
        kind = self.kind
        return ApiCall(
            verb=verb, resource=kind.plural, group=kind.group, namespace=self.namespace, name=name,
            operator=kind.operator,
        )  # fmt: skip
