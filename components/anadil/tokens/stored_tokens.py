"""Artifact of tokens as training reads it: where it lies, on a disk or in S3, and never a whole file of it.

Memory does not depend on the corpus: what is held is `tokens.json`, and places of open files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from anadil.artifacts.artifact import Manifest
from anadil.text.corpus import CorpusPart
from anadil.tokens.packing import Ids, Packed, Places, TokenStream
from anadil.tokens.tensor_file import TensorFile
from anadil.tokens.tokens_file import BlockFacts, ShardFacts, TokensFacts, open_file, read_facts

OPEN_FILES = 256
"""Files that stay open; a process may open 1,024 by default."""
REQUESTS = 32
"""Ranges of S3 that are asked for at a time: a request takes some 50 ms, and a step needs hundreds."""


Documents = tuple[Places, Ids]
"""Where each document of a shard begins, and the ids."""


@dataclass(frozen=True, kw_only=True)
class StoredTokens:
    """An artifact of tokens."""

    uri: str
    facts: TokensFacts

    def parts(self) -> tuple["StoredTokens", "StoredTokens"]:
        """The champion's part of a retraining's tokens, and what came since; either may have no sequence."""
        earlier, new = self.facts.parts()
        return StoredTokens(uri=self.uri, facts=earlier), StoredTokens(uri=self.uri, facts=new)

    @cached_property
    def packed(self) -> Packed:
        """Its packed sequences."""
        shards, blocks = self._files(self.facts.train), self._files(self.facts.blocks)
        starts = StoredStarts(self.facts.train, shards)
        ids = StoredIds(starts, shards, self._fetcher)
        stream = StoredStream(ids=ids, starts=starts, digest=self.facts.stream, bos=self.facts.bos)
        first_tokens = [int(starts.tokens[block.first_shard]) for block in self.facts.blocks]
        return Packed(
            stream=stream,
            pieces=StoredPieces(self.facts.blocks, blocks, first_tokens),
            rows=StoredRows(self.facts.blocks, blocks),
            length=self.facts.sequence_length,
            num_targets=self.facts.targets,
            num_positions=sum(block.positions for block in self.facts.blocks),
            blocks=begins_of([block.sequences for block in self.facts.blocks]),
        )

    def heldout(self, num: int) -> tuple[list[Ids], int]:
        """The first `num` held-out documents, each without its end token, and the bytes of their text."""
        files = self._files(self.facts.heldout)
        documents: list[Ids] = []
        num_bytes = 0
        for number, shard in enumerate(self.facts.heldout):
            count = min(num - len(documents), shard.documents)
            if not count:
                continue
            file = files(number)
            starts = file.read("starts", 0, count + 1).tolist()
            ids = file.read("ids", 0, starts[-1])
            documents += [ids[start : stop - 1] for start, stop in pairwise(starts)]
            num_bytes += int(file.read("bytes", 0, count).sum())
        return documents, num_bytes

    def documents(self, part: CorpusPart) -> Iterator[Documents]:
        """The documents of a part, shard by shard."""
        listed = self.facts.train if part == "train" else self.facts.heldout
        files = self._files(listed)
        for number, shard in enumerate(listed):
            file = files(number)
            yield file.read("starts", 0, shard.documents + 1), file.read("ids", 0, shard.tokens)

    @cached_property
    def _fetcher(self) -> ThreadPoolExecutor | None:
        return ThreadPoolExecutor(REQUESTS, "anadil-tokens") if "://" in self.uri else None

    # Threads share it: an evicted file is closed when the last of them lets it go.
    def _files(self, listed: Sequence[ShardFacts | BlockFacts]) -> Callable[[int], TensorFile]:
        @lru_cache(OPEN_FILES)
        def opened(number: int) -> TensorFile:
            each = listed[number]
            return open_file(self.uri, each.file, each.num_bytes, each.crc32)

        return opened


def open_tokens(uri: str, manifest: Manifest) -> StoredTokens:
    """Open an artifact of tokens; nothing but `tokens.json` is read."""
    return StoredTokens(uri=uri, facts=read_facts(uri, manifest))


Files = Callable[[int], TensorFile]


class StoredStarts:
    """Begins of documents over all shards."""

    def __init__(self, shards: Sequence[ShardFacts], files: Files) -> None:
        self._files = files
        self.tokens = begins_of([shard.tokens for shard in shards])
        self._documents = begins_of([shard.documents for shard in shards])

    def __len__(self) -> int:
        return int(self._documents[-1]) + 1

    def __getitem__(self, where: slice, /) -> Places:
        """The first begins, and so the ends of all documents but the last of them."""
        assert not where.start
        parts: list[Places] = [np.zeros(1, dtype=np.int64)]
        left = len(self) - 1 if where.stop is None else where.stop - 1
        for number, count in enumerate(np.diff(self._documents).tolist()):
            chosen = min(left, count)
            if not chosen:
                continue
            parts.append(self._files(number).read("starts", 1, chosen + 1) + self.tokens[number])
            left -= chosen
        return np.concatenate(parts)

    def document_at(self, position: int) -> tuple[int, int]:
        """Number and begin of the document in which a token lies."""
        shard = place_of(self.tokens, position)
        begins = self._files(shard).read("starts", 0, int(np.diff(self._documents)[shard]))
        within = position - int(self.tokens[shard])
        number = int(np.searchsorted(begins, within, side="right")) - 1
        return int(self._documents[shard]) + number, int(self.tokens[shard] + begins[number])


class StoredIds:
    """Ids over all shards."""

    def __init__(self, starts: StoredStarts, files: Files, fetcher: ThreadPoolExecutor | None) -> None:
        self._begins, self._files, self._fetcher = starts.tokens, files, fetcher

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, where: slice, /) -> Ids:
        start, stop, step = where.indices(len(self))
        assert step == 1
        parts = [np.empty(0, dtype=np.int32)]
        while start < stop:
            shard = place_of(self._begins, start)
            begin, end = int(self._begins[shard]), int(self._begins[shard + 1])
            part = self._files(shard).read("ids", start - begin, min(stop, end) - begin)
            if stop <= end and len(parts) == 1:
                return part  # type: ignore[no-any-return]  # tensors have any type
            parts.append(part)
            start = end
        return np.concatenate(parts)

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> Iterable[Ids]:
        """The ids of many slices, which are fetched side by side."""
        places = list(map(slice, starts, stops))
        # A disk is read faster than threads are asked.
        return self._fetcher.map(self.__getitem__, places) if self._fetcher else map(self.__getitem__, places)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStream(TokenStream):
    """A stream whose ids and begins of documents lie in shards."""

    ids: StoredIds
    starts: StoredStarts

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> Iterable[Ids]:
        """The ids of many slices, which are fetched side by side."""
        return self.ids.slices(starts, stops)

    def document_at(self, position: int) -> tuple[int, int]:
        """Number and begin of the document in which a token lies."""
        return self.starts.document_at(position)


class StoredRows:
    """First pieces of sequences over all blocks."""

    def __init__(self, blocks: Sequence[BlockFacts], files: Files) -> None:
        self._files = files
        self._sequences = begins_of([block.sequences for block in blocks])
        self._pieces = begins_of([block.pieces for block in blocks])

    def __len__(self) -> int:
        return int(self._sequences[-1]) + 1

    def __getitem__(self, where: Any, /) -> Any:
        numbers = np.asarray(where)
        chosen = [self._row(number) for number in numbers.reshape(-1).tolist()]
        return np.array(chosen, dtype=np.int64).reshape(numbers.shape)

    def _row(self, number: int) -> int:
        block = place_of(self._sequences, number)
        within = number - int(self._sequences[block])
        return int(self._files(block).read("rows", within, within + 1)[0]) + int(self._pieces[block])


class StoredPieces:
    """Pieces over all blocks; their starts count in the stream of all shards."""

    def __init__(self, blocks: Sequence[BlockFacts], files: Files, first_tokens: Sequence[int]) -> None:
        self._files, self._first_tokens = files, first_tokens
        self._begins = begins_of([block.pieces for block in blocks])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, where: Any, /) -> Any:
        numbers = np.arange(len(self))[where] if isinstance(where, slice) else np.asarray(where)
        # Pieces of a sequence lie side by side: one read for each run of them.
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
        parts = [part for run in runs for part in self._run(int(run[0]), int(run[-1]) + 1)]
        return np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])

    def _run(self, start: int, stop: int) -> Iterable[Any]:
        while start < stop:
            block = place_of(self._begins, start)
            begin, end = int(self._begins[block]), min(stop, int(self._begins[block + 1]))
            pieces = self._files(block).read("pieces", start - begin, end - begin)
            yield pieces + np.array([self._first_tokens[block], 0, 0])
            start = end


def begins_of(counts: Sequence[int]) -> Places:
    """Return where parts of these sizes begin, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.array(counts, dtype=np.int64))]).astype(np.int64)


def place_of(begins: Places, position: int) -> int:
    """The part in which a position lies; empty parts hold none, and the end lies in the last."""
    return min(int(np.searchsorted(begins, position, side="right")) - 1, len(begins) - 2)
