"""Requests to the Hugging Face hub through its own client: bounded waits, and its refusals as our errors.

The library's own repetition waits as long as a server asks for and logs whole addresses, so it is not used.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from anadil import __version__
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError, RetryableError
from anadil.core.install import install

log = logging.getLogger(__name__)

HUB = "https://huggingface.co"
ATTEMPTS = 5
"""Times that a request is sent, the first included."""
PAUSE_S = 1.0
"""Before the second attempt; doubled with each."""
MAX_PAUSE_S = 310.0
"""Longest pause that a server may ask for. The hub's limits count over five minutes (its docs, "Rate limits")."""
TIMEOUT_S = (10.0, 60.0, 60.0, 60.0)
"""For connecting, for each read and write, and for a free connection."""
MAX_SAID_CHARS = 200
COPY = "or copy the files to a disk or s3:// and name them there"
UNREACHED = (
    "the hub did not answer; check the network, its proxy and HF_ENDPOINT, then run the same command again"
)

T = TypeVar("T")


class BusyError(RetryableError):
    """The hub does not answer for now."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        """Take the message, and the seconds after which the server may be asked again."""
        super().__init__(text)
        self.after_s = after_s


def endpoint() -> str:
    """Return the address of the hub, or of the mirror that HF_ENDPOINT names."""
    # Read here: the library reads its environment once, when it is imported.
    address = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    with contextlib.suppress(ValueError):  # of a port that is no number
        parts = urlsplit(address)
        if parts.scheme in ("https", "http") and parts.hostname and parts.port != 0:
            return address
    raise PreflightError(f"HF_ENDPOINT: {address!r} is not a web address; write https://HOST or unset it")


def request(
    uri: str,
    url: str,
    read: Callable[[Any], T],
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    **arguments: Any,
) -> T:
    """Ask for an address and read the answer; again after a pause, where there is none for now.

    Args:
        uri: What is asked for, in messages.
        url: Address. Only that of the hub itself is sent a token.
        read: Reads a good answer, whose body has not been fetched yet.
        method: HTTP method.
        headers: Headers beside the client's own.
        arguments: Further ones of the client, such as `params`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _ask_once(uri, url, read, method, headers or {}, arguments)
        except BusyError as error:
            pause = max(error.after_s, PAUSE_S * 2 ** (attempt - 1))
            if attempt == ATTEMPTS or pause > MAX_PAUSE_S:
                raise
            log.warning("%s; asked again in %.0f s, time %d of %d", error, pause, attempt, ATTEMPTS)
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def is_of_hub(url: str) -> bool:
    """Return whether an address is on the hub's own host, not where its files lie."""
    return _origin(str(url)) == _origin(endpoint())


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _ask_once(
    uri: str,
    url: str,
    read: Callable[[Any], T],
    method: str,
    headers: Mapping[str, str],
    arguments: Mapping[str, Any],
) -> T:
    utils, errors, token = _client(uri)
    # A range of a packed answer would be a range of other bytes.
    all_headers = {"User-Agent": f"anadil/{__version__}", "Accept-Encoding": "identity", **headers}
    if token and is_of_hub(url):
        all_headers["Authorization"] = f"Bearer {token}"
    try:
        with utils.get_session().stream(
            method, url, headers=all_headers, timeout=TIMEOUT_S, follow_redirects=True, **arguments
        ) as response:
            if response.status_code >= 400:
                response.read()
                limit = utils.parse_ratelimit_headers(response.headers)
                raise _refusal(uri, response, limit, has_token="Authorization" in all_headers)
            return read(response)
    except errors.OfflineModeIsEnabled:
        raise PreflightError(f"{uri}: HF_HUB_OFFLINE forbids to ask the hub; unset it, {COPY}") from None
    except UnicodeEncodeError:
        raise PreflightError(
            f"{uri}: the token of the hub holds signs that none has; check HF_TOKEN"
        ) from None
    except errors.HTTPError as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            raise PreflightError(
                f"{uri}: {said}; set SSL_CERT_FILE to the certificates of the endpoint or the proxy"
            ) from None
        raise BusyError(f"{uri}: {said}; {UNREACHED}") from None


def _client(uri: str) -> tuple[Any, Any, str | None]:
    """The modules of huggingface_hub with its client and its errors, and the token that it finds."""
    try:
        from huggingface_hub import constants, errors, utils
    except ImportError:
        raise PreflightError(f"{uri}: hf:// needs huggingface_hub; {install('hub')}, {COPY}") from None
    # The library's own headers ask the hub for a list of programs first, to tell it by which one it is used.
    client: Any = utils
    return client, errors, None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else client.get_token()


def _refusal(uri: str, response: Any, limit: Any, *, has_token: bool) -> AnadilError:
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    said = " ".join((response.headers.get("X-Error-Message") or response.reason_phrase).split())
    words = f"{uri}: {{}} ({status}: {said[:MAX_SAID_CHARS]})"
    if status == 416:
        return IntegrityError(
            words.format("ends before it should") + "; name the commit again, and run again"
        )
    if status in (408, 429) or status >= 500:
        what = "the hub has had too many requests" if status == 429 else "the hub failed for now"
        return BusyError(words.format(what) + "; run the same command again", _pause_s(response, limit))
    if not is_of_hub(response.url):
        # Its signature has run out: not asked again there, but by the next piece at the hub.
        return RetryableError(
            words.format("the address that the hub gave is refused") + "; run the same command again"
        )
    page = uri.removeprefix("hf://").partition("@")[0]
    if status == 403 or code == "GatedRepo":
        accept = f"accept its terms on {endpoint()}/{page}, and set HF_TOKEN to a token that may read it"
        return PreflightError(words.format("may not be read") + f"; {accept}")
    if status == 401:
        text = "the token is refused" if has_token else "is private, gated or not there"
        return PreflightError(
            words.format(text) + "; check the name, and set HF_TOKEN to a token that may read it"
        )
    if status == 404:
        what = {
            "RevisionNotFound": "has no such commit; it may have been squashed, so name one of its history",
            "EntryNotFound": "no such file or folder at this commit; check the path",
            "RepoNotFound": "no such data set, or one that the token may not see; check the name and HF_TOKEN",
        }.get(code, "is not there; check name, commit and path")
        missing, _, remedy = what.partition("; ")
        return DataError(words.format(missing) + f"; {remedy}")
    return PreflightError(words.format("the hub refuses") + "; check the address and HF_ENDPOINT")


def _pause_s(response: Any, limit: Any) -> float:
    """Return the seconds after which a server may be asked again; 0 where it does not say."""
    if limit is not None and not limit.remaining:
        return float(limit.reset_in_seconds)
    after = str(response.headers.get("Retry-After", ""))
    return float(after) if after.isdigit() else 0.0
