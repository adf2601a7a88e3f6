"""The chain of artifacts behind a model, each verified byte by byte.

A manifest names inputs by digest (`input model`, `input corpus`) and outside files by name and SHA-256 (`file URI`).
The artifact's key is the hash of those names, so a manifest that was changed no longer fits its key.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest, verify
from anadil.artifacts.base_model import BUILT_IN
from anadil.artifacts.find import artifacts_below, find_artifact, read_table
from anadil.artifacts.uri import join
from anadil.clean.shards.shards import names
from anadil.core.errors import AnadilError, IntegrityError
from anadil.core.stages import COMPARED, FLOW, PER_SOURCE, STAGES
from anadil.report.licence import UNKNOWN_LICENCE, Licence, licence_of
from anadil.report.read import field, last_part, list_of, table_of
from anadil.runtime.cache_key import BASE_FILES, EARLIER, INPUT, base_files
from anadil.runtime.job import kind_of, word_of

WORDS = frozenset(stage.writes for stage in FLOW)
DATA_KEYS = {stage.writes: stage.files for stage in FLOW if stage.files}
"""Artifact -> the recipe key that names its outside files."""
OF_KEY = re.compile(r"(?P<uri>.*) of (?P<key>[a-z]+\.[a-z_]+)", re.DOTALL)
"""Name in a manifest of a file of another recipe key."""
START_FROM, CHECKPOINT = STAGES["pretrain"].extends, STAGES["pretrain"].extends_kinds[0]
SINCE = STAGES["clean"].extends
DIGITS = 16
State = Literal["verified", "changed", "missing", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An artifact of the chain."""

    word: str
    uri: str
    """Its place; empty if it is missing."""
    digest: str
    key: str = ""
    needed_by: str = ""
    version: str = ""
    files: int = 0
    num_bytes: int = 0
    state: State = "verified"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that no stage made."""

    uri: str
    name: str
    key: str
    read_by: str
    reader: str = ""
    """Digest of the artifact that was made of it."""
    digest: str
    state: State = "verified"
    why: str = ""

    @property
    def is_text(self) -> bool:
        """True for text to train on, as `clean` reads it."""
        return (
            self.read_by == "corpus" and self.key.endswith(".inputs") and not self.key.startswith("finetune.")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFiles:
    """A model of others that the chain begins with: the base, or one that was merged into it."""

    model: str = ""
    revision: str = ""
    digest: str = ""
    state: State = "unknown"
    why: str = ""
    licence: Licence = UNKNOWN_LICENCE


class Chain:
    """Follows artifacts to their inputs."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._seen: set[str] = set()
        self.links: list[Link] = []
        self.files: list[SourceFile] = []
        self.base = BaseFiles()
        self.added: list[BaseFiles] = []
        """Models whose differences were merged."""
        self.whole: list[tuple[str, Manifest]] = []
        """Artifacts whose bytes are those of their manifests."""

    def follow(self, uri: str, manifest: Manifest, needed_by: str = "", source: str = "") -> None:
        """Add an artifact, that of a source of the recipe where one is named, and all of its inputs."""
        # Marked before the recursion: two artifacts may share an input.
        self._seen.add(manifest.digest)
        why = _fault(uri, manifest)
        self.links.append(
            Link(
                word=word_of(manifest.kind, source), uri=uri, digest=manifest.digest, key=manifest.key, needed_by=needed_by,
                version=manifest.program.get("version", ""), files=len(manifest.files),
                num_bytes=sum(int(entry["bytes"]) for entry in manifest.files.values()),
                state="changed" if why else "verified", why=why,
            )
        )  # fmt: skip
        if not why:
            self.whole.append((uri, manifest))
        stage = STAGES.get(manifest.origin.get("stage", ""))
        if stage and "base" in stage.sections:
            self.base = _base(manifest)
        self.added += _added(manifest) if stage and stage.models else ()
        self.files += _source_files(manifest, source)
        for name, digest in manifest.origin.items():
            if name == f"input {START_FROM}":
                self._follow_start(uri, manifest, digest)
            elif name.startswith(INPUT) and digest not in self._seen:
                self._find(name.removeprefix(INPUT).removeprefix(EARLIER), digest, manifest, source)

    def _follow_start(self, uri: str, manifest: Manifest, digest: str) -> None:
        """Add the model that a training began with, or the checkpoint and the model that its run has made.

        A run removes its checkpoints, so one that is gone is no gap. What was trained on before it is one.
        """
        begin = table_of(read_table(uri, manifest, "training.json").get("start_from"))
        if begin.get("step") == 0:  # the weights of a finished model, which is no checkpoint
            if digest not in self._seen:
                self._find(manifest.kind, digest, manifest)
            return
        place, run = str(begin.get("place", "")), str(begin.get("run", ""))
        why = (
            ""
            if begin.get("digest") == digest
            else f"{uri}: training.json names another checkpoint than the manifest"
        )
        there = _readable_manifest(place)
        if there is not None and there.digest != digest:
            why = f"{place}: is not the checkpoint that {uri} began with"
        self.links.append(
            Link(
                word=CHECKPOINT, uri=place, digest=digest, needed_by=manifest.kind,
                key="" if there is None else there.key, files=0 if there is None else len(there.files),
                state="changed" if why else "unknown" if there is None else "verified", why=why,
            )
        )  # fmt: skip
        # A model that was moved keeps its name, the key, in another root.
        for made in (run, *(join(root, manifest.kind, last_part(run)) for root in self._roots if run)):
            known = _readable_manifest(made)
            if known is not None and known.kind == manifest.kind:
                if known.digest not in self._seen:
                    self.follow(made, known, CHECKPOINT)
                return
        why = f"{run or place}: the run of the checkpoint has no finished model there, so what it was trained on is not traced"
        link = Link(word=manifest.kind, uri="", digest=digest, needed_by=CHECKPOINT, state="missing", why=why)
        self.links.append(link)

    def _find(self, name: str, digest: str, reader: Manifest, source: str = "") -> None:
        needed_by = reader.kind
        # An input is named by its kind, with its source, and that of `clean.since` by the recipe key.
        stage = STAGES.get(kind_of(name))
        word = stage.writes if stage and kind_of(name) not in WORDS else kind_of(name)
        # A corpus is of the source of the one that was added to it.
        of_source = name.partition(".")[2] if word in PER_SOURCE and word == kind_of(name) else ""
        if place := self._place(word, digest, reader):
            self.follow(*place, needed_by, source if name == SINCE else of_source)
            return
        self._seen.add(digest)
        why = (
            f"the {needed_by} was made from the {word} {digest[:DIGITS]}, and none with that digest lies in "
            f"{', '.join(join(root, word) for root in self._roots)}; name its storage root with --root"
        )
        link = Link(word=word, uri="", digest=digest, needed_by=needed_by, state="missing", why=why)
        self.links.append(link)

    def _place(self, word: str, digest: str, reader: Manifest) -> tuple[str, Manifest] | None:
        """Return an input of an artifact; of lists of overlap with one digest, that of the reader's own corpora."""
        if word not in COMPARED:
            return find_artifact(self._roots, word, digest)
        # Empty lists are alike, whatever was compared. Another week's would lead to text that the reader never saw.
        alike = [each for each in artifacts_below(self._roots, word) if each[1].digest == digest]
        return next(
            (each for each in alike if _corpora(each[1]) <= _corpora(reader)), next(iter(alike), None)
        )


