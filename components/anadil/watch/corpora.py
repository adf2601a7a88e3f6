"""The corpora of a run, as pages that look at their documents need them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table
from anadil.core.errors import DataError
from anadil.release.runs import Run
from anadil.report.read import Json, table_of
from anadil.watch.data.stats_rows import StatsRows

CORPUS = "corpus"


@dataclass(frozen=True, kw_only=True)
class WatchedCorpus:
    """One corpus."""

    word: str
    """`corpus`, or `corpus.web` for that of a source."""
    uri: str
    manifest: Manifest
    stats: Json
    """Its `stats.json`."""

    @functools.cached_property
    def rows(self) -> StatsRows:
        """Rows of its documents."""
        return StatsRows(self.uri)

    @property
    def num_rows(self) -> int:
        """Documents that were read."""
        return int(str(self.stats.get("in") or 0))

    @property
    def modes(self) -> Mapping[str, Any]:
        """`clean.modes` of its recipe."""
        return table_of(table_of(self.manifest.recipe.get("clean")).get("modes"))

    @property
    def keys_of_rules(self) -> tuple[str, ...]:
        """Keys of the recipe that lead to its limits."""
        _, _, source = self.word.partition(".")
        return ("sources", source, "clean", "rules") if source else ("clean", "rules")


def corpora_of(run: Run) -> list[str]:
    """Return the words of the corpora that a run has finished."""
    return [word for word in run.artifacts if word.partition(".")[0] == CORPUS]


def corpus_of(run: Run, word: str) -> WatchedCorpus:
    """Return one corpus of a run."""
    uri = uri_of(run, word)
    manifest = artifact.finished_manifest(uri, CORPUS)
    return WatchedCorpus(word=word, uri=uri, manifest=manifest, stats=read_table(uri, manifest, "stats.json"))


def uri_of(run: Run, word: str) -> str:
    """Return the place of an artifact of a run."""
    if word not in run.artifacts:
        raise DataError(f"{run.id}: has no {word[:60]} yet; the page shows it once its stage has finished")
    return run.artifacts[word]
