"""Blocks of an artifact of tokens: packed sequences over consecutive shards."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anadil.encode.packing import pack
from anadil.encode.tensor_file import TensorFile, TensorWriter
from anadil.encode.token_stream import Places, TokenStream
from anadil.encode.tokens_file import BlockFacts, ShardFacts

BLOCK_TOKENS = 2**28
"""Most tokens of the shards that are packed together: a GiB of ids, as much as training reads at random at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive shards of one block."""

    first_shard: int
    num_shards: int
    is_earlier: bool = False
    """True if the champion of a retraining holds them."""
    stored: BlockFacts | None = None
    """The champion's block of them, which is taken as it is."""


def spans_of(shards: Sequence[ShardFacts], first: int, most: int) -> list[Span]:
    """Cut shards into spans of `most` tokens; `first` is the number of the first one."""
    return [
        Span(first_shard=first + start, num_shards=num)
        for start, num in _groups([shard.tokens for shard in shards], most)
        if num
    ]


def _groups(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """First shard and number of shards of each block; a larger shard is a block of its own."""
    first = total = 0
    for number, size in enumerate(sizes):
        # A block needs a token, and so takes empty shards along.
        if total and size and total + size > most:
            yield first, number - first
            first, total = number, 0
        total += size
    yield first, len(sizes) - first


def joined(spans: Sequence[Span], shards: Sequence[ShardFacts]) -> list[Span]:
    """Return spans of which each has a document: others go to the one before them, or to the first that has one."""
    whole: list[Span] = []
    empty = 0
    for span in spans:
        listed = shards[span.first_shard : span.first_shard + span.num_shards]
        if any(shard.documents for shard in listed):
            first, num = span.first_shard - empty, span.num_shards + empty
            whole.append(replace(span, first_shard=first, num_shards=num))
            empty = 0
        elif whole:
            whole[-1] = replace(whole[-1], num_shards=whole[-1].num_shards + span.num_shards)
        else:
            empty += span.num_shards
    return whole


def write_block(
    file: Path,
    shards: Sequence[ShardFacts],
    opened: Callable[[ShardFacts], TensorFile],
    length: int,
    bos: int | None,
) -> BlockFacts:
    """Pack the documents of some shards and write the file; the facts lack the block's place among others."""
    # Packing needs lengths alone, so no ids are read.
    stream = TokenStream(ids=np.empty(0, dtype=np.int32), starts=_starts(shards, opened), digest="", bos=bos)
    packed = pack(stream, length)
    file.parent.mkdir(parents=True, exist_ok=True)
    with TensorWriter(file) as writer:
        writer.write("pieces", "I64", packed.pieces[:])
        writer.write("rows", "I64", packed.rows[:])
    return BlockFacts(
        file="", first_shard=0, num_shards=len(shards), pieces=len(packed.pieces),
        sequences=packed.num_sequences, targets=packed.num_targets, positions=packed.num_positions,
        crc32=writer.table_crc,
    )  # fmt: skip


def _starts(shards: Sequence[ShardFacts], opened: Callable[[ShardFacts], TensorFile]) -> Places:
    # 8 bytes for each document of the block; checked, since a disk may have torn what was just written.
    parts, total = [np.zeros(1, dtype=np.int64)], 0
    for shard in shards:
        parts.append(opened(shard).read("starts", 1, shard.documents + 1) + total)
        total += shard.tokens
    return np.concatenate(parts)
