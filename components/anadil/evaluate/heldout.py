"""Held-out text: the corpus's own part, or the files that the recipe or command line names.

Unlike `clean` this reads text as it is, so one bad record is an error: figures of a part of a text would be compared
with figures of another.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anadil.artifacts.scored_text import documents_of, refuse_too_large
from anadil.core.errors import DataError
from anadil.core.progress import track
from anadil.text import ngram_overlap
from anadil.text.corpus import Document, read_corpora
from anadil.text.language_data import Language

log = logging.getLogger(__name__)

WordReader = Callable[[ngram_overlap.Hashes, ngram_overlap.Hashes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heldout:
    """Text that training never saw, and where it came from."""

    documents: tuple[Document, ...]
    source: str
    """`corpus` or `files`."""
    files: tuple[str, ...] = ()
    empty: int = 0
    """Records with an empty text, left out."""
    repeated: int = 0
    """Documents with the text of an earlier one; scored, but they make the interval look surer."""

    @property
    def sha256(self) -> str:
        """Digest of the texts, by which two scores are known to be of the same text."""
        return digest_of(self.documents)


def digest_of(documents: Iterable[Document]) -> str:
    """Return the SHA-256 over the digests of all texts, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(hashlib.sha256(document.text.encode()).digest())
    return digest.hexdigest()


def by_target(
    corpora: Mapping[str, Path], target_sources: Collection[str]
) -> tuple[list[Path], dict[str, Path]]:
    """Return the corpora in the language that is taught, and the others by their sources.

    The held-out text of the others tells what is retained of their languages.
    """
    others = {name: path for name, path in corpora.items() if name and name not in target_sources}
    return [path for name, path in corpora.items() if name not in others], others


def read_heldout(corpora: Sequence[Path], files: Sequence[str], text_field: str, language: str) -> Heldout:
    """Read the text to score."""
    source = (
        refuse_too_large(documents_of(files, text_field, language))
        if files
        else read_corpora(corpora, "heldout")
    )
    read = list(source)
    documents = tuple(document for document in read if document.text)
    refuse_no_heldout(len(documents), files or [f"{corpus}/heldout" for corpus in corpora])
    repeated = len(documents) - len({document.text for document in documents})
    empty = len(read) - len(documents)
    if empty or repeated:
        log.warning("held-out: %d empty documents skipped, %d are duplicates", empty, repeated)
    place = "files" if files else "corpus"
    return Heldout(documents=documents, source=place, files=tuple(files), empty=empty, repeated=repeated)


def refuse_no_heldout(num_documents: int, places: Sequence[str]) -> None:
    """Refuse held-out text without a document."""
    if not num_documents:
        raise DataError(
            f"held-out text is empty: {', '.join(places)}; give evaluate.heldout a file with text or "
            "raise clean.heldout_fraction"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Overlap of the held-out text with the training part."""

    unit: str
    """`words` or `characters`."""
    ngram: int
    num_documents: int
    num_train_documents: int
    exact: tuple[str, ...]
    """Ids of documents that stand in the training part as a whole."""
    contaminated: tuple[str, ...]
    overlapping: tuple[str, ...]
    coverage: float
    """Share of all held-out n-grams that stand in the training part."""
    stretch: int = ngram_overlap.WORDS_OF_STRETCH
    """Units from which a seen stretch is long enough to count."""
    seen: tuple[ngram_overlap.SeenDocument, ...] = ()
    """Figures of each document that is contaminated, or holds a stretch that is long enough."""


def find_contamination(
    heldout: Sequence[Document],
    train: Iterable[Document],
    language: Language,
    items: Sequence[Document] = (),
    readers: Sequence[WordReader] = (),
) -> tuple[Contamination, frozenset[str]]:
    """Compare the held-out documents with all training documents, and in the same pass other `items`.

    `readers` take the words and endings of each training document, where spaces part words.

    Returns:
        Contamination of the held-out documents, and the ids of the items that training text holds.
    """
    sample = language.shingle_units(" ".join(language.prompts) or "".join(each.text for each in heldout[:1]))
    by_character = all(len(unit) == 1 for unit in sample)
    ngram = ngram_overlap.CHARACTERS_OF_NGRAM if by_character else ngram_overlap.WORDS_OF_NGRAM
    stretch = ngram_overlap.CHARACTERS_OF_STRETCH if by_character else ngram_overlap.WORDS_OF_STRETCH

    def units_of(text: str) -> ngram_overlap.Hashes:
        return ngram_overlap.unit_hashes(text, language, by_character=by_character)

    # The corpus is normalized already, held-out files of the user's are not.
    documents = [*heldout, *items]
    units = [units_of(language.normalize(document.text)) for document in documents]
    grams = [ngram_overlap.ngram_hashes(each, ngram) for each in units]
    index = ngram_overlap.SeenNgrams(np.concatenate([np.empty(0, np.uint64), *grams]))
    wholes = {each.tobytes() for each in units}
    # Comparing lengths first spares a copy of nearly every training document.
    lengths = set(map(len, units))
    exact = set()
    num_train = num_bytes = 0
    for document in track(train, "contamination"):
        num_train += 1
        num_bytes += len(document.text.encode())
        if readers and not by_character:
            hashes, endings = ngram_overlap.word_hashes(document.text, language)
            for read in readers:
                read(hashes, endings)
        else:
            hashes = units_of(document.text)
        if len(hashes) in lengths and (whole := hashes.tobytes()) in wholes:
            exact.add(whole)
        index.mark(ngram_overlap.ngram_hashes(hashes, ngram))
    log.info("training text: %s bytes in %s documents", f"{num_bytes:,}", f"{num_train:,}")
    marks = [index.seen_of(each) for each in grams]
    figures = [
        (ngram_overlap.seen_document(document.id, each, ngram, stretch), hashes.tobytes() in exact)
        for document, each, hashes in zip(documents, marks, units, strict=True)
    ]
    of_items = figures[len(heldout) :]
    del figures[len(heldout) :], marks[len(heldout) :]
    num_grams = sum(map(len, marks))
    contamination = Contamination(
        unit="characters" if by_character else "words",
        ngram=ngram,
        stretch=stretch,
        num_documents=len(heldout),
        num_train_documents=num_train,
        exact=tuple(one.id for one, whole in figures if whole),
        contaminated=tuple(one.id for one, whole in figures if whole or one.is_contaminated),
        overlapping=tuple(one.id for one, whole in figures if whole or one.share > 0),
        coverage=sum(int(each.sum()) for each in marks) / num_grams if num_grams else 0.0,
        seen=tuple(one for one, whole in figures if whole or one.is_contaminated or one.stretch >= stretch),
    )
    return contamination, frozenset(one.id for one, whole in of_items if whole or one.is_contaminated)
