"""From a model back to every file that it was made of, and from a document to whether a model has seen it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.artifacts.uri import absolute
from anadil.artifacts.weight_files import has_weights, weight_files
from anadil.core.errors import DataError, IntegrityError
from anadil.release.model_source import check_address
from anadil.release.notebook import html_page, html_table
from anadil.release.registry.client import resolve
from anadil.release.trace.chain import DIGITS, BaseFiles, Chain, Link, SourceFile, sha256_of
from anadil.release.trace.rows import (
    CorpusSums,
    DocumentTrace,
    find_documents,
    list_documents,
    questions_of,
    sum_rows,
)
from anadil.report.read import field

KINDS = ("model", "adapter")
REGISTERED = "models:/"
WANTED = "give a model or adapter artifact, its merged directory, an export of it, or models:/NAME@ALIAS"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Everything that a model goes back to."""

    uri: str
    kind: str
    digest: str
    manifest: Manifest
    links: tuple[Link, ...]
    """The model first."""
    files: tuple[SourceFile, ...]
    base: BaseFiles
    corpora: tuple[CorpusSums, ...]
    """Of each whole corpus of the chain."""
    stats: Json
    """What the corpus that was trained on says of itself."""
    training: Json
    """`training.json` of the model."""
    documents: tuple[DocumentTrace, ...] = ()
    """Answers to what was asked for."""
    whole: tuple[tuple[str, Manifest], ...] = ()
    """Artifacts of the chain, every byte of which was compared."""

    @property
    def breaks(self) -> tuple[str, ...]:
        """What differs from the digest that it should have: where, and how."""
        told: list[Link | SourceFile | BaseFiles] = [*self.links, *self.files, self.base]
        return tuple(each.why for each in told if each.state == "changed")

    @property
    def gaps(self) -> tuple[str, ...]:
        """Artifacts that were not found, behind which nothing is known."""
        return tuple(each.why for each in self.links if each.state == "missing")

    def check(self) -> None:
        """Refuse a chain that is broken.

        Raises:
            IntegrityError: Something differs from its digest.
            DataError: An artifact was not found.
        """
        if self.breaks:
            raise IntegrityError("; ".join(self.breaks[:5]))
        if self.gaps:
            raise DataError("; ".join(self.gaps[:5]))

    def as_json(self) -> Json:
        """The same as JSON."""
        shown = {name: getattr(self, name) for name in ("uri", "kind", "digest")}
        tables = {
            name: [asdict(each) for each in getattr(self, name)]
            for name in ("links", "files", "corpora", "documents")
        }
        return {**shown, "breaks": list(self.breaks), "gaps": list(self.gaps), "base": asdict(self.base), **tables}  # fmt: skip

    def _repr_html_(self) -> str:
        from anadil.release.trace.page import answer, trace_page

        files = html_table(
            "Source files",
            ("file", "state", "named by"),
            [(each.name, each.state, each.key) for each in self.files],
        )
        return f"<p>{escape(answer(self))}</p>{files}{html_page(trace_page(self), 'The whole chain')}"

    def list_documents(self) -> Iterator[Json]:
        """Id, source and URL of every document that the model was trained on, one at a time."""
        corpus = trained_corpus(self.whole)
        if corpus is not None:
            yield from list_documents(*corpus)


