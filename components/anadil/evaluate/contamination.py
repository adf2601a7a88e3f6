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
from numpy.typing import NDArray

from anadil.core.progress import track
from anadil.text.corpus import Document
from anadil.text.folded_units import Hashes, ngram_hashes, unit_hashes
from anadil.text.language import Language

WORDS_OF_NGRAM = 8
"""Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8."""
CHARACTERS_OF_NGRAM = 40
"""About eight words of Japanese, which have five characters with what stands between them."""
CONTAMINATED_SHARE = 0.7
"""Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8."""
WORDS_OF_STRETCH = 13
"""Source: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165, appendix C."""
CHARACTERS_OF_STRETCH = 50
"""Source: OpenAI 2023, "GPT-4 Technical Report", arXiv:2303.08774, appendix C."""
STRETCH_SHARE = 0.3
"""Our choice. Llama 2 (arXiv:2307.09288, appendix A.6) calls a text clean below 20 %; of 147 Azerbaijani documents, most
of them laws, that blames 8 which nobody planted, and 30 % blames 2. 40 % misses halves of Japanese documents."""
MAX_FILTER_BITS = 26
"""Of a hash that the filter before the search goes by: 64 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDocument:
    """How much of a document stands in the training part."""

    id: str
    share: float
    """Of its n-grams; 0 for a document shorter than one."""
    stretch: int
    """Units of its longest part whose n-grams all do."""
    stretch_share: float
    """Of its units, that lie in stretches which are long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """What the held-out text shares with the training part."""

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
    by_character = _is_by_character(heldout, language)
    ngram = CHARACTERS_OF_NGRAM if by_character else WORDS_OF_NGRAM
    stretch = CHARACTERS_OF_STRETCH if by_character else WORDS_OF_STRETCH

    def units_of(text: str) -> Hashes:
        return unit_hashes(text, language, by_character=by_character)

    # The corpus is normalized already, held-out files of the user's are not.
    units = [units_of(language.normalize(document.text)) for document in heldout]
    grams = [ngram_hashes(own, ngram) for own in units]
    index = _SeenIndex(grams)
    wholes = {own.tobytes() for own in units}
    lengths = set(map(len, units))
    exact = set()
    num_train = 0
    for document in track(train, "contamination"):
        num_train += 1
        own = units_of(document.text)
        if len(own) in lengths and (whole := own.tobytes()) in wholes:
            exact.add(whole)
        index.mark(ngram_hashes(own, ngram))
    ids = [document.id for document in heldout]
    marks = [index.seen_of(own) for own in grams]
    is_exact = [own.tobytes() in exact for own in units]
    figures = [_figures(name, own, ngram, stretch) for name, own in zip(ids, marks, strict=True)]
    contaminated = [
        whole or one.share >= CONTAMINATED_SHARE or one.stretch_share >= STRETCH_SHARE
        for one, whole in zip(figures, is_exact, strict=True)
    ]
    overlapping = [whole or one.share > 0 for one, whole in zip(figures, is_exact, strict=True)]
    num_grams = sum(map(len, marks))
    return Contamination(
        unit="characters" if by_character else "words",
        ngram=ngram,
        stretch=stretch,
        num_documents=len(ids),
        num_train_documents=num_train,
        exact=_chosen(ids, is_exact),
        contaminated=_chosen(ids, contaminated),
        overlapping=_chosen(ids, overlapping),
        coverage=sum(int(own.sum()) for own in marks) / num_grams if num_grams else 0.0,
        seen=tuple(
            one
            for one, is_seen in zip(figures, contaminated, strict=True)
            if is_seen or one.stretch >= stretch
        ),
    )


def _is_by_character(heldout: Sequence[Document], language: Language) -> bool:
    sample = language.shingle_units(" ".join(language.prompts) or "".join(each.text for each in heldout[:1]))
    return all(len(unit) == 1 for unit in sample)


def _chosen(ids: Sequence[str], chosen: Sequence[bool]) -> tuple[str, ...]:
    return tuple(name for name, is_chosen in zip(ids, chosen, strict=True) if is_chosen)


def _figures(name: str, marks: NDArray[np.bool_], ngram: int, stretch: int) -> SeenDocument:
    """What the marks of a document's n-grams say of its units."""
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


class _SeenIndex:
    """Which n-grams of the held-out text the training part holds."""

    def __init__(self, grams: Sequence[Hashes]) -> None:
        self._wanted = np.unique(np.concatenate(grams)) if grams else np.empty(0, np.uint64)
        self._seen = np.zeros(len(self._wanted), dtype=bool)
        bits = min(MAX_FILTER_BITS, max(10, (16 * len(self._wanted)).bit_length()))
        self._shift = np.uint64(64 - bits)
        # Nearly every n-gram of the corpus ends here, at a tenth of what the search costs.
        self._filter = np.zeros(2**bits, dtype=bool)
        self._filter[self._wanted >> self._shift] = True

    def mark(self, grams: Hashes) -> None:
        """Note the n-grams of a training document."""
        grams = grams[self._filter[grams >> self._shift]]
        if len(grams):
            places = np.minimum(np.searchsorted(self._wanted, grams), len(self._wanted) - 1)
            self._seen[places[self._wanted[places] == grams]] = True

    def seen_of(self, grams: Hashes) -> NDArray[np.bool_]:
        """Whether each n-gram of a held-out document was noted."""
        return np.asarray(self._seen[np.searchsorted(self._wanted, grams)], dtype=bool)
