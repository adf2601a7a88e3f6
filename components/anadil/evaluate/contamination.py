"""Held-out text that training has seen: equal documents, and documents made of seen n-grams.

Two texts are compared as `folded_units`: punctuation, case, diacritics and spaces hide nothing. A document is

    exact         if a training document has the same units,
    contaminated  if it is exact, or at least 70 % of its n-grams stand in the training part, or at least
                  30 % of it is stretches of 13 words (50 characters where no spaces are written) that do,
    overlapping   if it shares an n-gram at all; set phrases of legal text do.

Stretches find what the share of n-grams misses: half a document, or a copy with an edit in every
twentieth word. One stretch alone decides in a short document only: of legal text, where laws quote each
other, every second document holds a sentence of another one.

Only hashes of held-out n-grams are kept, so memory follows the held-out text, whatever the corpus.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from anadil.core.progress import track
from anadil.text.corpus import Document
from anadil.text.folded_units import Hashes, ngram_hashes, unit_hashes
from anadil.text.language_data import Language
from anadil.text.overlap import (
    CHARACTERS_OF_NGRAM,
    CHARACTERS_OF_STRETCH,
    WORDS_OF_NGRAM,
    WORDS_OF_STRETCH,
    SeenDocument,
    SeenNgrams,
    seen_document,
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
    stretch: int = WORDS_OF_STRETCH
    """Units from which a seen stretch is long enough to count."""
    seen: tuple[SeenDocument, ...] = ()
    """Figures of each document that is contaminated, or holds a stretch that is long enough."""


def find_contamination(
    heldout: Sequence[Document], train: Iterable[Document], language: Language
) -> Contamination:
    """Compare the held-out documents with all training documents."""
    sample = language.shingle_units(" ".join(language.prompts) or "".join(each.text for each in heldout[:1]))
    by_character = all(len(unit) == 1 for unit in sample)
    ngram = CHARACTERS_OF_NGRAM if by_character else WORDS_OF_NGRAM
    stretch = CHARACTERS_OF_STRETCH if by_character else WORDS_OF_STRETCH

    def units_of(text: str) -> Hashes:
        return unit_hashes(text, language, by_character=by_character)

    # The corpus is normalized already, held-out files of the user's are not.
    units = [units_of(language.normalize(document.text)) for document in heldout]
    grams = [ngram_hashes(each, ngram) for each in units]
    index = SeenNgrams(np.concatenate([np.empty(0, np.uint64), *grams]))
    wholes = {each.tobytes() for each in units}
    # Comparing lengths first spares a copy of nearly every training document.
    lengths = set(map(len, units))
    exact = set()
    num_train = 0
    for document in track(train, "contamination"):
        num_train += 1
        hashes = units_of(document.text)
        if len(hashes) in lengths and (whole := hashes.tobytes()) in wholes:
            exact.add(whole)
        index.mark(ngram_hashes(hashes, ngram))
    marks = [index.seen_of(each) for each in grams]
    figures = [
        (seen_document(document.id, each, ngram, stretch), hashes.tobytes() in exact)
        for document, each, hashes in zip(heldout, marks, units, strict=True)
    ]
    num_grams = sum(map(len, marks))
    return Contamination(
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
