"""Check of free disk space, before an hour of writing."""

import shutil
from pathlib import Path

from anadil.core.errors import PreflightError
from anadil.core.format import human_bytes


def check_space(path: Path, num_bytes: int) -> None:
    """Check that the disk of a path has room.

    Raises:
        PreflightError: It has not.
    """
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise PreflightError(
            f"{path.parent}: {human_bytes(num_bytes)} are to be written there and {human_bytes(free)} are free; free some, "
            "or give another --out"
        )
