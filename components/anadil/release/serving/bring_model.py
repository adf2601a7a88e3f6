"""`python -m anadil.release.serving.bring_model URI DIRECTORY`: a served model's files, before its server starts.

A model server trusts the files on its disk. So every byte is compared with the manifest, and only files that the model
needs are brought: `merged/` of an adapter, and no logs.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from anadil.artifacts.prefetch import fetch_from, fill
from anadil.artifacts.uri import join
from anadil.core import log as logs
from anadil.core.errors import RecipeError
from anadil.release.serving.served_model import FILES, artifact_of
from anadil.runtime.termination import exit_code_of

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the model and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logs.set_up("bring model", container=True)
    return exit_code_of(lambda: _bring(arguments))


def _bring(arguments: Sequence[str]) -> int:
    """Fill a directory with the files of a model and nothing else."""
    if len(arguments) != 2:
        raise RecipeError("give the URI of a model, merged or adapter artifact, and a directory")
    place, manifest, prefix = artifact_of(arguments[0])
    files = {
        name.removeprefix(prefix): entry
        for name, entry in manifest.files.items()
        if name.startswith(prefix) and FILES.fullmatch(name.removeprefix(prefix))
    }
    source = join(place, prefix.rstrip("/")) if prefix else place
    remedy = "give the volume of the model more space (ephemeral-storage)"
    fill(Path(arguments[1]), files, fetch_from(source), source, remedy)
    log.info("%s: %d files, each as its manifest says", source, len(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
