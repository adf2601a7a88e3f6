"""Which documents are held out of training: those with the lowest hashes, whatever the order."""

import math

from anadil.core.errors import DataError

ID_DIGITS = 16
"""Of an id that decide: its upper half."""


def lowest_bound(fraction: float) -> int:
    """The upper half of an id from which on a document is not held out, if there are enough of them."""
    return math.ceil(fraction * 16.0**ID_DIGITS)


def num_heldout(num_below: int, num_documents: int, max_documents: int) -> int:
    """How many of the lowest ids are held out: one at least, and one is left for training.

    Args:
        num_below: Documents below `lowest_bound`.
        num_documents: All of them.
        max_documents: Most held out.

    Raises:
        DataError: Fewer than two documents.
    """
    if num_documents < 2:
        raise DataError(
            f"corpus has {num_documents} document(s) after cleaning, and one must be held out; "
            "give more text or lower clean.rules.min_words"
        )
    return min(max(1, num_below), max_documents, num_documents - 1)
