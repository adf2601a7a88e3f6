"""Peak memory of code that runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

from anadil.core.format import MIB

PEAK = """
from pathlib import Path
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""
"""Unlike getrusage, which counts what the parent held before the child began its program."""


def peak_memory(code: str, *arguments: object) -> tuple[float, str]:
    """MiB that a child held at most while it ran the code, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    *printed, peak = done.stdout.splitlines()
    return int(peak.split()[1]) * 1024 / MIB, "\n".join(printed)
