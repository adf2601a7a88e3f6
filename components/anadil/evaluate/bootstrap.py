"""How sure a difference in bits per byte is: a paired bootstrap over documents."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Bits per byte of one model minus those of another, on the same documents."""

    value: float
    low: float
    """2.5th percentile of the resampled difference."""
    high: float
    """97.5th percentile."""
    num_documents: int
    draws: int = DRAWS

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0; one document says nothing about others."""
        return self.num_documents > 1 and not self.low <= 0 <= self.high


def paired_difference(
    nats: NDArray[np.float64], other_nats: NDArray[np.float64], num_bytes: NDArray[np.int64], seed: int
) -> Difference:
    """Difference of two models' bits per byte, with the 95 % interval over documents.

    Both models see the same draw of documents each time: documents differ far more than models
    do, so that intervals of either model alone would overlap whatever was learned.

    Args:
        nats: Summed -ln p of each document; the minuend.
        other_nats: The same of the other model.
        num_bytes: UTF-8 bytes of each document.
        seed: Of the draws.

    Source: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation".
    """
    bits = (nats - other_nats) / math.log(2)
    generator = np.random.default_rng(seed)
    count = len(bits)
    drawn = np.empty(DRAWS)
    for draw in range(DRAWS):
        chosen = generator.integers(0, count, count)
        drawn[draw] = bits[chosen].sum() / num_bytes[chosen].sum()
    low, high = np.percentile(drawn, [2.5, 97.5])
    value = float(bits.sum() / num_bytes.sum())
    return Difference(value=value, low=float(low), high=float(high), num_documents=count)
