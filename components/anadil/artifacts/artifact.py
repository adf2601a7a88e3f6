"""Artifact: a directory that is written once and whose manifest, written last, seals it.

A directory without a manifest does not exist to readers, and a reader refuses a directory whose files are not those of
its manifest. `key` is the hash of everything that decides the content, so an artifact with the same key is not remade.
"""

import functools
import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from anadil.artifacts import local_directory, storage
from anadil.artifacts.mlmodel import META
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import DataError, IntegrityError
from anadil.core.files import atomic_file, file_sha256
from anadil.core.format import with_article
from anadil.core.json_text import json_sha256
from anadil.core.reasons import first_mistake

log = logging.getLogger(__name__)

SCHEMA = 1
SMALL_BYTES = 1024**2
"""Read of an artifact, its smallest files first, to tell a whole one from a torn one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Files of an artifact, and everything that made it."""

    kind: str
    """The artifact's word: corpus, tokenizer, model, ..."""
    key: str
    """Hash of `origin`: equal keys mean equal content."""
    origin: dict[str, str]
    """Everything that decides the content, by name: recipe keys as JSON, digests of inputs, the stage's `result_version`."""
    files: dict[str, dict[str, str | int]]
    """Relative path -> `bytes` and `sha256`."""
    records: dict[str, int] = field(default_factory=dict)
    """Counts, such as documents by part."""
    figures: dict[str, bool | float | int | str] = field(default_factory=dict)
    """The stage's line of figures, shown again when the artifact is reused."""
    recipe: dict[str, object] = field(default_factory=dict)
    """The resolved recipe."""
    varying: list[str] = field(default_factory=list)
    """Files beside the content (times, places, counts, samples): verified, and read by the report alone."""
    contents: dict[str, str] = field(default_factory=dict)
    """File -> digest of what other stages read of it, where it holds more: texts without their sources."""
    program: dict[str, str] = field(default_factory=dict)
    """Program that made it, which is no part of the key: version, digest of the source, image where there is one."""
    schema: int = SCHEMA
    seal: str = ""
    """SHA-256 over all other fields; empty where a version wrote it that had none."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid"
    )  # a name with a flipped bit is no field

    def fields(self) -> dict[str, object]:
        """All but an empty seal, for JSON."""
        # `asdict` copies what is below too: 30 ms for a manifest of 50 files.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if name != "seal" or value}

    def sealed(self) -> "Manifest":
        """The same, with its seal."""
        return replace(self, seal=json_sha256(replace(self, seal="").fields()))

    @property
    def inputs(self) -> dict[str, str]:
        """Word of each artifact that it was made of, such as `corpus.web` -> its digest."""
        return {
            name.removeprefix("input "): each
            for name, each in self.origin.items()
            if name.startswith("input ")
        }

    @property
    def digest(self) -> str:
        """SHA-256 over kind and content, without the varying files: what a reader depends on."""
        return self._digest(
            {
                name: self.contents.get(name, entry)
                for name, entry in self.files.items()
                if name not in self.varying
            }
        )

    @property
    def whole_digest(self) -> str:
        """SHA-256 over kind and every file: what the report depends on."""
        return self._digest(self.files)

    def _digest(self, files: Mapping[str, object]) -> str:
        return json_sha256([self.kind, files], sort_keys=False)


def origin_key(origin: Mapping[str, str]) -> str:
    """The key of what is made from `origin`: 16 hexadecimal digits."""
    return json_sha256(dict(origin))[:16]


def read_manifest(uri: str) -> Manifest | None:
    """The manifest of an artifact, or None where there is no finished artifact."""
    where = join(uri, MANIFEST)
    files = storage.store(uri)
    return parse_manifest(files.read(where), uri) if files.exists(where) else None


def parse_manifest(content: bytes, uri: str) -> Manifest:
    """The manifest of the artifact at `uri` in its file's content; raises as `read_manifest`."""
    where = join(uri, MANIFEST)
    try:
        manifest = _adapter().validate_json(content)
    except ValidationError as error:
        raise IntegrityError(
            f"{where}: no manifest of this program ({first_mistake(error)}); remove the whole of {uri} if it is an artifact, "
            "then make the artifact again"
        ) from None
    if manifest.schema != SCHEMA:
        raise IntegrityError(f"{where}: schema {manifest.schema}, this version reads {SCHEMA}; make it again")
    if manifest.seal and manifest.sealed() != manifest:
        raise IntegrityError(f"{where}: is damaged: its seal is that of another content; {remedy_of(uri)}")
    return manifest


# One for all manifests: making it takes longer than a manifest.
_adapter = functools.cache(lambda: TypeAdapter(Manifest))


def finished_manifest(uri: str, *kinds: str) -> Manifest:
    """The manifest of an artifact that has to be there, of one of some kinds."""
    one = " or ".join(with_article(kind) for kind in kinds)
    manifest = read_manifest(uri)
    if manifest is None:
        raise DataError(
            f"{uri}: no finished {' or '.join(kinds)} there (no {MANIFEST}); run the stage that writes it first"
        )
    if manifest.kind not in kinds:
        raise DataError(f"{uri}: holds {with_article(manifest.kind)}, not {one}; give the URI of {one}")
    return manifest


def digest_of(path: object) -> str:
    """Digest of an artifact's manifest; `DataError` without one."""
    manifest = read_manifest(str(path))
    if manifest is None:
        raise DataError(f"{path}: no finished artifact there; run the stage that writes it")
    return manifest.digest