def trace(
    uri: str, *, roots: Sequence[str] = (), documents: Sequence[str] = (), tracking: str | None = None
) -> Trace:
    """Follow a model back to its sources. What is broken is told in the result, with all that is known otherwise.

    Args:
        uri: A model or adapter artifact, the `merged` directory of one, a directory that was exported from one, or
            `models:/NAME@ALIAS`.
        roots: Storage roots to look in, beside the one that the artifact lies in and the one of its recipe.
        documents: Ids, URLs or sources to look for, or files of them.
        tracking: The registry's address; left out, MLFLOW_TRACKING_URI.

    Raises:
        DataError: There is no model there whose origin is known.
        IntegrityError: A registered model is not the one that was promoted.
    """
    place, manifest = find_start(uri, roots, tracking)
    chain = Chain(_roots(place, manifest, roots))
    chain.follow(place, manifest)
    asked = questions_of(documents, {each.name: each.uri for each in chain.files if each.read_by == "corpus"})
    corpora = [(each, found) for each, found in chain.whole if found.kind == "corpus"]
    model = next((each for each in chain.whole if each[1].kind == "model"), None)
    corpus = trained_corpus(chain.whole)
    return Trace(
        uri=place, kind=manifest.kind, digest=manifest.digest, manifest=manifest, links=tuple(chain.links),
        files=tuple(chain.files), base=chain.base,
        corpora=tuple(sum_rows(each, found) for each, found in corpora),
        stats=read_table(*corpus, "stats.json") if corpus else {},
        training=read_table(*model, "training.json") if model else {},
        documents=find_documents(corpus, corpora, asked), whole=tuple(chain.whole),
    )  # fmt: skip


def trained_corpus(whole: Sequence[tuple[str, Manifest]]) -> tuple[str, Manifest] | None:
    """The corpus that the model of a chain was trained on; None where one of the two is not whole."""
    wanted = {found.origin.get("input corpus") for _, found in whole if found.kind == "model"}
    return next((each for each in whole if each[1].kind == "corpus" and each[1].digest in wanted), None)


def find_start(uri: str, roots: Sequence[str] = (), tracking: str | None = None) -> tuple[str, Manifest]:
    """The artifact that a person names, and its manifest; of what was exported the artifact that it came from.

    Raises:
        DataError: There is none.
        IntegrityError: A registered model is not the one that was promoted.
        RecipeError: The URI is empty, or holds a password or a token.
    """
    if uri.startswith(REGISTERED):
        return _registered(uri, roots, tracking)
    check_address(uri)
    place = absolute(uri)
    manifest = artifact.read_manifest(place)
    if manifest is None and place.endswith("/merged"):
        place = place.removesuffix("/merged")
        manifest = artifact.read_manifest(place)
    if manifest is not None and manifest.kind in KINDS:
        return place, manifest
    if manifest is not None:
        raise DataError(f"{uri}: holds a {manifest.kind}, not a model; {WANTED}")
    return _exported(uri, roots)


def _registered(uri: str, roots: Sequence[str], tracking: str | None) -> tuple[str, Manifest]:
    version = resolve(uri, tracking)
    place, manifest = find_start(version.uri, roots)
    if manifest.digest != version.digest:
        raise IntegrityError(
            f"{uri}: version {version.version} lies at {version.uri}, which holds {manifest.digest[:DIGITS]} now, and "
            f"{version.digest[:DIGITS]} was promoted; promote the model again, or roll back"
        )
    return place, manifest


def _exported(uri: str, roots: Sequence[str]) -> tuple[str, Manifest]:
    """The artifact whose weights lie in a directory, told by their SHA-256."""
    weights = weight_files(Path(uri)) if Path(uri).is_dir() and has_weights(Path(uri)) else []
    if not weights:
        raise DataError(f"{uri}: no artifact and no directory with safetensors; {WANTED}")
    wanted = {sha256_of(str(file)) for file in weights}
    for kind in KINDS:
        for place, manifest in artifacts_below([*map(absolute, roots), root_of(uri)], kind):
            if wanted <= {entry["sha256"] for entry in manifest.files.values()}:
                return place, manifest
    told = ", ".join(roots) or "none was given"
    raise DataError(
        f"{uri}: says nothing of what it was made from, and no artifact with these weights lies below the storage "
        f"roots ({told}); name the root of the run that made it with --root"
    )


def _roots(place: str, manifest: Manifest, more: Sequence[str]) -> list[str]:
    known = field(manifest.recipe, "storage.root")
    own = [known] if isinstance(known, str) else []
    return list(dict.fromkeys([root_of(place), *own, *map(absolute, more)]))
