"""Overlap of a document with other text: by runs of units, and by the stretches that these make.

A document counts as seen if at least 70 % of its n-grams stand in the other text, or at least 30 % of it is stretches of
13 words (50 characters where no spaces are written) that do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anadil.text.folded_units import Hashes

WORDS_OF_NGRAM = 8  # Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8.
CHARACTERS_OF_NGRAM = 40
"""About eight words of Japanese, which have five characters with what stands between them."""
CONTAMINATED_SHARE = 0.7  # Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8.
WORDS_OF_STRETCH = 13
"""Source: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165, appendix C."""
CHARACTERS_OF_STRETCH = 50  # Source: OpenAI 2023, "GPT-4 Technical Report", arXiv:2303.08774, appendix C
STRETCH_SHARE = 0.3
"""Our choice. Llama 2 (arXiv:2307.09288, appendix A.6) calls a text clean below 20 %; of 147 Azerbaijani documents, most
of them laws, that blames 8 which nobody planted, and 30 % blames 2. 40 % misses halves of Japanese documents."""
MAX_FILTER_BITS = 26  # Bits of a hash that the filter before the search goes by: 64 MiB at most


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDocument:
    """Overlap of a document with the training part."""

    id: str
    share: float
    """Share of its n-grams; 0 for a document shorter than one."""
    stretch: int
    """Units of its longest part whose n-grams all do."""
    stretch_share: float
    """Share of its units in stretches that are long enough."""

    @property
    def is_contaminated(self) -> bool:
        """True if so much of it was seen that its score says little."""
        return self.share >= CONTAMINATED_SHARE or self.stretch_share >= STRETCH_SHARE


def seen_document(name: str, marks: NDArray[np.bool_], ngram: int, stretch: int) -> SeenDocument:
    """Figures of a document from the marks of its n-grams."""
    unseen = np.flatnonzero(~marks)
    runs = np.diff(np.concatenate(([-1], unseen, [len(marks)]))) - 1
    # A run of n-grams covers its first units, and one more n-gram but for its first.
    stretches = np.where(runs > 0, runs + ngram - 1, 0)
    long = int(stretches[stretches >= stretch].sum())
    num_units = len(marks) + ngram - 1
    return SeenDocument(
        id=name,
        share=float(marks.mean()) if len(marks) else 0.0,
        stretch=int(stretches.max()),
        # Stretches an unseen n-gram apart overlap.
        stretch_share=min(1.0, long / num_units),
    )


class SeenNgrams:
    """Marks of n-grams that other text holds; memory follows these, whatever the text."""

    def __init__(self, ngrams: Hashes) -> None:
        """Ask for n-grams, of which each may come several times."""
        self.wanted = np.unique(ngrams)
        self.seen = np.zeros(len(self.wanted), dtype=bool)
        """True for each that the other text holds."""
        bits = min(MAX_FILTER_BITS, max(10, (16 * len(self.wanted)).bit_length()))
        self._shift = np.uint64(64 - bits)
        # Nearly every n-gram of the corpus ends here, at a tenth of what the search costs.
        self._filter = np.zeros(2**bits, dtype=bool)
        self._filter[self.wanted >> self._shift] = True

    def mark(self, grams: Hashes) -> None:
        """Note the n-grams of a text."""
        grams = grams[self._filter[grams >> self._shift]]
        if len(grams):
            places = np.minimum(np.searchsorted(self.wanted, grams), len(self.wanted) - 1)
            self.seen[places[self.wanted[places] == grams]] = True

    def seen_of(self, grams: Hashes) -> NDArray[np.bool_]:
        """Mark of each of the n-grams, all of them asked for."""
        return np.asarray(self.seen[np.searchsorted(self.wanted, grams)], dtype=bool)
