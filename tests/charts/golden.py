"""What the golden files of the chart hold: every object of the default values, and the launcher's pod."""

from collections.abc import Callable
from pathlib import Path

import yaml

from tests.charts.chart import CASES, ROOT, render, texts
from tests.kit.compact_yaml import compact

DEFAULT = ROOT / "tests/golden/chart/default.yaml"
LAUNCH = ROOT / "tests/golden/chart/launch.yaml"


def default() -> str:
    """The notes, then every object by the order of its template's name."""
    notes = [line.rstrip() for line in texts({})["anadil/templates/NOTES.txt"].splitlines() if line.strip()]
    return compact(notes, *render({}))


def launcher() -> str:
    [text] = [text for name, text in texts(CASES["launch"]).items() if name.endswith("/launch.yaml")]
    return compact(*yaml.safe_load_all(text))


GOLDEN: dict[Path, Callable[[], str]] = {DEFAULT: default, LAUNCH: launcher}
