"""Which documents are held out of training: those with the lowest hashes, whatever the order."""

from collections.abc import Sequence

from anadil.core.errors import DataError
from anadil.text.corpus import Document

ID_DIGITS = 16


def split_heldout(
    documents: Sequence[Document], *, fraction: float, max_documents: int
) -> tuple[Sequence[Document], Sequence[Document]]:
    """Documents for training and held-out ones, of which there is one at least.

    Args:
        documents: Sorted by id; an id is a hash of the text, so a text is always on one side.
        fraction: Expected share held out.
        max_documents: Most held out.

    Raises:
        DataError: Fewer than two documents.
    """
    if len(documents) < 2:
        raise DataError(
            f"corpus has {len(documents)} document(s) after cleaning, and one must be held out; "
            "give more text or lower clean.rules.min_words"
        )
    bound = fraction * 16**ID_DIGITS
    num_below = sum(int(document.id[:ID_DIGITS], 16) < bound for document in documents)
    num_heldout = min(max(1, num_below), max_documents, len(documents) - 1)
    return documents[num_heldout:], documents[:num_heldout]
