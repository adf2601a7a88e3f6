"""The corpora that a source's corpus was added to, one after another: its earlier weeks."""

from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts.artifact import Manifest, finished_manifest
from anadil.artifacts.prefetch import fetch
from anadil.clean.shards.shards import names
from anadil.clean.write.row_files import STATS
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.retrain import Retrain
from anadil.runtime.cache_key import INPUT

KIND = "corpus"
SINCE = f"{INPUT}clean.since"
FILE, OF = "file ", " of "
"""In the origin of a corpus: the beginning of an input file, and what stands before the key of a list."""
MAX_WEEKS = 26
"""Earlier corpora that are looked at: half a year of weeks. A choice."""
MAX_FILES = 4
"""Files of rows that are read of each, evenly chosen; one has 65,536 rows. A choice: 1 % of 100,000 rows is 1,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCorpus:
    """A corpus whose own input files came earlier; its statistics are of these files alone."""

    uri: str
    folder: Path
    """Local, with some of its statistics."""
    row_files: tuple[str, ...]
    """Files of rows that lie there."""
    manifest: Manifest

    @property
    def files(self) -> frozenset[str]:
        """URIs of its own input files."""
        return input_files(self.manifest)


def earlier_corpora(
    word: str, manifest: Manifest, retrain: Retrain
) -> tuple[tuple[EarlierCorpus, ...], list[str]]:
    """Return the earlier corpora, newest first, and a sentence on one that cannot be compared with.

    A corpus that was made anew of all files comes after that of the champion.

    Args:
        word: Word of the corpus, such as `corpus.web`.
        manifest: Its manifest.
        retrain: Section of the recipe.
    """
    place, digest = _before(manifest)
    if not place and retrain.champion:
        place = retrain.champion.artifacts.get(word, "")
    corpora: list[EarlierCorpus] = []
    while place and len(corpora) < MAX_WEEKS:
        try:
            earlier = finished_manifest(place, KIND)
            # A corpus of other documents would make another thing usual, in silence.
            if digest and digest != earlier.digest:
                raise IntegrityError(f"{place}: was written again since")
            row_files = chosen_rows(earlier)
            folder, _ = fetch(place, KIND, ("stats.json", *row_files))
        except (DataError, IntegrityError) as error:
            # An old corpus may be removed to save space: the others still tell what is usual.
            return tuple(corpora), [
                f"{word}: not compared with text before {len(corpora) + 1} weeks: {error}"
            ]
        corpora.append(EarlierCorpus(uri=place, folder=folder, row_files=row_files, manifest=earlier))
        place, digest = _before(earlier)
    return tuple(corpora), []


def chosen_rows(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of `MAX_FILES` files of rows at most, evenly chosen."""
    files = all_rows(manifest)
    return files[:: max(1, -(-len(files) // MAX_FILES))]


def all_rows(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of all files of rows, in order."""
    return tuple(sorted(name for name in manifest.files if name.startswith(f"{STATS}/")))


def new_names(manifest: Manifest, earlier: tuple[EarlierCorpus, ...]) -> frozenset[str]:
    """Return the names, as in `stats/`, of a corpus's input files that no earlier corpus had."""
    uris = sorted(input_files(manifest))
    known = frozenset[str]().union(*(each.files for each in earlier))
    return frozenset(name for name, uri in zip(names(uris), uris, strict=True) if uri not in known)


def input_files(manifest: Manifest) -> frozenset[str]:
    """Return the URIs of a corpus's own input files, without the lists that it was compared with."""
    lists = tuple(f"{OF}{each.key}" for each in STAGES["clean"].side_files)
    files = (name for name in manifest.origin if name.startswith(FILE) and not name.endswith(lists))
    return frozenset(name.removeprefix(FILE) for name in files)


def _before(manifest: Manifest) -> tuple[str, str]:
    """Return place and digest of the corpus that one was added to; empty for none."""
    clean = manifest.recipe.get("clean")
    place = clean.get("since") if SINCE in manifest.origin and isinstance(clean, dict) else None
    return str(place or ""), manifest.origin.get(SINCE, "")
