"""Documents with personal data, of texts themselves: `clean` counts them only where it replaces them (`clean.pii`)."""

from collections.abc import Sequence
from itertools import islice

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.clean.filters.pii import patterns_of, replace_personal_data
from anadil.text.corpus import read_file

MAX_TEXTS = 2_000
"""Texts that are read of a week; a part has them in the order of their hashes, so that the first are drawn by lot. A choice."""
MAX_CORPORA = 4
"""Earlier corpora of which texts are read: each is a file of 256 MiB at most. A choice."""


def personal_data_of(corpora: Sequence[tuple[str, Manifest]], language: str) -> list[tuple[float, float]]:
    """Count the texts with personal data, and those that were read, of the newest corpora.

    Args:
        corpora: URI and manifest of each, the newest first; each was added to the next.
        language: Its code.
    """
    older = [*(manifest for _, manifest in corpora[1:]), None]
    pairs = list(zip(corpora, older, strict=True))[: MAX_CORPORA + 1]
    return [_count(uri, _new_part(manifest, before), language) for (uri, manifest), before in pairs]


def _new_part(manifest: Manifest, earlier: Manifest | None) -> tuple[str, ...]:
    """Return the first file of training text that a corpus has beside an earlier one; empty for none."""
    # Files of an earlier corpus stay under their names.
    before = earlier.files if earlier else {}
    names = sorted(name for name in manifest.files if name.startswith("train/") and name not in before)
    return tuple(names[:1])


def _count(uri: str, part: tuple[str, ...], language: str) -> tuple[float, float]:
    if not part:
        return 0.0, 0.0
    folder, _ = fetch(uri, "corpus", part)
    patterns = patterns_of(language)
    texts = (each.text for each in islice(read_file(folder / part[0]), MAX_TEXTS))
    holds = [bool(replace_personal_data(text, patterns)[1]) for text in texts]
    return float(sum(holds)), float(len(holds))
