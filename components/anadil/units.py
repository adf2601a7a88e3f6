"""Numbers as people read them; 1 GiB is 1024**3 bytes and 1 GB is 1000**3."""

GIB = 1024**3
MIB = 1024**2
KIB = 1024


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