def files_of(manifest: Manifest, beginnings: tuple[str, ...]) -> dict[str, dict[str, str | int]]:
    """Entries of files whose names begin so; of all files where no beginning is given."""
    if not beginnings:
        return manifest.files
    return {name: entry for name, entry in manifest.files.items() if name.startswith(beginnings)}


def verify_files(path: Path, manifest: Manifest, name: str, beginnings: tuple[str, ...] = ()) -> None:
    """Compare every file with the manifest; with `beginnings`, the content of files whose names begin so."""
    remedy = remedy_of(name)
    present = _own(set(local_directory.names_below(path)))
    for missing in sorted(manifest.files.keys() - present):
        raise IntegrityError(f"{name}/{missing}: missing, but its manifest names it; {remedy}")
    for extra in sorted(present - manifest.files.keys()):
        raise IntegrityError(f"{name}/{extra}: not in its manifest; {remedy}")
    for file, expected in files_of(manifest, beginnings).items():
        if file_entry(path / file) != expected:
            raise IntegrityError(f"{name}/{file}: differs from its manifest; {remedy}")


def check_sizes(uri: str, manifest: Manifest) -> None:
    """Compare the size of every file with the manifest, and the digests of small ones, without fetching the rest.

    This notices what a stopped program, or two that wrote at once, leave behind; a reader verifies every byte.
    """
    store, remedy = storage.store(uri), remedy_of(uri)
    sizes = store.directory_sizes(uri)
    for name, entry in manifest.files.items():
        if name not in sizes:
            raise IntegrityError(f"{uri}/{name}: missing, but its manifest names it; {remedy}")
        if sizes[name] != entry["bytes"]:
            raise IntegrityError(
                f"{uri}/{name}: size differs from the manifest: {entry['bytes']:,} bytes expected, "
                f"{sizes[name]:,} found; {remedy}"
            )
    if "://" not in uri and (extra := sorted(_own(sizes.keys()) - manifest.files.keys())):
        raise IntegrityError(f"{uri}/{extra[0]}: not in its manifest; {remedy}")
    left = SMALL_BYTES
    for name in sorted(manifest.files, key=lambda name: sizes[name]):
        left -= sizes[name]
        if left < 0:
            return
        if hashlib.sha256(store.read(join(uri, name))).hexdigest() != manifest.files[name]["sha256"]:
            raise IntegrityError(f"{uri}/{name}: differs from its manifest; {remedy}")


def verify(uri: str, manifest: Manifest, *, whole: bool = False) -> None:
    """Compare every byte of a local artifact; on S3 sizes and small files, or every byte with `whole`."""
    if "://" not in uri:
        verify_files(Path(uri), manifest, uri)
        return
    check_sizes(uri, manifest)
    for name, entry in manifest.files.items() if whole else ():
        if sha256_of(join(uri, name)) != entry["sha256"]:
            raise IntegrityError(f"{uri}/{name}: differs from its manifest; {remedy_of(uri)}")


def sha256_of(uri: str) -> str:
    """SHA-256 of a file, read in pieces."""
    with storage.readable(uri).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own(present: Collection[str]) -> set[str]:
    """Files without the manifest, and without the note that MLflow leaves where it loads a registered model."""
    return {name for name in present if name != MANIFEST and name.rpartition("/")[2] != META}


def remedy_of(uri: str) -> str:
    """Remedy for a damaged artifact, for messages."""
    return f"run `anadil remove {uri}`, then the stage again"


def file_entry(path: Path) -> dict[str, str | int]:
    """Bytes and SHA-256 of one file, as manifests hold them."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def seal(
    path: Path, *, kind: str, origin: Mapping[str, str],
    copies: Mapping[str, Mapping[str, str | int]] | None = None,
    entries: Mapping[str, Mapping[str, str | int]] | None = None, **more: object,
) -> Manifest:  # fmt: skip
    """Write the manifest of a finished local directory, through a temporary name.

    Args:
        origin: What decides the content.
        copies: Manifest entries of files that get into the artifact without being in the directory.
        entries: Those of files in it that whoever wrote them has computed; the rest is read.
        more: `records`, `figures`, `recipe`, `program`, `varying`, `contents` of the manifest.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for written in files:
        written.chmod(0o644)  # safetensors writes 0600, which a server under another user cannot read
    local_directory.flush_directory(path)  # before the manifest vouches for them
    names = {file.relative_to(path).as_posix(): file for file in files}
    names.pop(MANIFEST, None)
    known = {name: dict(entry) for name, entry in (entries or {}).items() if name in names}
    listed = {name: known.get(name) or file_entry(file) for name, file in names.items()}
    listed |= {name: dict(entry) for name, entry in (copies or {}).items()}
    listed = {name: listed[name] for name in sorted(listed, key=Path)}  # the order is part of the digest
    manifest = Manifest(kind=kind, key=origin_key(origin), origin=dict(origin), files=listed, **more)  # type: ignore[arg-type]  # checked by read_manifest
    manifest = manifest.sealed()
    with atomic_file(path / MANIFEST) as draft:
        draft.write_text(json.dumps(manifest.fields(), ensure_ascii=False, indent=1), encoding="utf-8")
        local_directory.flush(draft)
    return manifest
