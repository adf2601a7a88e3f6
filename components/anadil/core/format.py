"""Numbers as people read them; 1 GiB is 1024**3 bytes and 1 GB is 1000**3."""

import re

GIB = 1024**3
MIB = 1024**2
KIB = 1024
QUANTITIES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
"""Source: Kubernetes, resource.Quantity."""


def human_bytes(num_bytes: float) -> str:
    """Text such as `1.5 GiB`, in the largest binary unit that gives 1 or more."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Text such as `42 s`, `3 min 20 s` or `5 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def human_figure(value: object) -> str:
    """A figure for a one-line summary: grouped integers, four significant digits otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def amount(quantity: str) -> float:
    """The number that a quantity such as `500m` or `16Gi` means."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert match, quantity
    return float(match[1]) * QUANTITIES[match[2]]
