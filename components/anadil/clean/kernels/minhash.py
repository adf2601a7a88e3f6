"""MinHash signatures of texts, cut into bands: texts that agree in a band are compared, or taken for one.

Source: Broder 1997, "On the resemblance and containment of documents"; banding as in Leskovec et al., "Mining of
Massive Datasets", section 3.4.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.characters import ZERO, batches, characters_of, encode
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.ngram_kernel import combined, mix_bits
from anadil.text.language_data import Language
from anadil.text.ngram_overlap import DROPPED, SEPARATOR

Array = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

MINHASH_SEED = 20240617
"""Seed of the hash functions; another one finds other borderline pairs."""
EVERY = np.full(1, 0xFF, dtype=np.uint8)
"""A filter that every run passes."""
FOLDING = "case, signs, accents, numbers"
"""Differences that keys ignore. Keys of another folding cannot be compared with them."""


@compiled
def hash_units(codes: Array, units: Array, by_character: bool, hashes: Array) -> int:
    """Hash each folded word, or each folded character; return their number. A run of digits is one."""
    count = 0
    is_inside = False
    last = SEPARATOR
    for place in range(len(codes)):
        code = units[codes[place]]
        if code == SEPARATOR:
            is_inside = False
            last = SEPARATOR
            continue
        if code == DROPPED or code == last == ZERO:
            continue
        if by_character or not is_inside:
            hashes[count] = np.uint64(0)
            count += 1
            is_inside = True
        hashes[count - 1] = (hashes[count - 1] + np.uint64(code)) * np.uint64(0x9E3779B97F4A7C15)
        hashes[count - 1] ^= hashes[count - 1] >> np.uint64(29)
        last = code
    return count


@compiled
def hash_shingles(hashes: Array, count: int, width: int) -> int:
    """Replace hashes of units by those of runs of `width` units, or of all if there are fewer; return their number."""
    if not count:
        return 0
    width = min(width, count)
    for place in range(count - width + 1):
        key = np.uint64(0)
        for shift in range(width):
            key = key * np.uint64(0xD6E8FEB86659FD93) + hashes[place + shift]
        hashes[place] = mix_bits(key)
    return count - width + 1


@compiled
def sign(shingles: Array, count: int, factors: Array, offsets: Array, signature: Array) -> None:
    """Least value of each hash function: 32 bits each, so that eight are worked on at a time."""
    signature[:] = 0xFFFFFFFF
    for place in range(count):
        key = np.uint32(shingles[place] >> np.uint64(32))
        for function in range(len(signature)):
            value = np.uint32(np.uint32(key * factors[function]) + offsets[function])
            value ^= value >> np.uint32(15)
            signature[function] = min(signature[function], value)


@compiled
def fill_band_keys(codes: Array, ends: Array, tables: Any, settings: Any, keys: Array) -> None:
    """Fill the band keys of concatenated texts; shape (texts, bands)."""
    units, by_character = tables
    factors, offsets, width = settings
    signature = np.empty(len(factors), dtype=np.uint32)
    rows = len(factors) // keys.shape[1]
    hashes = np.empty(len(codes), dtype=np.uint64)
    start = 0
    for text in range(len(ends)):
        count = hash_units(codes[start : ends[text]], units, by_character, hashes)
        sign(hashes, hash_shingles(hashes, count, width), factors, offsets, signature)
        for band in range(keys.shape[1]):
            key = np.uint64(0)
            for row in range(band * rows, band * rows + rows):
                key = combined(key, signature[row])
            keys[text, band] = key
        start = ends[text]


@compiled
def filter_runs(codes: Array, ends: Array, tables: Any, width: int, bits: Array, runs: Array) -> int:
    """Keep the runs of concatenated texts whose first bits are set in a filter; return their number."""
    units, by_character = tables
    hashes = np.empty(len(codes), dtype=np.uint64)
    size = np.uint64(8 * len(bits) - 1)
    start = num_kept = 0
    for text in range(len(ends)):
        count = hash_units(codes[start : ends[text]], units, by_character, hashes)
        for place in range(hash_shingles(hashes, count, width)):
            bit = hashes[place] & size
            if bits[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & np.uint64(1):
                runs[num_kept] = hashes[place]
                num_kept += 1
        start = ends[text]
    return num_kept


@compiled
def fill_exact_keys(codes: Array, ends: Array, units: Array, by_character: bool, keys: Array) -> None:
    """Fill two hashes of each text's folded characters, digits as they are; shape (texts, 2).

    A run of what separates words is one; where no spaces are written it is none.
    """
    start = 0
    for text in range(len(ends)):
        first, second = np.uint64(1), np.uint64(2)
        is_apart, is_begun = False, False
        for place in range(start, ends[text]):
            unit = units[codes[place]]
            if unit == SEPARATOR:
                is_apart = is_begun and not by_character
                continue
            if unit != DROPPED:
                code = np.uint64(codes[place] if unit == ZERO else unit)
                code += np.uint64(0x80000000) * np.uint64(is_apart)
                first = (first ^ code) * np.uint64(0x9E3779B97F4A7C15)
                first ^= first >> np.uint64(29)
                second = (second + code) * np.uint64(0xC2B2AE3D27D4EB4F)
                second ^= second >> np.uint64(31)
                is_apart, is_begun = False, True
        keys[text, 0], keys[text, 1] = mix_bits(first), mix_bits(second)
        start = ends[text]


class MinHash:
    """Turns texts into band keys: two texts share a key with probability J ** rows."""

    def __init__(self, language: Language, *, bands: int, rows: int, shingle: int) -> None:
        """Draw the hash functions: `rows` for each band; `shingle` counts words, or characters without spaces."""
        generator = np.random.default_rng(MINHASH_SEED)
        self.bands, self.rows, self.shingle = bands, rows, shingle
        self._language = language
        factors = generator.integers(0, 2**31, bands * rows, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        offsets = generator.integers(0, 2**32, bands * rows, dtype=np.uint32)
        self._settings = (factors, offsets, shingle)

    @cached_property
    def _tables(self) -> tuple[Array, bool]:
        # Made when a text comes: who only looks at `bands` and `rows` needs none.
        characters = characters_of(self._language)
        return characters.units, characters.by_character

    @property
    def threshold(self) -> float:
        """Jaccard similarity at which about half of the pairs share a key: (1 / bands) ** (1 / rows)."""
        return float((1 / self.bands) ** (1 / self.rows))

    def runs(self, texts: Sequence[str], bits: Array = EVERY) -> Hashes:
        """Return the hash of each run of `shingle` units, in order; of a whole text if it is shorter.

        Args:
            bits: A filter of 2**N bits, eight a number: runs whose lowest N bits make the number of a bit that is not set
                go.
        """
        codes, ends = encode(texts)
        runs = np.empty(len(codes), dtype=np.uint64)
        return runs[: filter_runs(codes, ends, self._tables, self.shingle, bits, runs)]

    def shingles(self, text: str) -> Hashes:
        """Return the distinct hashes of `runs`, sorted."""
        return distinct(self.runs([text]))

    def keys_of(self, texts: Sequence[str]) -> tuple[Hashes, Hashes]:
        """Return exact and band keys of each text; shapes (texts, 2) and (texts, bands).

        The 128 bits of an exact key are equal where only case, signs, accents and white space differ. A batch of hundreds
        costs each text the least.
        """
        exact = np.empty((len(texts), 2), dtype=np.uint64)
        bands = np.empty((len(texts), self.bands), dtype=np.uint64)
        for start, stop in batches(texts):
            codes, ends = encode(texts[start:stop])
            fill_exact_keys(codes, ends, *self._tables, exact[start:stop])
            fill_band_keys(codes, ends, self._tables, self._settings, bands[start:stop])
        return exact, bands

    def exact_key(self, text: str) -> int:
        """Return the exact key of one text as a number."""
        first, second = self.keys_of([text])[0][0].tolist()
        return int(first << 64 | second)

    def band_keys(self, text: str) -> Hashes:
        """Return the band keys of one text; shape (bands,)."""
        keys: Hashes = self.keys_of([text])[1][0]
        return keys


def distinct(hashes: Hashes) -> Hashes:
    """Return hashes sorted, each once; `np.unique` of NumPy 2.4 takes 80 times as long for a million."""
    ordered = np.sort(hashes)
    once: Hashes = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return once


def jaccard(a: Hashes, b: Hashes) -> float:
    """Return the share of the shingles of both that they have in common; 1 for two empty sets."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - common
    return common / union if union else 1.0
