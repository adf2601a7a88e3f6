"""`anadil remove URI...`: remove an artifact that is damaged or that nobody needs."""

import argparse
import logging
from typing import Any

from anadil.artifacts import artifact, storage
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import DataError
from anadil.core.format import counted, human_bytes, with_article
from anadil.core.stages import FLOW

log = logging.getLogger(__name__)

KINDS = {*(stage.writes for stage in FLOW), "counts"}
"""Artifacts of stages, and the word counts of the tokenizer stage."""


def add_remove(name: str, commands: Any, text: str) -> None:
    """Add the command's options."""
    command = commands.add_parser(name, help=text, description=f"{text}; the next run makes it again")
    command.add_argument("uri", nargs="+", metavar="URI", help="an artifact: a directory or s3:// URI")
    command.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    command.set_defaults(command=remove)


def remove(options: argparse.Namespace) -> int:
    """Remove artifacts, each with all that lies in its place."""
    for uri in options.uri:
        manifest = artifact.read_manifest(uri)
        if manifest is None:
            raise DataError(f"{uri}: no artifact there (no {MANIFEST}); nothing is removed")
        if manifest.kind not in KINDS:
            raise DataError(
                f"{uri}: holds {with_article(manifest.kind)}, which is not an artifact of a stage; nothing is removed"
            )
    for uri in options.uri:
        sizes = storage.store(uri).directory_sizes(uri)
        what = f"{uri}: {counted(len(sizes), 'file')}, {human_bytes(sum(sizes.values()))}"
        if options.dry_run:
            log.info("would remove %s", what)
            continue
        storage.store(uri).remove_directory(uri)
        log.info("removed %s", what)
    return 0
