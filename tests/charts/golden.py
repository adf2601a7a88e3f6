"""What the golden files of the chart hold: every object of the default values, and the launcher's pod."""

from collections.abc import Callable
from pathlib import Path

from tests.charts.chart import CASES, ROOT, texts

DEFAULT = ROOT / "tests/golden/chart/default.yaml"
LAUNCH = ROOT / "tests/golden/chart/launch.yaml"


def default() -> str:
    """All templates, in the order of their names, without blank lines."""
    parts = []
    for name, text in sorted(texts({}).items()):
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if lines:
            parts.append("\n".join([f"# {name}", *lines]))
    return "\n---\n".join(parts) + "\n"


def launcher() -> str:
    """The launcher's pod, without blank lines."""
    [text] = [text for name, text in texts(CASES["launch"]).items() if name.endswith("/launch.yaml")]
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


GOLDEN: dict[Path, Callable[[], str]] = {DEFAULT: default, LAUNCH: launcher}
