"""Verify an artifact in its storage."""

import hashlib
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError


def verify(uri: str, manifest: Manifest, *, whole: bool = False) -> None:
    """Compare every byte of a local artifact; on S3 sizes and small files, or every byte with `whole`.

    Raises:
        IntegrityError: A file is missing or changed.
    """
    if "://" not in uri:
        artifact.verify_files(Path(uri), manifest, uri)
        return
    artifact.check_sizes(uri, manifest)
    for name, entry in manifest.files.items() if whole else ():
        if sha256_of(join(uri, name)) != entry["sha256"]:
            raise IntegrityError(f"{uri}/{name}: differs from its manifest; {artifact.remedy_of(uri)}")


def sha256_of(uri: str) -> str:
    """SHA-256 of a file, read in pieces."""
    with storage.readable(uri).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
