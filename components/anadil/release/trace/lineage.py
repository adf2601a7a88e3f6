"""Trace a model back to its source files, and find documents in its training data."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from anadil.artifacts.artifact import Manifest, sha256_of
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.artifacts.uri import absolute
from anadil.artifacts.weight_files import has_weights, weight_files
from anadil.core.candidates import BY_KIND
from anadil.core.errors import DataError
from anadil.core.format import with_article
from anadil.release.model_source import locate
from anadil.release.notebook import html_page, html_table
from anadil.release.trace.chain import Chain
from anadil.release.trace.corpus_rows import find_documents, list_documents, questions_of, sum_rows
from anadil.release.trace.page import answer, trace_page
from anadil.release.trace.traced_model import Json, TracedModel, TrainedText
from anadil.release.trace.weeks import corpus_digests, earlier_digests, weeks_of
from anadil.report.read import field, sum_stats
from anadil.runtime.job import source_of

EXPECTED = (
    "give a model, merged or adapter artifact, its merged directory, an export of it, or models:/NAME@ALIAS"
)


class Trace(TracedModel):
    """Result of `trace`; a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = [(each.name, each.state, each.key) for each in self.files]
        files = html_table("Source files", ("file", "state", "named by"), rows)
        return f"<p>{escape(answer(self))}</p>{files}{html_page(trace_page(self), 'The whole chain')}"

    def list_documents(self) -> Iterator[Json]:
        """Id, source and URL of every document that the model was trained on, one at a time."""
        for corpus in _last(trained_corpora(self.whole)):
            yield from list_documents(*corpus)


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

    Raises:
        DataError: There is no model there whose origin is known.
        IntegrityError: A registered model is not the one that was promoted.
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
    sums = tuple(sum_rows(*each) for each in corpora)
    sources = {link.digest: source_of(link.word) for link in chain.links}
    texts = _texts(
        [(sources[each.digest], each.recipe, read_table(uri, each, "stats.json")) for uri, each in learnt]
    )
    return Trace(
        uri=place, kind=manifest.kind, digest=manifest.digest, manifest=manifest, links=tuple(chain.links),
        files=tuple(chain.files), base=chain.base, added=tuple(chain.added),
        corpora=sums, weeks=weeks_of(chain.whole, sums),
        texts=texts, stats=sum_stats([each.stats for each in texts]),
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
