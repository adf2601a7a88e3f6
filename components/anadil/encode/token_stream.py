"""The token stream of a corpus: all its training documents as ids, one document after another.

A document is `[BOS] text [end of text]`; without a BOS the end of text stands before it too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


class StoredIds(Protocol):
    """Ids that are read where they lie."""

    def __getitem__(self, where: slice, /) -> Ids:
        """The ids of a slice."""
        ...

    def __len__(self) -> int:
        """Tokens of all documents."""
        ...

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> Iterable[Ids]:
        """The ids of many slices, which are fetched side by side."""
        ...


class StoredStarts(Protocol):
    """Begins of documents that are read where they lie."""

    def __len__(self) -> int:
        """Documents, and 1."""
        ...

    def first(self, num: int) -> Places:
        """Begins of up to `num` documents, and the end of the last."""
        ...

    def document_at(self, position: int) -> tuple[int, int]:
        """Number and begin of the document in which a token lies."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The encoded training part of a corpus."""

    ids: Ids | StoredIds
    """(tokens,): all documents, one after another; read by slices."""
    starts: Places | StoredStarts
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
        ids: Any = self.ids
        if isinstance(ids, np.ndarray):
            return (ids[start:stop] for start, stop in zip(starts, stops, strict=True))
        read: Iterable[Ids] = ids.slices(starts, stops)
        return read

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
