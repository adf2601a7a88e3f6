"""An artifact: a directory that is written once and whose manifest, written last, seals it.

A directory without a manifest does not exist to readers, and a reader refuses a directory
whose files are not those of its manifest. `key` is the hash of everything that decides the
content, so an artifact with the wanted key need not be made again.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from anadil import storage
from anadil.errors import DataError, IntegrityError
from anadil.storage import MANIFEST

log = logging.getLogger(__name__)

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an artifact holds and what made it."""

    kind: str
    """The artifact's word: corpus, tokenizer, model, ..."""
    key: str
    """Hash of `origin`: equal keys mean equal content."""
    origin: dict[str, str]
    """What decides the content, by name: recipe keys as JSON, digests of inputs and of the code."""
    files: dict[str, dict[str, str | int]]
    """Relative path -> `bytes` and `sha256`."""
    records: dict[str, int] = field(default_factory=dict)
    """Counts, such as documents by part."""
    figures: dict[str, bool | float | int | str] = field(default_factory=dict)
    """The stage's line of figures, shown again when the artifact is reused."""
    recipe: dict[str, object] = field(default_factory=dict)
    """The resolved recipe."""
    varying: list[str] = field(default_factory=list)
    """Files that hold times or places, which are verified but are no content."""
    program: dict[str, str] = field(default_factory=dict)
    """Version, and the image where there is one."""
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """SHA-256 over kind and files, but for the varying ones: what a reader depends on."""
        files = {name: entry for name, entry in self.files.items() if name not in self.varying}
        content = json.dumps([self.kind, files])
        return hashlib.sha256(content.encode()).hexdigest()


def key_of(origin: Mapping[str, str]) -> str:
    """The key of what is made from `origin`: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(origin), sort_keys=True).encode()).hexdigest()[:16]


def read_manifest(uri: str) -> Manifest | None:
    """The manifest of an artifact, or None where there is no finished artifact.

    Raises:
        IntegrityError: The file is there but is no manifest of ours.
    """
    where = storage.join(uri, MANIFEST)
    files = storage.store(uri)
    if not files.exists(where):
        return None
    try:
        manifest = TypeAdapter(Manifest).validate_json(files.read(where))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise IntegrityError(
            f"{where}: no manifest of this program ({reason}); make the artifact again"
        ) from None
    if manifest.schema != SCHEMA:
        raise IntegrityError(f"{where}: schema {manifest.schema}, this version reads {SCHEMA}; make it again")
    return manifest


def fetch(uri: str, kind: str) -> tuple[Path, Manifest]:
    """A local directory with the artifact, every byte of it checked.

    Raises:
        DataError: There is no artifact, or one of another kind.
        IntegrityError: A file is missing, added or changed.
    """
    manifest = read_manifest(uri)
    if manifest is None:
        raise DataError(f"{uri}: no finished {kind} there (no {MANIFEST}); run the stage that writes it")
    if manifest.kind != kind:
        raise DataError(f"{uri}: holds a {manifest.kind}, not a {kind}; give the URI of a {kind}")
    path = storage.store(uri).get_directory(uri)
    try:
        verify(path, manifest, uri)
    except IntegrityError:
        if "://" not in uri:
            raise
        log.warning("%s: the copy in %s is damaged; fetching it again", uri, path)
        shutil.rmtree(path)
        path = storage.store(uri).get_directory(uri)
        verify(path, manifest, uri)
    return path, manifest


def verify(path: Path, manifest: Manifest, name: str) -> None:
    """Compare every file with the manifest.

    Raises:
        IntegrityError: With the first file that differs and the remedy.
    """
    remedy = f"remove {name} and run the stage again"
    present = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
    present.discard(MANIFEST)
    for missing in sorted(manifest.files.keys() - present):
        raise IntegrityError(f"{name}/{missing}: missing, but its manifest names it; {remedy}")
    for extra in sorted(present - manifest.files.keys()):
        raise IntegrityError(f"{name}/{extra}: not in its manifest; {remedy}")
    for file, expected in manifest.files.items():
        if describe(path / file) != expected:
            raise IntegrityError(f"{name}/{file}: differs from its manifest; {remedy}")


def describe(path: Path) -> dict[str, str | int]:
    """Bytes and SHA-256 of one file, as manifests hold them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def seal(path: Path, *, kind: str, origin: Mapping[str, str], **more: object) -> Manifest:
    """Write the manifest of a finished local directory, through a temporary name.

    Args:
        path: The directory, with every file but the manifest.
        kind: The artifact's word.
        origin: What decides the content.
        more: `records`, `figures`, `recipe`, `program`, `varying` of the manifest.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for written in files:
        written.chmod(0o644)  # safetensors writes 0600, which a server under another user cannot read
    entries = {file.relative_to(path).as_posix(): describe(file) for file in files}
    entries.pop(MANIFEST, None)
    manifest = Manifest(kind=kind, key=key_of(origin), origin=dict(origin), files=entries, **more)  # type: ignore[arg-type]  # checked by read_manifest
    draft = path / f"{MANIFEST}.draft"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path / MANIFEST)
    return manifest


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Why `new` gives another artifact than `old`, a phrase for each cause."""
    causes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None or after is None:
            causes.append(f"{name} {'added' if before is None else 'removed'}")
        elif len(before) + len(after) <= 80 and not name.startswith(
            ("input ", "file ", "code", "base files")
        ):
            causes.append(f"{name} {before} -> {after}")
        else:
            causes.append(f"{name} changed")
    return causes
