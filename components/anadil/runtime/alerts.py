"""Alerts about a run, sent by every channel of `CHANNELS` whose variable is set.

An alert that cannot be sent is a warning in the log, never an error: no run is lost because Slack is down. The doctor
and the pipeline read the table too, so a channel is one row here and one in docs/guides/cluster-look-after.md.
"""

import ipaddress
import json
import logging
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from anadil.core.install import install
from anadil.core.log import masked
from anadil.recipe.tracking_address import METADATA

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""For all channels together."""
CALL_S = 4.0
"""For one connection, and for one answer."""
MAX_MESSAGE_CHARS = 3_000
"""Slack shows no more of a section. Source: Slack API, Block Kit, section."""
MAX_SUBJECT_CHARS = 100
"""Source: Amazon SNS API, Publish."""
TOPIC = re.compile(r"arn:aws[a-z-]*:sns:(?P<region>[a-z0-9-]+):\d{12}:[A-Za-z0-9_.-]+")
LOOPBACK = ("127.0.0.1", "localhost")
SHARED = ipaddress.ip_network("100.64.0.0/10")
"""Where some clouds answer with credentials of the machine (100.100.100.200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event that people are told of."""

    kind: Literal["completed", "failed", "stopped", "anomaly", "released", "refused"]
    run: str
    message: str
    stage: str = ""
    """Step that it is about, if it is one."""
    artifact: str = ""
    """URI of what came out."""
    resume: str = ""
    """Remedy: how to go on."""
    figures: dict[str, float | int | str] = field(default_factory=dict[str, float | int | str])


class _Unsent(Exception):
    """Reason why a message was not sent, without its address."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for an answer: elsewhere the secret of a webhook would be told to others."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """No other address."""


def notify(event: Event) -> None:
    """Send an alert by every channel that has an address; never fails, returns within ten seconds."""
    # In threads, as looking up a name knows no time limit.
    threads = {
        channel.variable: threading.Thread(target=_guarded, args=(channel, event), daemon=True)
        for channel in CHANNELS
        if channel.address()
    }
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("%s: no answer in %g s; the notification may be lost", name, PATIENCE_S)


def slack_text(event: Event) -> str:
    """The event in Slack's mrkdwn, with what it would take for markup made harmless."""
    lines = [f"*{_escaped(title(event))}*", _escaped(_cut(event.message))]
    if event.figures:
        lines.append(_escaped(_figures(event)))
    if event.artifact:
        code = masked(event.artifact).replace("`", "'").replace("\n", " ")
        lines.append(f"Artifact: `{_escaped(code)}`")
    if event.resume:
        lines.append(f"To go on: {_escaped(_cut(event.resume))}")
    return _cut("\n".join(line for line in lines if line))


def plain_text(event: Event) -> str:
    """The event for an e-mail."""
    parts = {
        "": _cut(event.message),
        "Figures": _figures(event),
        "Artifact": masked(event.artifact),
        "To go on": _cut(event.resume),
    }
    lines = [f"{name}: {text}" if name else text for name, text in parts.items() if text]
    return "\n".join([title(event), "", *lines])


def title(event: Event) -> str:
    """Return who and what, in a few words."""
    stage = f" {event.stage}" if event.stage else ""
    return masked(f"anadil{stage} {event.kind}: {event.run or 'a run'}")


def _guarded(channel: "Channel", event: Event) -> None:
    try:
        channel.send(channel.address(), event)
    except _Unsent as error:
        log.warning("%s: notification not sent: %s", channel.variable, error)
    except Exception as error:  # noqa: BLE001  the promise of this module; an SDK raises anything
        # Not its text: that may hold the address, which is the secret.
        log.warning("%s: notification not sent: %s", channel.variable, type(error).__name__)


def _to_slack(url: str, event: Event) -> None:
    _check_address(url)
    body = json.dumps({"text": slack_text(event)}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "anadil"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310  scheme is checked
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=CALL_S) as answer:
            answer.read(1_000)
    except urllib.error.HTTPError as error:
        raise _Unsent(f"the webhook answers {error.code}; check whether it still exists") from None
    except (OSError, HTTPException, ValueError) as error:
        raise _Unsent(f"the webhook cannot be reached ({type(error).__name__})") from None


def _check_address(url: str) -> None:
    """Refuse an address of this machine or of its cloud account."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _Unsent("no URL") from None
    is_local = host in LOOPBACK
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise _Unsent("only https:// is taken")
    if parts.username or parts.password or not host:
        raise _Unsent("a webhook has a host and no user")
    through_proxy = parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)
    if is_local or through_proxy:
        return
    try:
        addresses = socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _Unsent("its host is not known; check DNS and the network policy") from None
    for address in {str(each[4][0]).partition("%")[0] for each in addresses}:
        if _is_inside(address):
            raise _Unsent("its host is an address of this machine or of the cloud's metadata")


def _is_inside(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return (
        address.is_link_local
        or address.is_loopback
        or address.is_multicast
        or address.is_unspecified
        or any(address in each for each in (SHARED, *METADATA) if each.version == address.version)
    )


def _to_sns(topic: str, event: Event) -> None:
    match = TOPIC.fullmatch(topic)
    if not match:
        raise _Unsent("no ARN of a topic: arn:aws:sns:REGION:ACCOUNT:NAME")
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise _Unsent(f"boto3 is not installed; {install('s3')}") from None
    limits = Config(connect_timeout=CALL_S, read_timeout=CALL_S, retries={"total_max_attempts": 2})
    client = boto3.client("sns", region_name=match["region"], config=limits)
    # A subject is ASCII without line ends.
    subject = re.sub(r"[^\x20-\x7e]", "?", title(event))[:MAX_SUBJECT_CHARS]
    client.publish(TopicArn=topic, Subject=subject, Message=plain_text(event))


def _figures(event: Event) -> str:
    return _cut(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in event.figures.items()))


def _cut(text: str) -> str:
    text = masked(text)
    for address in filter(None, (channel.address() for channel in CHANNELS)):
        text = text.replace(address, "***")
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 4]} ..."


def _escaped(text: str) -> str:
    """Source: Slack API, "Formatting text": these three, so that nothing becomes a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Channel(NamedTuple):
    """A way to reach people."""

    variable: str
    """Environment variable, and key of the Secret `cluster.notifications`, that holds the address."""
    send: Callable[[str, Event], None]
    """Sends an event to an address; raises what it likes."""

    def address(self) -> str:
        """Return the address in the environment; empty for none."""
        return os.environ.get(self.variable, "").strip()


SLACK = Channel("ANADIL_SLACK_WEBHOOK", _to_slack)
SNS = Channel("ANADIL_SNS_TOPIC", _to_sns)
CHANNELS = (SLACK, SNS)
