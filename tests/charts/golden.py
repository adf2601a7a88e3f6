"""What the golden file of the chart holds: every object of the default values."""

from collections.abc import Callable
from pathlib import Path

from tests.charts.chart import ROOT, texts

DEFAULT = ROOT / "tests/golden/chart/default.yaml"


def default() -> str:
    """All templates, in the order of their names, without blank lines."""
    parts = []
    for name, text in sorted(texts({}).items()):
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if lines:
            parts.append("\n".join([f"# {name}", *lines]))
    return "\n---\n".join(parts) + "\n"


GOLDEN: dict[Path, Callable[[], str]] = {DEFAULT: default}
