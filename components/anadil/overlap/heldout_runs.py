"""Find the documents of a source that hold text of held-out documents of the others: 13 words in a row.

Of a held-out document that is written without spaces, it is 50 characters in a row. Shorter runs are set phrases: of 399
Azerbaijani laws in two sources, 163 share 8 words or 40 characters with one of 14 held out, and none holds more than 3 % of
it. 22 share 13 words.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anadil.artifacts.artifact import file_entry
from anadil.clean.dedup.sorted_documents import Numbers
from anadil.clean.kernels.characters import characters_of, encode
from anadil.clean.kernels.minhash import Hashes, hash_shingles, hash_units
from anadil.overlap.source_corpora import ids_of
from anadil.runtime.executor import FolderTask
from anadil.text.corpus import read_file
from anadil.text.language import load_language
from anadil.text.letters import WITHOUT_SPACES, script_of
from anadil.text.ngram_overlap import CHARACTERS_OF_STRETCH, WORDS_OF_STRETCH

MAX_DOCUMENTS = 10
"""Documents of a source that a run stands in at most; one of more is a common phrase, such as a licence or a footer.
Source: Brown et al. 2020, arXiv:2005.14165, appendix C, as the 13 words. Of 290 Python enhancement proposals, 269 share a run
of 8 words with 10 others."""
FILTER_BITS = 26
"""Bits of a hash that are asked before the search: 64 MiB, which all processes share."""
RUNS, OWNERS, FILTER = "runs.npy", "owners.npy", "filter.npy"
IDS, ENDS, PLACES = "ids.npy", "ends.npy", "places.npy"
LANGUAGE = "en"
"""Folding is the same in all languages."""


class HeldoutRuns:
    """Runs of held-out documents, sorted, with the first document that holds each; mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self._runs, self.owners, self._filter = (
            np.load(folder / name, mmap_mode="r") for name in (RUNS, OWNERS, FILTER)
        )
        self.digest = str(file_entry(folder / RUNS)["sha256"])
        """Equal ones mean equal runs."""

    def __len__(self) -> int:
        return len(self._runs)

    def places(self, text: str) -> Numbers:
        """Return the places of the runs that a text holds, each once."""
        grams = np.concatenate(runs_of(text))
        grams = grams[self._filter[grams >> np.uint64(64 - FILTER_BITS)]]
        if not len(grams):
            return np.empty(0, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._runs, grams), len(self._runs) - 1)
        return np.unique(places[self._runs[places] == grams])


def runs_of(text: str) -> tuple[Hashes, Hashes]:
    """Hash each run of 13 words and each of 50 characters of a text; case, signs and accents are no difference."""
    words, characters = (_units_of(text, by_character=each) for each in (False, True))
    return _runs(words, WORDS_OF_STRETCH), _runs(characters, CHARACTERS_OF_STRETCH)


def heldout_runs_of(text: str) -> Hashes:
    """Hash the runs of a held-out text, of words, or of characters where it is written without spaces."""
    # Where spaces part words, 50 characters are five to eight of them, which laws have in common by the dozen.
    by_character = script_of(filter(str.isalpha, text)) in WITHOUT_SPACES
    units = _units_of(text, by_character=by_character)
    return _runs(units, CHARACTERS_OF_STRETCH if by_character else WORDS_OF_STRETCH)


def _units_of(text: str, *, by_character: bool) -> Hashes:
    codes, _ = encode([text])
    hashes = np.empty(len(codes), dtype=np.uint64)
    return hashes[: hash_units(codes, characters_of(load_language(LANGUAGE)).units, by_character, hashes)]


def _runs(units: Hashes, width: int) -> Hashes:
    # The whole of a shorter text is no run: it could stand in any document.
    if len(units) < width:
        return np.empty(0, dtype=np.uint64)
    # Runs of words and of characters are told apart by what they are mixed with.
    return units[: hash_shingles(units, len(units), width)] ^ np.uint64(width)


def write_runs(texts: Iterable[str], folder: Path) -> None:
    """Write the runs of held-out documents into a folder; an owner is the place of a text among them."""
    runs, owners = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.int32)]
    for owner, text in enumerate(texts):
        runs.append(np.unique(heldout_runs_of(text)))
        owners.append(np.full(len(runs[-1]), owner, dtype=np.int32))
    # Stable: a run that several hold belongs to the first.
    distinct, first = np.unique(np.concatenate(runs), return_index=True)
    is_asked = np.zeros(2**FILTER_BITS, dtype=bool)
    is_asked[distinct >> np.uint64(64 - FILTER_BITS)] = True
    for name, array in ((RUNS, distinct), (OWNERS, np.concatenate(owners)[first]), (FILTER, is_asked)):
        np.save(folder / name, array)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(FolderTask):
    """Everything that a process needs to look for runs in one file of a corpus."""

    file: Path
    runs: Path

    @property
    def name(self) -> str:
        """For messages."""
        return f"runs of {self.file.parent.parent.name}/{self.file.parent.name}/{self.file.name}"


def find_runs(task: SearchTask) -> None:
    """Write the documents of a file that hold runs, and which, unless it is done."""
    if task.is_done():
        return
    runs = HeldoutRuns(task.runs)
    ids, places, ends = [], [np.empty(0, dtype=np.int64)], []
    for document in read_file(task.file):
        held = runs.places(document.text)
        if len(held):
            ids.append(document.id)
            places.append(held)
            ends.append(len(held))
    with task.draft() as draft:
        np.save(draft / IDS, ids_of(ids))
        np.save(draft / ENDS, np.cumsum(np.array(ends, dtype=np.int64)))
        np.save(draft / PLACES, np.concatenate(places))


@dataclass(slots=True)
class Boilerplate:
    """Counts of what is no sign of a held-out document."""

    runs: int = 0
    documents: int = 0


def add_counts(tasks: Sequence[SearchTask], counts: Numbers) -> None:
    """Add the documents of some files to the counts of those that hold each run."""
    for task in tasks:
        np.add.at(counts, np.load(task.folder / PLACES), 1)


def holders(
    tasks: Sequence[SearchTask], runs: HeldoutRuns, counts: Numbers, boilerplate: Boilerplate
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield ids of documents that hold runs which few others hold, and the first owner of such a run, a file at a time."""
    boilerplate.runs = int((counts > MAX_DOCUMENTS).sum())
    nobody = np.iinfo(np.int32).max
    for task in tasks:
        ids, ends, places = (np.load(task.folder / name) for name in (IDS, ENDS, PLACES))
        if not len(ids):
            continue
        owners = np.where(counts[places] <= MAX_DOCUMENTS, runs.owners[places], nobody)
        first = np.minimum.reduceat(owners, np.append(0, ends[:-1]))
        boilerplate.documents += int((first == nobody).sum())
        yield ids[first != nobody], first[first != nobody]
