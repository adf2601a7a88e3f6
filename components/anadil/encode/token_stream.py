"""The token stream of a corpus: all its training documents as ids, one document after another.

A document is `[BOS] text [end of text]`; without a BOS the end of text stands before it too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    # That module reads stored tokens in place, and imports this one.
    from anadil.encode.stored_tokens import StoredIds, StoredStarts

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The encoded training part of a corpus."""

    ids: "Ids | StoredIds"
    """(tokens,): all documents, one after another; read by slices."""
    starts: "Places | StoredStarts"
    """(documents + 1,): where each document begins; the last entry is the number of tokens."""
    digest: str
    """Equal digests mean equal ids."""
    bos: int | None = None
    """Id before each piece that begins inside a document; None for none."""

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return len(self.starts) - 1

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> Iterable[Ids]:
        """The ids of many slices."""
        ids = self.ids
        if isinstance(ids, np.ndarray):
            return (ids[start:stop] for start, stop in zip(starts, stops, strict=True))
        return ids.slices(starts, stops)

    def first_starts(self, num: int) -> Places:
        """Begins of up to `num` documents, and the end of the last."""
        if isinstance(self.starts, np.ndarray):
            return self.starts[: num + 1]
        return self.starts.first(num)

    def document_at(self, position: int) -> tuple[int, int]:
        """Number and begin of the document in which a token lies."""
        if isinstance(self.starts, np.ndarray):
            number = int(np.searchsorted(self.starts, position, side="right")) - 1
            return number, int(self.starts[number])
        return self.starts.document_at(position)


def stream_of(documents: Sequence[Ids], bos: int | None) -> TokenStream:
    """Join documents in memory, each with its prefix, into a stream."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])])
    return TokenStream(ids=np.concatenate(documents), starts=starts, digest="", bos=bos)
