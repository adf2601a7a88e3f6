"""What equal and nearly equal documents have in common.

Exact: hash of the folded text. Near: MinHash signatures cut into bands.

Source: Broder 1997, "On the resemblance and containment of documents"; banding as in
Leskovec et al., "Mining of Massive Datasets", section 3.4; figures as in FineWeb, arXiv:2406.17557.
"""

import numpy as np
import numpy.typing as npt
import xxhash

from anadil.text.language import Language

Hashes = npt.NDArray[np.uint64]

MINHASH_SEED = 20240617
"""Of the hash functions; another one finds other borderline pairs."""
SHINGLES_AT_A_TIME = 4_096
"""Shingles hashed at a time, so that a long document needs no more memory than a short one."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def exact_key(text: str, language: Language) -> int:
    """Hash that is equal for texts that differ in case and white space only."""
    return xxhash.xxh3_128_intdigest(" ".join(language.fold(text).split()).encode())


class MinHash:
    """Turns texts into band keys: two texts share a key with probability J ** rows."""

    def __init__(self, language: Language, *, bands: int, rows: int, shingle: int) -> None:
        generator = np.random.default_rng(MINHASH_SEED)
        size = bands * rows
        self.language = language
        self.bands, self.rows, self.shingle = bands, rows, shingle
        self._factors: Hashes = generator.integers(1, 2**63, size, dtype=np.uint64) * np.uint64(
            2
        ) + np.uint64(1)
        self._offsets: Hashes = generator.integers(0, 2**64, size, dtype=np.uint64, endpoint=False)
        self._unit_hashes: dict[str, int] = {}

    @property
    def threshold(self) -> float:
        """Jaccard similarity at which a pair is found about half the time: (1 / bands) ** (1 / rows)."""
        return float((1 / self.bands) ** (1 / self.rows))

    def shingles(self, text: str) -> Hashes:
        """Sorted different hashes of all runs of `shingle` units; of the whole text if it is shorter."""
        units = self.language.shingle_units(text)
        hashes = np.fromiter(map(self._unit_hash, units), dtype=np.uint64, count=len(units))
        width = max(1, min(self.shingle, len(hashes)))
        combined = np.zeros(max(0, len(hashes) - width + 1), dtype=np.uint64)
        for shift in range(width):
            combined = _mixed(combined * MULTIPLIER + hashes[shift : shift + len(combined)])
        return np.unique(combined)

    def band_keys(self, text: str) -> Hashes:
        """One key for each band; shape (bands,). A text without units gets keys of its own."""
        shingles = self.shingles(text)
        signature = np.full(self.bands * self.rows, np.iinfo(np.uint64).max, dtype=np.uint64)
        for start in range(0, len(shingles), SHINGLES_AT_A_TIME):
            chunk = shingles[start : start + SHINGLES_AT_A_TIME, None]
            np.minimum(signature, (chunk * self._factors + self._offsets).min(axis=0), out=signature)
        grid = signature.reshape(self.bands, self.rows)
        keys = np.zeros(self.bands, dtype=np.uint64)
        for row in range(self.rows):
            keys = _mixed(keys * MULTIPLIER + grid[:, row])
        return keys

    def _unit_hash(self, unit: str) -> int:
        found = self._unit_hashes.get(unit)
        if found is None:
            found = self._unit_hashes[unit] = xxhash.xxh3_64_intdigest(unit.encode())
        return found


def _mixed(values: Hashes) -> Hashes:
    """Spread every bit over the whole word (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def jaccard(a: Hashes, b: Hashes) -> float:
    """Share of the shingles of both that they have in common; 1 for two empty ones."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - common
    return common / union if union else 1.0
