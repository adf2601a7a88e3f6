"""Strings of bytes in arrays, sorted without an object for each."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.tokenizer.kernels.compiled import compiled

Array = npt.NDArray[Any]

PIECE = 7
"""Bytes that are compared at a time; the eighth byte of a number says how many there were."""


def sorted_order(text: Array, starts: Array) -> Array:
    """The numbers of the strings in the order of their bytes; `starts` is where each begins in `text` and the last one ends."""
    order = np.arange(len(starts) - 1)
    places, groups = np.arange(len(order)), np.zeros(len(order), dtype=np.int64)
    piece = 0
    while len(places):
        keys = np.empty(len(places), dtype=np.uint64)
        _read_piece(text, starts, order[places], piece * PIECE, keys)
        by_key = np.lexsort((keys, groups))
        order[places] = order[places][by_key]
        keys = keys[by_key]
        # Strings that are equal so far and go on stay together for the next piece.
        is_next_equal = (groups[1:] == groups[:-1]) & (keys[1:] == keys[:-1]) & (keys[1:] & 0xFF > PIECE)
        is_open = np.append(is_next_equal, False) | np.append(False, is_next_equal)
        groups = np.cumsum(~np.append(False, is_next_equal))[is_open]
        places = places[is_open]
        piece += 1
    return order


@compiled
def _read_piece(text: Array, starts: Array, chosen: Array, offset: int, keys: Array) -> None:
    """Seven bytes of each string as a number that sorts like them."""
    for place, number in enumerate(chosen):
        start = starts[number] + offset
        left = starts[number + 1] - start
        key = np.uint64(0)
        for at in range(PIECE):
            key = key << np.uint64(8) | np.uint64(text[start + at] if at < left else 0)
        keys[place] = key << np.uint64(8) | np.uint64(min(left, PIECE + 1))


@compiled
def gather(text: Array, starts: Array, order: Array, sorted_text: Array, sorted_starts: Array) -> None:
    """Write the strings in another order."""
    size = 0
    for place, number in enumerate(order):
        sorted_starts[place] = size
        for at in range(starts[number], starts[number + 1]):
            sorted_text[size] = text[at]
            size += 1
    sorted_starts[len(order)] = size
