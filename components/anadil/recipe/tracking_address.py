"""Addresses of MLflow, W&B and TensorBoard that a recipe may name."""

import ipaddress
import os
import re
import socket
import unicodedata
from urllib.parse import unquote, urlsplit

SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""A driver may follow, such as `postgresql+psycopg2`."""
WANDB = "wandb"
"""Scheme of a project of W&B: `wandb://ENTITY/PROJECT`."""
TENSORBOARD = "tensorboard"
"""Scheme of a directory of event files: `tensorboard:DIR`."""
METADATA = (
    ipaddress.ip_network("169.254.0.0/16"),
    ipaddress.ip_network("fe80::/10"),
    *map(ipaddress.ip_network, ("fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32")),
)  # fmt: skip
"""Link-local addresses, and others where clouds serve a machine's credentials. Source: RFC 3927, RFC 4291, the guides to
instance metadata of Amazon EC2, Google, Alibaba and Oracle Cloud, Azure's on 168.63.129.16."""
METADATA_NAMES = frozenset((
    "metadata", "metadata.google.internal", "metadata.goog", "metadata.tencentyun.com", "instance-data",
    "instance-data.ec2.internal",
))  # fmt: skip
"""Names that clouds give them."""
SYSTEM = frozenset(
    ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
)
"""Directories of a machine that are no place for figures."""


def tracker(uri: str) -> str:
    """Name of the program that an address is of: wandb, tensorboard or mlflow."""
    scheme = uri.partition(":")[0].lower()
    return scheme if ":" in uri and scheme in (WANDB, TENSORBOARD) else "mlflow"


def wandb_project(uri: str) -> tuple[str, str]:
    """Entity and project of W&B; empty where the address does not name both."""
    match = re.fullmatch(r"wandb://([\w.-]+)/([\w.-]{1,128})/?", uri, re.IGNORECASE)
    return (match[1], match[2]) if match else ("", "")


def tensorboard_folder(uri: str) -> str:
    """Directory of an address of TensorBoard; empty where it names none of a machine."""
    place = uri.partition(":")[2]
    return "" if place.startswith("//") or re.match(r"\w+://", place) else place


def tracker_fault(uri: str) -> str:
    """Reason that `tracking.uri` must not be this address; empty if it may."""
    kind = tracker(uri)
    if kind == WANDB:
        return "" if all(wandb_project(uri)) else "names no project of W&B; write wandb://ENTITY/PROJECT"
    if kind == TENSORBOARD:
        if not (folder := tensorboard_folder(uri)):
            return "names no directory of a machine; write tensorboard:DIR"
        root = os.path.abspath(folder).lstrip("/").partition("/")[0]  # noqa: PTH100  no link is followed
        is_own = root in SYSTEM or not root
        return f"/{root} is the machine's own; name a directory for figures" if is_own else ""
    return tracking_fault(uri)


def tracking_fault(uri: str) -> str:
    """Reason that a recipe must not name this address of MLflow; empty if it may.

    A host name is not resolved: what it means is known only where the stages run.
    """
    if re.search(r"[\s\x00-\x1f\x7f]", uri):
        return "holds a blank or a control character; write the address alone"
    scheme = uri.partition(":")[0].lower() if ":" in uri else ""
    if uri == "off" or scheme == "arn" or scheme.partition("+")[0] in DATABASES:
        return ""
    if scheme not in SERVERS:
        said = f"{scheme}:// is not an address of MLflow" if scheme else "is not an address of MLflow"
        return f"{said}; write http://, https://, sqlite:///file, postgresql://, wandb://ENTITY/PROJECT, tensorboard:DIR, or off"
    try:
        parts = urlsplit(uri)
        host = parts.port != 0 and parts.hostname
    except ValueError:
        host = None
    if not host:
        return "names no host and port; write http://host:port"
    if parts.query or parts.fragment:
        return "names more than a host, a port and a path: leave the query and the fragment out"
    if _is_link_local(host):
        return "is a link-local or metadata address, where a cloud serves its machines' credentials; name the MLflow server"
    return ""


def _is_link_local(host: str) -> bool:
    """True if a host is such an address, in any of the spellings that clients understand."""
    # Clients fold what looks like a digit or a dot, the ideographic full stop among them.
    text = unicodedata.normalize("NFKC", unquote(host)).replace("\u3002", ".")
    text = text.rstrip(".").partition("%")[0]
    if text.lower() in METADATA_NAMES:
        return True
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        # `2852039166`, `0xa9fea9fe` and `169.254.43518` are IPv4 too; letters beyond hexadecimal are a name.
        if not re.fullmatch(r"[0-9a-fx.]+", text, re.IGNORECASE):
            return False
        try:
            address = ipaddress.ip_address(socket.inet_aton(text))
        except OSError:
            return False
    inner = [address]
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        embeds = ("::/96", "::ffff:0:0/96", "64:ff9b::/96")  # compatible, mapped, NAT64
        inner += [last] if any(address in ipaddress.ip_network(network) for network in embeds) else []
        inner += [address.sixtofour] if address.sixtofour else []
    return any(one in network for one in inner for network in METADATA if one.version == network.version)
