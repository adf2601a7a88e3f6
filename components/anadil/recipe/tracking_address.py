"""Addresses of MLflow that a recipe may name."""

import ipaddress
import re
import socket
import unicodedata
from urllib.parse import unquote, urlsplit

SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""A driver may follow, such as `postgresql+psycopg2`."""
METADATA = (
    ipaddress.ip_network("169.254.0.0/16"),
    ipaddress.ip_network("fe80::/10"),
    ipaddress.ip_network("fd00:ec2::/32"),
)
"""Link-local addresses, where clouds serve a machine's credentials. Source: RFC 3927, RFC 4291, Amazon EC2
User Guide, "Instance metadata"."""


def tracking_fault(uri: str) -> str:
    """Reason that a recipe must not name this address; empty if it may.

    A host name is not resolved: what it means is known only where the stages run.
    """
    scheme = uri.partition(":")[0].lower() if ":" in uri else ""
    if uri == "off" or scheme == "arn" or scheme.partition("+")[0] in DATABASES:
        return ""
    if scheme not in SERVERS:
        said = f"{scheme}:// is not an address of MLflow" if scheme else "is not an address of MLflow"
        return f"{said}; write http://, https://, sqlite:///file, postgresql://, or off"
    try:
        host = urlsplit(uri).hostname
    except ValueError:
        host = None
    if not host:
        return "names no host; write http://host:port"
    if _is_link_local(host):
        return (
            "is a link-local address, where a cloud serves its machines' credentials; name the MLflow server"
        )
    return ""


def _is_link_local(host: str) -> bool:
    """True if a host is such an address, in any of the spellings that clients understand."""
    # Clients fold what looks like a digit or a dot, the ideographic full stop among them.
    text = unicodedata.normalize("NFKC", unquote(host)).replace("\u3002", ".")
    text = text.rstrip(".").partition("%")[0]
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
