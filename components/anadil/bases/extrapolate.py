"""Bits per byte at the end of a whole training, extrapolated from a short one of each candidate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RECENT = 0.3
"""Share of the short run from which points count: what is before it is warm-up and the base's own score."""
DRAWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Scores of one candidate in its short run."""

    shares: Sequence[float]
    """Shares of the whole compute, ascending."""
    nats: Floats
    """[points, documents]"""
    num_bytes: Floats

    def values(self, times: NDArray[Any] | float = 1.0) -> Floats:
        """Bits per byte of each point, where a draw has each document so many `times`."""
        bits = self.nats / np.log(2)
        result: Floats = (bits * times).sum(axis=1) / (self.num_bytes * times).sum()
        return result

    def exponent(self, values: Floats, left_out: int = -1) -> float:
        """Exponent of the power of compute by which bits per byte fall, from 0 up."""
        recent = np.array(self.shares) >= RECENT * self.shares[-1]
        if left_out >= 0 and recent.sum() > 2:
            recent[np.flatnonzero(recent)[left_out % recent.sum()]] = False
        slope = np.polyfit(np.log(np.array(self.shares)[recent]), np.log(values[recent]), 1)[0]
        return max(0.0, -float(slope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """Value at the end of the whole training."""

    value: float
    draws: Floats
    """The value for each draw of documents and of an exponent."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % over documents, and over all candidates' exponents."""
        low, high = np.percentile(self.draws, [2.5, 97.5])
        return float(low), float(high)


def extrapolate(curves: Sequence[Curve], seed: int) -> list[Extrapolation]:
    """Let all curves fall on by a power of compute, with the median of their exponents.

    An exponent of each candidate's own is too unsure in so short a run: it ordered five bases worse than their last
    points did (`benchmarks/bases`). The interval takes every exponent that some candidate has, also with a point less.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", arXiv:2001.08361, equation 1.3, for the power.
    """
    exponent = np.median([each.exponent(each.values()) for each in curves])
    pool = np.array(
        [each.exponent(each.values(), point) for each in curves for point in range(len(each.shares))]
    )
    results = []
    for number, each in enumerate(curves):
        # Documents are drawn alike for all candidates, exponents for each by itself.
        documents, exponents = np.random.default_rng(seed), np.random.default_rng([seed, number])
        size = len(each.num_bytes)
        drawn = [documents.integers(0, size, size) for _ in range(DRAWS)]
        ends = np.array([each.values(np.bincount(row, minlength=size))[-1] for row in drawn])
        whole = 1 / each.shares[-1]
        value = float(each.values()[-1] * whole**-exponent)
        results.append(Extrapolation(value=value, draws=ends * whole ** -exponents.choice(pool, DRAWS)))
    return results
