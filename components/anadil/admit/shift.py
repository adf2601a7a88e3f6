"""Statistics that tell a change from chance: bounds of shares and odds, and the population stability index."""

import math

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]

Z = 3.09
"""Standard deviations at which one share of a thousand is refused by chance. A choice: a week has some ten of them."""
Z_OF_MANY = 4.0
"""The same for one of 30,000, since fifty statistics are looked at together. A choice."""
Z_OF_GROWTH = 2.33
"""The same for one of a hundred: few places are large enough to be asked. A choice."""
HALF = 0.5
"""Added to counts, so that none is zero. Source: Haldane (1956); Anscombe (1956)."""


def least_share(count: float, total: float) -> float:
    """Return the lower bound of a share, 0 to 1: of one of one it is 0.09.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927).
    """
    # No document is no reason to refuse.
    if total <= 0:
        return 0.0
    share, square = count / total, Z * Z / total
    middle = share + square / 2
    margin = Z * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, (middle - margin) / (1 + square))


def odds_ratio(count: float, total: float, usual: float, usual_total: float) -> tuple[float, float]:
    """Return how many times larger a part is than usual, against the rest, and the lower bound of it.

    Source: Woolf, On estimating the relation between blood group and disease (1955).
    """
    cells = [count + HALF, total - count + HALF, usual + HALF, usual_total - usual + HALF]
    ratio = cells[0] * cells[3] / (cells[1] * cells[2])
    return ratio, ratio * math.exp(-Z_OF_GROWTH * math.sqrt(sum(1 / cell for cell in cells)))


def stability_index(counts: Counts, usual: Counts) -> float:
    """Return the population stability index of counts by bin, less the most that chance gives; below 0 is nothing.

    By chance it is chi-squared, with a degree of freedom fewer than bins, times the sum of the inverse sizes.
    Source: Yurdakul and Naranjo, Statistical properties of the population stability index (2020).
    """
    # An empty bin on both sides is no degree of freedom.
    used = (counts + usual) > 0
    num_bins = int(used.sum())
    if num_bins < 2 or not counts.sum() or not usual.sum():
        return -math.inf
    shares, usual_shares = ((each[used] + HALF) / (each.sum() + HALF * num_bins) for each in (counts, usual))
    index = ((shares - usual_shares) * np.log(shares / usual_shares)).sum()
    return float(index - (1 / counts.sum() + 1 / usual.sum()) * _chi_squared(num_bins - 1))


def _chi_squared(degrees: int) -> float:
    """Return the quantile at `Z_OF_MANY`. Source: Wilson and Hilferty, The distribution of chi-square (1931)."""
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + Z_OF_MANY * math.sqrt(part)) ** 3)