def _corpora(manifest: Manifest) -> set[str]:
    return {digest for name, digest in manifest.origin.items() if name.startswith(f"{INPUT}corpus")}


def _readable_manifest(uri: str) -> Manifest | None:
    """Manifest of a place; None where there is none, or where the place cannot be read."""
    try:
        return artifact.read_manifest(uri) if uri else None
    except (AnadilError, OSError):
        return None


def _fault(uri: str, manifest: Manifest) -> str:
    """Fault of an artifact, every byte of which is read where it lies; empty if there is none."""
    if manifest.key != artifact.origin_key(manifest.origin):
        return f"{uri}: its manifest was changed: its key is not that of what it says that it was made from"
    try:
        verify(uri, manifest, whole=True)
    except IntegrityError as error:
        return str(error)
    return ""


def _source_files(manifest: Manifest, source: str) -> list[SourceFile]:
    """The outside files of an artifact, each compared with its digest in the manifest."""
    texts = [
        (name.removeprefix("file "), digest)
        for name, digest in manifest.origin.items()
        if name.startswith("file ")
    ]
    matches = [(text, digest, OF_KEY.fullmatch(text)) for text, digest in texts]
    plain = [text for text, _, match in matches if not match]
    short = dict(zip(plain, names(plain), strict=True))
    files = []
    for text, digest, match in sorted(matches, key=lambda each: each[2] is not None):
        uri = match["uri"] if match else text
        state, why = _state_of(uri, digest)
        files.append(
            SourceFile(
                uri=uri, name=short.get(text, uri.rsplit("/", 1)[-1]), digest=digest, read_by=manifest.kind,
                reader=manifest.digest,
                key=match["key"] if match else f"sources.{source}.inputs" if source else DATA_KEYS.get(manifest.kind, ""), state=state, why=why,
            )
        )  # fmt: skip
    return files


