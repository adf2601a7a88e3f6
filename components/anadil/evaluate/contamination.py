"""Held-out text that training has seen: equal documents, and documents made of seen n-grams.

Two texts are compared in one form (the language's normalization, case folded, cut into its
units: words, or characters where it writes no spaces; only letters and digits of them), so that
punctuation, case and spaces hide nothing. A document is

    exact         if a training document has the same units,
    contaminated  if it is exact, or at least 70 % of its n-grams stand in the training part,
    overlapping   if it shares an n-gram at all; set phrases of legal text do.

Only hashes of held-out n-grams are kept, so memory follows the held-out text.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anadil.core.progress import track
from anadil.text.corpus import Document
from anadil.text.language import Language

_Hashes = NDArray[np.uint64]

WORDS_OF_NGRAM = 8
"""Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8."""
CHARACTERS_OF_NGRAM = 40
"""About eight words of Japanese, which have five characters with what stands between them."""
CONTAMINATED_SHARE = 0.7
"""Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 8."""
PUNCTUATION = re.compile(r"[\W_]+")
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier with well-mixed bits. Source: Steele et al. 2014, SplitMix64."""


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


def find_contamination(
    heldout: Sequence[Document], train: Iterable[Document], language: Language
) -> Contamination:
    """Compare the held-out documents with all training documents."""
    sample = language.shingle_units(" ".join(language.prompts) or "".join(each.text for each in heldout[:1]))
    by_character = all(len(unit) == 1 for unit in sample)
    ngram = CHARACTERS_OF_NGRAM if by_character else WORDS_OF_NGRAM
    hashed = [_unit_hashes(document.text, language) for document in heldout]
    grams = [_ngram_hashes(units, ngram) for units in hashed]
    wanted = np.unique(np.concatenate(grams)) if grams else np.empty(0, np.uint64)
    seen = np.zeros(len(wanted), dtype=bool)
    wholes = {units.tobytes() for units in hashed}
    exact = set()
    num_train = 0
    for document in track(train, "contamination"):
        num_train += 1
        units = _unit_hashes(document.text, language)
        if (whole := units.tobytes()) in wholes:
            exact.add(whole)
        _mark(wanted, seen, _ngram_hashes(units, ngram))
    shares = [_share(wanted, seen, own) for own in grams]
    is_exact = [units.tobytes() in exact for units in hashed]
    ids = [document.id for document in heldout]
    num_grams = sum(len(own) for own in grams)
    covered = sum(share * len(own) for share, own in zip(shares, grams, strict=True))
    return Contamination(
        unit="characters" if by_character else "words",
        ngram=ngram,
        num_documents=len(ids),
        num_train_documents=num_train,
        exact=tuple(i for i, whole in zip(ids, is_exact, strict=True) if whole),
        contaminated=tuple(
            i
            for i, whole, share in zip(ids, is_exact, shares, strict=True)
            if whole or share >= CONTAMINATED_SHARE
        ),
        overlapping=tuple(
            i for i, whole, share in zip(ids, is_exact, shares, strict=True) if whole or share > 0
        ),
        coverage=covered / num_grams if num_grams else 0.0,
    )


def _unit_hashes(text: str, language: Language) -> _Hashes:
    units = [PUNCTUATION.sub("", unit) for unit in language.shingle_units(language.normalize(text))]
    units = [unit for unit in units if unit]
    return np.fromiter((_unit_hash(unit) for unit in units), dtype=np.uint64, count=len(units))


@lru_cache(maxsize=2**17)
def _unit_hash(unit: str) -> int:
    return int.from_bytes(hashlib.blake2b(unit.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _ngram_hashes(units: _Hashes, ngram: int) -> _Hashes:
    """A hash of each run of `ngram` units; 64 bits, in which billions of runs rarely meet."""
    count = len(units) - ngram + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    mixed = np.zeros(count, dtype=np.uint64)
    for offset in range(ngram):
        mixed = (mixed ^ units[offset : offset + count]) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _mark(wanted: _Hashes, seen: NDArray[np.bool_], grams: _Hashes) -> None:
    if len(wanted) and len(grams):
        places = np.minimum(np.searchsorted(wanted, grams), len(wanted) - 1)
        seen[places[wanted[places] == grams]] = True


def _share(wanted: _Hashes, seen: NDArray[np.bool_], grams: _Hashes) -> float:
    return float(seen[np.searchsorted(wanted, grams)].mean()) if len(grams) else 0.0
