"""Repeated n-grams, one pass for each order over what the order before found repeated.

What comes once as n-gram comes once as longer one, so that a clean text costs little more than its 2-grams.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled

Array = npt.NDArray[Any]

MAX_ORDER = 10
TOP_ORDER = 4
"""Up to it the most frequent n-gram counts, above it all repeated ones. Source: Gopher, arXiv:2112.11446, table A1."""
TOP_2GRAM, DUPLICATE_5GRAMS = COLUMN["top_2gram"], COLUMN["duplicate_5grams"]
TOP_CHAR_2GRAM, DUPLICATE_CHAR_5GRAMS = COLUMN["top_char_2gram"], COLUMN["duplicate_char_5grams"]


@compiled
def mix_bits(value: Any) -> Any:
    """Spread every bit over the 64-bit word. Source: finalizer of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def combined(key: Any, item: Any) -> Any:
    """Hash of a sequence and one more item."""
    return mix_bits(key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(item))


@compiled
def hash_codes(codes: Array, start: int, stop: int) -> Any:
    """Hash of a piece of text."""
    key = np.uint64(0x27D4EB2F165667C5)
    for place in range(start, stop):
        key = (key ^ np.uint64(codes[place])) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return combined(key, stop - start)


@compiled
def table_size(count: int) -> int:
    """Return the slots for so many keys: a power of two, at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def find_first(keys: Array, places: Array, count: int, table: Array, first: Array) -> None:
    """Fill, for each of the first `count` places, the first place with an equal key."""
    size = table_size(count)
    table[:size] = -1
    mask = np.uint64(size - 1)
    for index in range(count):
        place = places[index]
        slot = np.int64(keys[place] & mask)
        while table[slot] >= 0 and keys[table[slot]] != keys[place]:
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot] = place
        first[place] = table[slot]


@compiled
def repeated_places(places: Array, count: int, first: Array, counts: Array) -> int:
    """Keep the places whose key comes twice or more, in order; `counts` holds how often, at the first of each."""
    for index in range(count):
        counts[places[index]] = 0
    for index in range(count):
        counts[first[places[index]]] += 1
    left = 0
    for index in range(count):
        if counts[first[places[index]]] > 1:
            places[left] = places[index]
            left += 1
    return left


@compiled
def extend(keys: Array, items: Array, num_items: int, places: Array, count: int, order: int) -> int:
    """Replace keys of n-grams by keys of the next order. Places too near the end go."""
    left = 0
    for index in range(count):
        place = places[index]
        if place + order <= num_items:
            keys[place] = combined(keys[place], items[place + order - 1])
            places[left] = place
            left += 1
    return left


@compiled
def most_chars(places: Array, count: int, first: Array, counts: Array, offsets: Array, order: int) -> Any:
    """Characters of the n-gram that fills most of the text."""
    most = 0
    for index in range(count):
        place = places[index]
        if first[place] == place:
            most = max(most, counts[place] * (offsets[place + order] - offsets[place]))
    return most


@compiled
def repeated_chars(places: Array, count: int, first: Array, offsets: Array, order: int) -> Any:
    """Characters inside n-grams that an earlier one repeats, none counted twice."""
    total = 0
    covered = 0
    for index in range(count):
        place = places[index]
        if first[place] != place:
            total += offsets[place + order] - offsets[max(covered, place)]
            covered = place + order
    return total


@compiled
def word_repetition(hashes: Array, offsets: Array, num_words: int, row: Array) -> None:
    """Fill the columns of word n-grams: shares of the words' characters.

    `hashes` has one for each word, `offsets` the characters of the words before each, and one more for all.
    """
    row[TOP_2GRAM : DUPLICATE_5GRAMS + 6] = 0
    if not num_words:
        return
    keys = hashes[:num_words].copy()
    places = np.arange(num_words).astype(np.int32)
    table = np.empty(table_size(num_words), dtype=np.int32)
    first, counts = np.empty(num_words, dtype=np.int32), np.empty(num_words, dtype=np.int32)
    count = num_words
    for order in range(2, MAX_ORDER + 1):
        count = extend(keys, hashes, num_words, places, count, order)
        find_first(keys, places, count, table, first)
        count = repeated_places(places, count, first, counts)
        if not count:
            break
        if order <= TOP_ORDER:
            most = most_chars(places, count, first, counts, offsets, order)
            row[TOP_2GRAM + order - 2] = most / offsets[num_words]
        else:
            repeated = repeated_chars(places, count, first, offsets, order)
            row[DUPLICATE_5GRAMS + order - 5] = repeated / offsets[num_words]


@compiled
def char_repetition(codes: Array, row: Array) -> None:
    """Fill the columns of character n-grams, as Swallow counts them: tops by number, repeated ones by different."""
    row[TOP_CHAR_2GRAM : DUPLICATE_CHAR_5GRAMS + 6] = 0
    num_chars = len(codes)
    keys = np.empty(num_chars, dtype=np.uint64)
    for place in range(num_chars):
        keys[place] = mix_bits(np.uint64(codes[place]))
    places = np.arange(num_chars).astype(np.int32)
    table = np.empty(table_size(num_chars), dtype=np.int32)
    first, counts = np.empty(num_chars, dtype=np.int32), np.empty(num_chars, dtype=np.int32)
    count = num_chars
    for order in range(2, MAX_ORDER + 1):
        positions = num_chars - order + 1
        if positions < 1:
            break
        count = extend(keys, codes, num_chars, places, count, order)
        find_first(keys, places, count, table, first)
        count = repeated_places(places, count, first, counts)
        most, different = most_and_different(places, count, first, counts)
        if order <= TOP_ORDER:
            row[TOP_CHAR_2GRAM + order - 2] = most / positions
        else:
            row[DUPLICATE_CHAR_5GRAMS + order - 5] = different / (positions - count + different)


@compiled
def most_and_different(places: Array, count: int, first: Array, counts: Array) -> Any:
    """How often the most frequent n-gram comes, and how many different repeated ones there are."""
    most = 1
    different = 0
    for index in range(count):
        place = places[index]
        if first[place] == place:
            different += 1
            most = max(most, counts[place])
    return most, different


@compiled
def duplicate_shares(hashes: Array, lengths: Array, count: int) -> Any:
    """Shares, by number and by characters, of the items that repeat an earlier one."""
    if not count:
        return 0.0, 0.0
    places = np.arange(count).astype(np.int32)
    first = np.empty(count, dtype=np.int32)
    find_first(hashes, places, count, np.empty(table_size(count), dtype=np.int32), first)
    number, chars, total = 0, 0, 0
    for place in range(count):
        total += lengths[place]
        if first[place] != place:
            number += 1
            chars += lengths[place]
    return number / count, chars / max(1, total)
