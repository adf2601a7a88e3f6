"""Trace a model back to its source files, each artifact verified byte by byte, and find documents in its training data.

A manifest names inputs by digest (`input model`, `input corpus`) and outside files by name and SHA-256 (`file URI`).
The artifact's key is the hash of those names, so a manifest that was changed no longer fits its key.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest, sha256_of, verify
from anadil.artifacts.base_model import BUILT_IN
from anadil.artifacts.find import artifacts_below, find_artifact, read_table, root_of, roots_of
from anadil.artifacts.uri import absolute, join
from anadil.artifacts.weight_files import has_weights, weight_files
from anadil.clean.shards.shards import names
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import AnadilError, DataError, IntegrityError
from anadil.core.format import DASH, one_line, with_article
from anadil.core.stages import COMPARED, FLOW, PER_SOURCE, STAGES
from anadil.page.format import words_of
from anadil.page.licence import UNKNOWN_LICENCE, Licence, licence_of
from anadil.page.values import field, last_part, list_of, table_of
from anadil.release.model_source import locate
from anadil.release.trace import corpus_rows
from anadil.report.data_card import NOT_STATED, stated_licence
from anadil.report.read import sum_stats
from anadil.runtime.cache_key import BASE_FILES, EARLIER, INPUT, base_files
from anadil.runtime.job import kind_of, source_of, word_of

WORDS = frozenset(stage.writes for stage in FLOW)
DATA_KEYS = {stage.writes: stage.files.key for stage in FLOW if stage.files.key}
"""Artifact -> the recipe key that names its outside files."""
OF_KEY = re.compile(r"(?P<uri>.*) of (?P<key>[a-z]+\.[a-z_]+)", re.DOTALL)
"""Name in a manifest of a file of another recipe key."""
START_FROM, CHECKPOINT = STAGES["pretrain"].extends.key, STAGES["pretrain"].extends.kinds[0]
SINCE = STAGES["clean"].extends.key
DIGITS = 16
State = Literal["verified", "changed", "missing", "unknown"]
Json = dict[str, Any]
EXPECTED = (
    "give a model, merged or adapter artifact, its merged directory, an export of it, or models:/NAME@ALIAS"
)
ADDED_TO = f"{INPUT}{SINCE}"
"""Name in an origin of the corpus that a corpus was added to."""
SAID = {"verified": "verified", "changed": "CHANGED", "missing": "not there", "unknown": "not checked"}


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
        if stage and "base" in stage.keys:
            model, revision = (
                str(field(manifest.recipe, f"base.{key}") or "") for key in ("model", "revision")
            )
            stated = field(manifest.recipe, "report.licences.base")
            self.base = _files_of(model, revision, manifest.origin.get(BASE_FILES, ""), stated)
        self.added += _added(manifest, stage.models.partition(".")[0]) if stage and stage.models else ()
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
        corpora = corpus_digests(reader)
        return next((each for each in alike if corpus_digests(each[1]) <= corpora), next(iter(alike), None))


def _readable_manifest(uri: str) -> Manifest | None:
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


def _added(manifest: Manifest, section: str) -> Iterator[BaseFiles]:
    """Models that a section names beside the base, each once, their files compared with those that were read."""
    stated = table_of(field(manifest.recipe, "report.licences"))
    models = {
        str(each.get(key)): str(each.get(revision) or "")
        for listed in table_of(field(manifest.recipe, section)).values()
        for each in map(table_of, list_of(listed))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedText:
    """A corpus that the model was trained on."""

    source: str
    """Its name in the recipe; empty: the recipe names no sources."""
    recipe: Json
    """Recipe that it was cleaned by."""
    stats: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A model and everything that it goes back to."""

    uri: str
    kind: str
    digest: str
    manifest: Manifest
    links: tuple[Link, ...]
    """The model first."""
    files: tuple[SourceFile, ...]
    base: BaseFiles
    added: tuple[BaseFiles, ...]
    """Models whose differences were merged."""
    corpora: tuple[corpus_rows.CorpusSums, ...]
    """Sums of each whole corpus of the chain."""
    texts: tuple[TrainedText, ...]
    """Those that the model was trained on; none if one of them is missing."""
    stats: Json
    """Counts of all of them together."""
    training: Json
    documents: tuple[corpus_rows.DocumentTrace, ...] = ()
    whole: tuple[tuple[str, Manifest], ...] = ()
    """Artifacts of the chain, every byte of which was compared."""

    @property
    def answers(self) -> bool:
        """True if it is asked through its chat template."""
        return answers(self.kind, self.manifest.figures)

    @property
    def breaks(self) -> tuple[str, ...]:
        """Faults of everything that differs from its digest."""
        parts: list[Link | SourceFile | BaseFiles] = [*self.links, *self.files, self.base, *self.added]
        return tuple(each.why for each in parts if each.state == "changed")

    @property
    def gaps(self) -> tuple[str, ...]:
        """Artifacts that were not found, behind which nothing is known."""
        return tuple(each.why for each in self.links if each.state == "missing")

    def check(self) -> None:
        """Refuse a chain that is broken."""
        if self.breaks:
            raise IntegrityError("; ".join(self.breaks[:5]))
        if self.gaps:
            raise DataError("; ".join(self.gaps[:5]))

    def as_json(self) -> Json:
        """Fields as JSON has them."""
        shown = {name: getattr(self, name) for name in ("uri", "kind", "digest")}
        tables = {
            name: [asdict(each) for each in getattr(self, name)]
            for name in ("links", "files", "corpora", "documents", "added")
        }
        return {**shown, "breaks": list(self.breaks), "gaps": list(self.gaps), "base": asdict(self.base), **tables}  # fmt: skip

    def list_documents(self) -> Iterator[Json]:
        """Id, source and URL of every document that the model was trained on, one at a time."""
        for corpus in _last(trained_corpora(self.whole)):
            yield from corpus_rows.list_documents(*corpus)

    def answer(self) -> str:
        """One sentence about the whole chain."""
        states = Counter(each.state for each in self.files)
        if self.breaks:
            return f"The chain is broken: {len(self.breaks)} of its artifacts and files have changed."
        if self.gaps:
            return f"The chain ends early: {len(self.gaps)} of its artifacts were not traced."
        gone = states["missing"] + states["unknown"]
        rest = f"; {gone:,} source files are gone, and only their digests are known" if gone else ""
        return f"The chain holds: {len(self.links):,} artifacts and {len(self.files) - gone:,} source files have their recorded digests{rest}."  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield lines for a terminal, with the places of everything."""
        yield self.answer()
        yield ""
        for link in self.links:
            yield f"{SAID[link.state]:<13}  {link.word:<9}  {link.digest[:DIGITS]}  {link.uri or DASH}"
        for word, model in (("base", self.base), *(("added", each) for each in self.added)):
            yield f"{SAID[model.state]:<13}  {word:<9}  {model.digest[:DIGITS] or DASH:<16}  {one_line(model.model)}"
        yield ""
        for file, sums in self.files_with_sums():
            words = file.key
            if sums:
                words = f"{sums.documents:,} documents, {sums.words:,} words, {self.licences_of(sums)}"
            yield f"{SAID[file.state]:<13}  {file.digest[:DIGITS]:<16}  {one_line(file.uri)}: {one_line(words)}"
        if self.documents:
            yield ""
        for each in self.documents:
            why = words_of(each.reason) + (f" of {each.duplicate_of}" if each.duplicate_of else "")
            more = ", ".join(filter(None, (each.id, each.source, each.url, why)))
            yield f"{each.state:<13}  {one_line(each.question)}: {one_line(more)}"

    def files_with_sums(self) -> list[tuple[SourceFile, corpus_rows.FileSums | None]]:
        """Each source file with the sums over its documents; None for files that are not text."""
        sums = {(corpus.digest, each.name): each for corpus in self.corpora for each in corpus.files}
        return [(file, sums.get((file.reader, file.name)) if file.is_text else None) for file in self.files]

    def licences_of(self, file: corpus_rows.FileSums) -> str:
        """The licences that the kept records of a file name, most first."""
        stated = stated_licence(self.manifest.recipe, "text")
        unnamed = f"{stated} (stated)" if stated else NOT_STATED
        named = [name or unnamed for name in file.licences]
        return f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" or DASH


def trace(uri: str, *, roots: Sequence[str] = (), documents: Sequence[str] = ()) -> Trace:
    """Follow a model back to its sources; the result names broken links beside the sound ones.

    Args:
        uri: A model, merged or adapter artifact, the `merged` directory of one, a directory that was exported from one, or
            `models:/NAME@ALIAS`.
        roots: Storage roots to look in, beside the one that the artifact lies in and the one of its recipe.
        documents: Ids, URLs or sources to look for, or files of them.
    """
    place, manifest = _find_start(uri, roots)
    chain = Chain(roots_of(place, manifest, roots))
    chain.follow(place, manifest)
    asked = corpus_rows.questions_of(
        documents, {each.name: each.uri for each in chain.files if each.read_by == "corpus"}
    )
    corpora = [each for each in chain.whole if each[1].kind == "corpus"]
    model = next((each for each in chain.whole if each[1].kind == "model"), None)
    trained = trained_corpora(chain.whole)
    last = _last(trained)
    known = {manifest.digest: manifest for _, manifest in corpora}
    named = {manifest.digest for _, manifest in last}
    earlier = {digest for each in named for digest in earlier_digests(each, known)} - named
    learnt = [*last, *[each for each in corpora if each[1].digest in earlier]]
    sources = {link.digest: source_of(link.word) for link in chain.links}
    texts = _texts(
        [(sources[each.digest], each.recipe, read_table(uri, each, "stats.json")) for uri, each in learnt]
    )
    return Trace(
        uri=place, kind=manifest.kind, digest=manifest.digest, manifest=manifest, links=tuple(chain.links),
        files=tuple(chain.files), base=chain.base, added=tuple(chain.added),
        corpora=tuple(corpus_rows.sum_rows(*each) for each in corpora), texts=texts, stats=sum_stats([each.stats for each in texts]),
        training=read_table(*model, "training.json") if model else {},
        documents=corpus_rows.find_documents(last, corpora, asked), whole=tuple(chain.whole),
    )  # fmt: skip


def trained_corpora(whole: Sequence[tuple[str, Manifest]]) -> list[tuple[str, Manifest]]:
    """The corpora that the model of a chain was trained on; none if one of them or the model is not whole."""
    digests = {each for _, model in whole if model.kind == "model" for each in corpus_digests(model)}
    corpora = [each for each in whole if each[1].kind == "corpus" and each[1].digest in digests]
    return corpora if {manifest.digest for _, manifest in corpora} == digests else []


def corpus_digests(reader: Manifest) -> set[str]:
    """Digests of the corpora that an artifact names as its inputs."""
    return {digest for word, digest in reader.inputs.items() if kind_of(word) == "corpus"}


def earlier_digests(digest: str, corpora: Mapping[str, Manifest]) -> list[str]:
    """Digests of the corpora that one was added to, the last first, as far as they are known."""
    digests: list[str] = []
    while digest in corpora and ADDED_TO in corpora[digest].origin:
        digest = corpora[digest].origin[ADDED_TO]
        digests.append(digest)
    return digests


def _texts(corpora: Sequence[tuple[str, Json, Json]]) -> tuple[TrainedText, ...]:
    """Source, recipe and counts of some corpora, each before those that it was added to: one text for each source."""
    named: dict[str, list[tuple[Json, Json]]] = {}
    for source, recipe, stats in corpora:
        named.setdefault(source, []).append((recipe, stats))
    texts = []
    for source, pairs in named.items():
        recipe, last = pairs[0]
        # Counts are those of the new files, and records those of all documents that a corpus holds.
        held = {"records": last["records"]} if "records" in last else {}
        texts.append(
            TrainedText(source=source, recipe=recipe, stats=sum_stats([stats for _, stats in pairs]) | held)
        )
    return tuple(texts)


def _last(trained: Sequence[tuple[str, Manifest]]) -> list[tuple[str, Manifest]]:
    """Corpora without those that another was added to, since that one holds their documents too."""
    known = {manifest.digest: manifest for _, manifest in trained}
    held = {digest for each in known for digest in earlier_digests(each, known)}
    return [each for each in trained if each[1].digest not in held]


def _find_start(uri: str, roots: Sequence[str]) -> tuple[str, Manifest]:
    """Find the artifact of a name or, by the SHA-256 of its weights, of an exported directory."""
    place, manifest = locate(uri)
    if manifest is not None:
        if manifest.kind not in BY_KIND:
            raise DataError(f"{uri}: holds {with_article(manifest.kind)}, not a model; {EXPECTED}")
        return place, manifest
    weights = weight_files(Path(uri)) if Path(uri).is_dir() and has_weights(Path(uri)) else []
    if not weights:
        raise DataError(f"{uri}: no artifact and no directory with safetensors; {EXPECTED}")
    digests = {sha256_of(str(file)) for file in weights}
    for kind in BY_KIND:
        for place, manifest in artifacts_below([*map(absolute, roots), root_of(uri)], kind):
            if digests <= {entry["sha256"] for entry in manifest.files.values()}:
                return place, manifest
    searched = ", ".join(roots) or "none was given"
    raise DataError(
        f"{uri}: says nothing of what it was made from, and no artifact with these weights lies below the storage "
        f"roots ({searched}); name the root of the run that made it with --root"
    )
