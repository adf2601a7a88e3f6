"""What the tests of whole runs share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def with_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Gives a work directory the base model `tiny`, which takes half a minute to make, once."""
    cache = tmp_path_factory.mktemp("base")
    # In a process of its own: torch, once loaded, keeps threads that would slow the runs down.
    code = "import sys; from pathlib import Path; from anadil.recipe.sections import Base; "
    code += "from anadil.model.tiny import base_model; base_model(Base(model='tiny'), Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(cache)], check=True, env=os.environ)

    def give(work: Path) -> Path:
        shutil.copytree(cache, work / "base")
        return work

    return give
