"""Bits per byte at the end of a training, extrapolated from its beginning."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXPONENTS = np.linspace(0.1, 1.2, 12)
KNOWN = 10.0 ** np.linspace(-2, 1.5, 15)
"""Compute that the base's own training was worth, in units of the short run's."""
DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """Value at the end of the whole training."""

    value: float
    draws: Floats
    """The value for each draw of documents and points."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % over documents and over points of the fit."""
        low, high = np.percentile(self.draws, [2.5, 97.5])
        return float(low), float(high)


def extrapolate(shares: Sequence[float], nats: Floats, num_bytes: Floats, seed: int) -> Extrapolation:
    """Fit the curve of a short run, and read it where the share of the whole training is 1.

    Args:
        shares: Shares of the whole compute, ascending, the first 0.
        nats: [points, documents].
        num_bytes: [documents].
    """
    times, documents = np.array(shares) / shares[-1], len(num_bytes)
    bits = nats / np.log(2)
    # Two generators: candidates have the same draws of documents, however many points they have.
    random, of_points = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    draws = np.empty(DRAWS)
    for draw in range(DRAWS):
        chosen = np.bincount(random.integers(0, documents, documents), minlength=documents)
        # One point less tells how much the fit rests on it. The first and the last are always there.
        keep = np.arange(len(times)) != of_points.integers(1, len(times) - 1)
        values = (bits[keep] @ chosen) / (num_bytes @ chosen)
        draws[draw] = _at_end(times[keep], values, 1 / shares[-1])
    return Extrapolation(
        value=_at_end(times, bits.sum(axis=1) / num_bytes.sum(), 1 / shares[-1]), draws=draws
    )


def _at_end(times: Floats, values: Floats, end: float) -> float:
    """Value at `end` of E + B / (known + times ** exponent), with E and B from 0 up.

    Source: Lin et al. 2024, "Selecting Large Language Model to Fine-tune via Rectified Scaling Law", arXiv:2402.02314.
    """
    best, result = np.inf, float(values[-1])
    for exponent in EXPONENTS:
        basis = 1 / (KNOWN[:, None] + times[None] ** exponent)  # [known, points]
        centred = basis - basis.mean(axis=1, keepdims=True)
        slope = np.maximum((centred @ values) / (centred**2).sum(axis=1), 0.0)
        floor = values.mean() - slope * basis.mean(axis=1)
        errors = ((floor[:, None] + slope[:, None] * basis - values) ** 2).sum(axis=1)
        errors[floor < 0] = np.inf
        place = int(errors.argmin())
        if errors[place] < best:
            best = float(errors[place])
            result = float(floor[place] + slope[place] / (KNOWN[place] + end**exponent))
    return result
