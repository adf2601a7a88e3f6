"""Trace a model back to its source files, and find documents in its training data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts.artifact import Manifest, sha256_of
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.artifacts.uri import absolute
from anadil.artifacts.weight_files import has_weights, weight_files
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import DASH, one_line, with_article
from anadil.core.stages import STAGES
from anadil.release.model_source import locate
from anadil.release.trace.chain import DIGITS, BaseFiles, Chain, Link, SourceFile
from anadil.release.trace.corpus_rows import (
    CorpusSums,
    DocumentTrace,
    FileSums,
    find_documents,
    list_documents,
    questions_of,
    sum_rows,
)
from anadil.report.corpora import NOT_STATED, stated_licence
from anadil.report.format import words_of
from anadil.report.read import field, sum_stats
from anadil.runtime.cache_key import INPUT
from anadil.runtime.job import kind_of, source_of

Json = dict[str, Any]

EXPECTED = (
    "give a model, merged or adapter artifact, its merged directory, an export of it, or models:/NAME@ALIAS"
)
SINCE = f"{INPUT}{STAGES['clean'].extends}"
"""Name in an origin of the corpus that a corpus was added to."""
SAID = {"verified": "verified", "changed": "CHANGED", "missing": "not there", "unknown": "not checked"}


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
    corpora: tuple[CorpusSums, ...]
    """Sums of each whole corpus of the chain."""
    texts: tuple[TrainedText, ...]
    """Those that the model was trained on; none if one of them is missing."""
    stats: Json
    """Counts of all of them together."""
    training: Json
    documents: tuple[DocumentTrace, ...] = ()
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
            yield from list_documents(*corpus)

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

    def files_with_sums(self) -> list[tuple[SourceFile, FileSums | None]]:
        """Each source file with the sums over its documents; None for files that are not text."""
        sums = {(corpus.digest, each.name): each for corpus in self.corpora for each in corpus.files}
        return [(file, sums.get((file.reader, file.name)) if file.is_text else None) for file in self.files]

    def licences_of(self, file: FileSums) -> str:
        """The licences that the kept records of a file name, most first."""
        stated = stated_licence(self.manifest.recipe, "text")
        unnamed = f"{stated} (stated)" if stated else NOT_STATED
        named = [name or unnamed for name in file.licences]
        return f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" or DASH


def trace(
    uri: str, *, roots: Sequence[str] = (), documents: Sequence[str] = (), tracking: str | None = None
) -> Trace:
    """Follow a model back to its sources; the result names broken links beside the sound ones.

    Args:
        uri: A model, merged or adapter artifact, the `merged` directory of one, a directory that was exported from one, or
            `models:/NAME@ALIAS`.
        roots: Storage roots to look in, beside the one that the artifact lies in and the one of its recipe.
        documents: Ids, URLs or sources to look for, or files of them.
        tracking: The registry's address; left out, MLFLOW_TRACKING_URI.
    """
    place, manifest = _find_start(uri, roots, tracking)
    chain = Chain(_roots(place, manifest, roots))
    chain.follow(place, manifest)
    asked = questions_of(documents, {each.name: each.uri for each in chain.files if each.read_by == "corpus"})
    corpora = [each for each in chain.whole if each[1].kind == "corpus"]
    model = next((each for each in chain.whole if each[1].kind == "model"), None)
    trained = trained_corpora(chain.whole)
    last = _last(trained)
    learnt = [*last, *_earlier(last, corpora)]
    sources = {link.digest: source_of(link.word) for link in chain.links}
    texts = _texts(
        [(sources[each.digest], each.recipe, read_table(uri, each, "stats.json")) for uri, each in learnt]
    )
    return Trace(
        uri=place, kind=manifest.kind, digest=manifest.digest, manifest=manifest, links=tuple(chain.links),
        files=tuple(chain.files), base=chain.base, added=tuple(chain.added),
        corpora=tuple(sum_rows(*each) for each in corpora), texts=texts, stats=sum_stats([each.stats for each in texts]),
        training=read_table(*model, "training.json") if model else {},
        documents=find_documents(last, corpora, asked), whole=tuple(chain.whole),
    )  # fmt: skip


def trained_corpora(whole: Sequence[tuple[str, Manifest]]) -> list[tuple[str, Manifest]]:
    """The corpora that the model of a chain was trained on; none if one of them or the model is not whole."""
    digests = {
        digest for _, manifest in whole if manifest.kind == "model" for digest in corpus_digests(manifest)
    }
    corpora = [each for each in whole if each[1].kind == "corpus" and each[1].digest in digests]
    return corpora if {manifest.digest for _, manifest in corpora} == digests else []


def corpus_digests(model: Manifest) -> list[str]:
    """Digests of the corpora that a model names as its inputs."""
    return [
        digest
        for name, digest in model.origin.items()
        if name.startswith(INPUT) and kind_of(name.removeprefix(INPUT)) == "corpus"
    ]


def earlier_digests(digest: str, corpora: Mapping[str, Manifest]) -> list[str]:
    """Digests of the corpora that one was added to, the last first, as far as they are known."""
    digests: list[str] = []
    while digest in corpora and SINCE in corpora[digest].origin:
        digest = corpora[digest].origin[SINCE]
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


def _earlier(
    trained: Sequence[tuple[str, Manifest]], corpora: Sequence[tuple[str, Manifest]]
) -> list[tuple[str, Manifest]]:
    """Corpora that some were added to: each counts its new files alone."""
    known = {manifest.digest: manifest for _, manifest in corpora}
    named = {manifest.digest for _, manifest in trained}
    earlier = {digest for each in named for digest in earlier_digests(each, known)} - named
    return [each for each in corpora if each[1].digest in earlier]


def _last(trained: Sequence[tuple[str, Manifest]]) -> list[tuple[str, Manifest]]:
    """Corpora without those that another was added to, since that one holds their documents too."""
    known = {manifest.digest: manifest for _, manifest in trained}
    held = {digest for each in known for digest in earlier_digests(each, known)}
    return [each for each in trained if each[1].digest not in held]


def _find_start(uri: str, roots: Sequence[str], tracking: str | None) -> tuple[str, Manifest]:
    """Find the artifact of a name or, by the SHA-256 of its weights, of an exported directory."""
    place, manifest = locate(uri, tracking)
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


def _roots(place: str, manifest: Manifest, more: Sequence[str]) -> list[str]:
    known = field(manifest.recipe, "storage.root")
    stated = [known] if isinstance(known, str) else []
    return list(dict.fromkeys([root_of(place), *stated, *map(absolute, more)]))
