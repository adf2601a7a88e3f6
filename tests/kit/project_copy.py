"""Commands on a copy of the project."""

import itertools
import os
import subprocess
from pathlib import Path

from numba.core.caching import _CacheLocator


def keep_kernels(copy: Path) -> None:
    """Keep what is compiled of the original: a change compiles anew what it concerns."""
    # numba names a folder by the name and the digest of that of the sources, which is another one now.
    for room in copy.glob("components/anadil/*/kernels"):
        for sources, place in itertools.product((room, room.parent), room.glob("__pycache__/kernels-*/*")):
            if place.name.startswith(f"{sources.name}_"):
                moved = _CacheLocator.get_suitable_cache_subpath(str(sources / "any.py"))
                place.rename(place.with_name(moved))


def run(project: Path, command: list[str]) -> str:
    """The output of a command on the copy."""
    path = os.pathsep.join(str(project / name) for name in ("components", "pipelines"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
