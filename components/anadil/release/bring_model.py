"""`python -m anadil.release.bring_model URI DIRECTORY`: a served model's files, before its server starts.

A model server trusts the files on its disk. So every byte is compared with the manifest, and only files that the model
needs are brought: `merged/` of an adapter, and no logs.
"""

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from anadil.artifacts.prefetch import fetch_from, fill
from anadil.artifacts.uri import join
from anadil.core import log as logs
from anadil.core.candidates import BY_KIND
from anadil.core.errors import DataError, RecipeError
from anadil.release.model_source import find_model, locate
from anadil.runtime.termination import exit_code_of

log = logging.getLogger(__name__)

FILES = re.compile(r"[^/]+\.(safetensors|json|jinja|model|txt)|LICENSE[^/]*|NOTICE")
"""Files that a server loads: weights, configuration, tokenizer, template, licence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the model and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logs.set_up("bring model", container=True)
    return exit_code_of(lambda: _bring(arguments))


def _bring(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        raise RecipeError("give the URI of a model, merged or adapter artifact, and a directory")
    place, manifest = locate(arguments[0])
    if manifest is None or manifest.kind not in BY_KIND:
        find_model(arguments[0])  # says what is wrong with it
        raise DataError(f"{arguments[0]}: not a model, merged or adapter artifact; give one on s3://")
    folder = BY_KIND[manifest.kind].folder
    prefix = f"{folder}/" if folder else ""
    files = {
        name.removeprefix(prefix): entry
        for name, entry in manifest.files.items()
        if name.startswith(prefix) and FILES.fullmatch(name.removeprefix(prefix))
    }
    source = join(place, folder) if folder else place
    remedy = "give the volume of the model more space (ephemeral-storage)"
    fill(Path(arguments[1]), files, fetch_from(source), source, remedy)
    log.info("%s: %d files, each as its manifest says", source, len(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
