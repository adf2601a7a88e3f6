"""Which documents are held out of training: those with the lowest hashes, whatever the order."""

import math

ID_DIGITS = 16
"""Of an id that decide: its upper half."""


def lowest_bound(fraction: float) -> int:
    """The upper half of an id from which on a document is not held out, if there are enough of them."""
    return math.ceil(fraction * 16.0**ID_DIGITS)


def num_heldout(num_below: int, num_documents: int, max_documents: int) -> int:
    """How many of the lowest ids are held out: one at least, and one is left for training.

    Args:
        num_below: Documents below `lowest_bound`.
        num_documents: All of them, two at least.
        max_documents: Most held out.
    """
    return min(max(1, num_below), max_documents, num_documents - 1)
