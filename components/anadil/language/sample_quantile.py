"""Quantile of a source, from a sample that may hold fewer documents than it takes to see one beyond it."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WIDENED = 0.2
"""Share of the distance from the median that is added to it: text of another kind than the sample is less likely."""
MOST_SEEN = 0.25
"""Share beyond the value that the tail is drawn from, of the smallest samples."""


def source_quantile(
    sample: Sequence[float] | npt.NDArray[np.float64], rate: float, *, largest: bool, widened: float = 0.0
) -> float:
    """Estimate the value beyond which this share of the source lies.

    Of n values another one lies beyond the most extreme with probability 1 / (n + 1). Where that is more than the
    rate asked for, the tail is taken for exponential: the distance from the median grows with the logarithm of the
    share beyond it, from .5.

    Args:
        sample: Values of the sample; at least one.
        rate: Share beyond the limit, below .25.
        largest: True for the upper tail.
        widened: Part of the distance from the median that is added to it.
    """
    seen = min(max(rate, 1 / (len(sample) + 1)), MOST_SEEN)
    edge, median = np.quantile(sample, [1 - seen if largest else seen, 0.5], method="weibull")
    further = math.log(0.5 / rate) / math.log(0.5 / seen)
    return float(median + (1 + widened) * further * (edge - median))