def _state_of(uri: str, digest: str) -> tuple[State, str]:
    """Compare a file with the one that was read."""
    try:
        store = storage.store(uri)
        if not store.exists(uri):
            return "missing", f"{uri}: not there any more; its digest is {digest}"
        current = store.fingerprint(uri)
    except (AnadilError, OSError) as error:
        return "unknown", f"{uri}: cannot be read ({error})"
    if current != digest:
        return "changed", f"{uri}: is not the file that was read: {current} now, {digest} then"
    return "verified", ""


def _base(manifest: Manifest) -> BaseFiles:
    """The base of an artifact, its files compared with those that were read."""
    model, revision = (str(field(manifest.recipe, f"base.{key}") or "") for key in ("model", "revision"))
    stated = field(manifest.recipe, "report.licences.base")
    return _files_of(model, revision, manifest.origin.get(BASE_FILES, ""), stated)


def _added(manifest: Manifest) -> Iterator[BaseFiles]:
    """Models of `merge.add` beside the base, each once, their files compared with those that were read."""
    stated = table_of(field(manifest.recipe, "report.licences"))
    models = {
        str(each.get(key)): str(each.get(revision) or "")
        for each in map(table_of, list_of(field(manifest.recipe, "merge.add")))
        for key, revision in (("model", "revision"), ("minus", "minus_revision"))
    }
    models.pop(str(field(manifest.recipe, "base.model")), None)
    for model, revision in models.items():
        digest = manifest.origin.get(f"{BASE_FILES} of {model}", "")
        yield _files_of(model, revision, digest, stated.get(model))


def _files_of(model: str, revision: str, digest: str, stated: object) -> BaseFiles:
    state, why = _state_of_base(model, digest)
    licence = licence_of(model, str(stated or ""))
    return BaseFiles(model=model, revision=revision, digest=digest, state=state, why=why, licence=licence)


def _state_of_base(model: str, known: str) -> tuple[State, str]:
    if not known:
        return "unknown", f"{model}: a model of the hub, of which no digest was taken"
    if model not in BUILT_IN and not Path(model).expanduser().is_dir():
        return "missing", f"{model}: not there any more; the digest of its files is {known}"
    current = base_files(model)[BASE_FILES]
    if current == known:
        return "verified", ""
    if model in BUILT_IN:
        return "missing", f"{model}: this program makes another one ({current[:DIGITS]}) than the one that was taught ({known[:DIGITS]})"  # fmt: skip
    return "changed", f"{model}: its files are not those that were taught: {current} now, {known} then"
