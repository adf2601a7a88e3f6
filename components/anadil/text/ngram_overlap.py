"""Overlap of a document with other text: by runs of units, and by the stretches that these make.

A document counts as seen if at least 70 % of its n-grams stand in the other text, or at least 30 % of it is stretches of
13 words (50 characters where no spaces are written) that do.

Units are hashes of words, whatever their case, diacritics, punctuation and spacing: people type Azerbaijani without
diacritics, programs write it in capitals, in NFD, or with other quotation marks. In a language without spaces each
letter is a unit.
"""

import functools
import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anadil.text.language_data import Language

Hashes = NDArray[np.uint64]

LAST = 0x33400  # No letter stands behind it. Source: Unicode 15, blocks; CJK extension H ends at 323AF.
PLAIN_RANGES = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0x17000, 0x18D00), (0x20000, LAST + 1))
"""Ideographs, syllables and private use, which are what they are: 8 of 10 code points need no look at their names."""
DROPPED, SEPARATOR = 0, 1
APOSTROPHES = "'`´ʹʻʼ‘’"
"""They stand inside a word: written or left out, it is the same word."""
PLAIN = dict(zip("ıəәǝøłđħŧŋɓɗƙ", "ieeeoldhtnbdk", strict=True))
"""Letters that decompose into nothing, and what people without their keyboard type."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier with well-mixed bits. Source: Steele et al. 2014, SplitMix64."""
LONGEST_WORD = 256  # Letters of a word that have a place of their own in its hash
ENDING_LETTERS, CODE_BITS = 3, 21  # Last letters of a word that are its ending, and bits of a code point
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


def unit_hashes(text: str, language: Language, *, by_character: bool) -> Hashes:
    """A hash of 64 bits for each word, or for each letter; shape (N,)."""
    letters, first = _letters(text, language)
    return mix_bits(letters) if by_character else _word_hashes(letters, first)


def word_hashes(text: str, language: Language) -> tuple[Hashes, Hashes]:
    """A hash for each word, and another for its last letters, both of shape (N,)."""
    letters, first = _letters(text, language)
    last = np.append(first[1:], len(letters))[: len(first)] - 1
    endings = np.zeros(len(first), np.uint64)
    for back in range(ENDING_LETTERS):
        place = np.maximum(last - back, first)
        inside = last - back >= first
        endings |= np.where(inside, letters[place], 0).astype(np.uint64) << np.uint64(CODE_BITS * back)
    return _word_hashes(letters, first), mix_bits(endings)


def _letters(text: str, language: Language) -> tuple[Hashes, NDArray[np.intp]]:
    """Plain letters of a text, and the places where words begin."""
    folded = unicodedata.normalize("NFKC", language.fold(text))
    codes = np.frombuffer(folded.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    codes = plain_letters()[np.minimum(codes, LAST)]
    codes = codes[codes != DROPPED]
    is_letter = codes != SEPARATOR
    is_first = is_letter.copy()
    is_first[1:] &= ~is_letter[:-1]
    return codes[is_letter].astype(np.uint64), np.flatnonzero(is_first[is_letter])


def _word_hashes(letters: Hashes, first: NDArray[np.intp]) -> Hashes:
    if not len(letters):
        return letters
    lengths = np.diff(first, append=len(letters))
    place = np.arange(len(letters)) - np.repeat(first, lengths)
    # Letters behind the last place share its factor: no word is so long.
    weighted = mix_bits(letters) * _powers()[np.minimum(place, LONGEST_WORD - 1)]
    return mix_bits(np.add.reduceat(weighted, first))


def ngram_hashes(units: Hashes, length: int) -> Hashes:
    """A hash of each run of `length` units, at least 1, of which billions rarely meet.

    `units` comes from `unit_hashes`, shape (N,). The result has shape (N - length + 1,), or (0,) for fewer units.
    """
    count = len(units) - length + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    # Runs of 1, 2, 4 ... units, put together as the bits of the length say.
    doubled, size = units, 1
    joined, covered = None, 0
    while True:
        if length & size:
            joined = doubled if joined is None else _joined(joined, doubled[covered:])
            covered += size
        if covered == length:
            return np.asarray(joined[:count], dtype=np.uint64) if joined is not None else units[:0]
        doubled = _joined(doubled, doubled[size:])
        size *= 2


def mix_bits(values: Hashes) -> Hashes:
    """Each value with all its bits mixed."""
    values = (values ^ (values >> np.uint64(29))) * MIX
    return np.asarray(values ^ (values >> np.uint64(32)), dtype=np.uint64)


def _joined(left: Hashes, right: Hashes) -> Hashes:
    """Hash of each pair; a unit without a partner at the end goes."""
    return mix_bits(left[: len(right)] * np.uint64(3) + right[: len(left)])


@functools.cache
def _powers() -> Hashes:
    powers = np.full(LONGEST_WORD, MIX)
    powers[0] = 1
    return np.multiply.accumulate(powers)


@functools.cache
def plain_letters() -> NDArray[np.uint32]:
    """Code point -> that of its plain letter, `DROPPED` or `SEPARATOR`; for each up to `LAST`."""
    letters = np.arange(LAST + 1, dtype=np.uint32)
    starts, ends = (0, *(end for _, end in PLAIN_RANGES)), (*(start for start, _ in PLAIN_RANGES), LAST + 1)
    for start, end in zip(starts, ends, strict=True):
        letters[start:end] = [_plain(chr(code)) for code in range(start, end)]
    return letters


def _plain(character: str) -> int:
    if character in PLAIN:
        return ord(PLAIN[character])
    category = unicodedata.category(character)
    if character in APOSTROPHES or category == "Cf" or _is_diacritic(character):
        return DROPPED
    # A character that this Python's Unicode does not know may be a letter. Without it all text in its script is equal.
    if category in {"Cn", "Co", "Cs"}:
        return ord(character)
    if not character.isalnum() and category[0] != "M":
        return SEPARATOR
    first, *marks = list(unicodedata.normalize("NFKD", character))
    return ord(first if all(map(_is_diacritic, marks)) else character)


def _is_diacritic(character: str) -> bool:
    """True for a mark on a letter that can do without it: of Latin, Greek, Cyrillic, Hebrew and Arabic.

    Vowels and tones of Indic scripts and of Thai, and the voiced kana's mark, are in other classes.
    Source: Unicode 15, table 4-3, canonical combining classes.
    """
    combining = unicodedata.combining(character)
    return 10 <= combining <= 35 or combining >= 200


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
