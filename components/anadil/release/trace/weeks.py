"""Retrainings of a chain: what each model has learnt that the one before had not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anadil.artifacts.artifact import Manifest
from anadil.core.format import number
from anadil.core.stages import STAGES
from anadil.release.trace.corpus_rows import CorpusSums
from anadil.report.read import field
from anadil.runtime.cache_key import INPUT
from anadil.runtime.job import kind_of

SINCE = f"{INPUT}{STAGES['clean'].extends}"
"""Name in an origin of the corpus that a corpus was added to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """A model of the chain, and the text that came for it."""

    key: str
    digest: str
    champion: str
    """Registered version that it began with, as `anadil-az/3`; empty for the first."""
    files: int
    """New source files of text."""
    documents: int
    words: int
    tokens: int | None
    """Tokens that its training has counted, repeated ones included."""


def weeks_of(whole: Iterable[tuple[str, Manifest]], sums: Sequence[CorpusSums]) -> tuple[Week, ...]:
    """Return the models of a chain, the oldest first; a chain lists the newest first."""
    manifests = [manifest for _, manifest in whole]
    corpora = {each.digest: each for each in manifests if each.kind == "corpus"}
    texts = {each.digest: each for each in sums}
    known: set[str] = set()
    weeks = []
    for model in reversed([each for each in manifests if each.kind == "model"]):
        read = {
            digest for name in corpus_digests(model) for digest in (name, *earlier_digests(name, corpora))
        }
        # A corpus that another adds to has rows of its own files alone, so sums of several count nothing twice.
        files = [file for digest in read - known if digest in texts for file in texts[digest].files]
        known |= read
        tokens = number(model.figures.get("tokens"))
        weeks.append(
            Week(
                key=model.key, digest=model.digest, champion=_champion(model), files=len(files),
                documents=sum(each.documents for each in files), words=sum(each.words for each in files),
                tokens=None if tokens is None else int(tokens),
            )
        )  # fmt: skip
    return tuple(weeks)


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


def _champion(model: Manifest) -> str:
    name = field(model.recipe, "retrain.champion.name")
    # A run from the base names the champion that it competes with, and has learnt nothing of it.
    if not name or not field(model.recipe, "pretrain.start_from"):
        return ""
    return f"{name}/{field(model.recipe, 'retrain.champion.version')}"
