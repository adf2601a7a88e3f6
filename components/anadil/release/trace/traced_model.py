"""A traced model as data; the page, the summary and the notebook render it."""

from dataclasses import asdict, dataclass
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.core.candidates import answers
from anadil.core.errors import DataError, IntegrityError
from anadil.release.trace.chain import BaseFiles, Link, SourceFile
from anadil.release.trace.corpus_rows import CorpusSums, DocumentTrace
from anadil.release.trace.weeks import Week

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedText:
    """A corpus that the model was trained on."""

    source: str
    """Its name in the recipe; empty: the recipe names no sources."""
    recipe: Json
    """Recipe that it was cleaned by."""
    stats: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
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
    weeks: tuple[Week, ...] = ()
    """Models that were trained one after another, the first of all first."""
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
            for name in ("links", "files", "corpora", "documents", "added", "weeks")
        }
        return {**shown, "breaks": list(self.breaks), "gaps": list(self.gaps), "base": asdict(self.base), **tables}  # fmt: skip
