"""Layout at the beginning of BPE training: pretokens written into cells, and their pairs counted and listed. See `merge_kernel`."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.tokenizer.kernels.compiled import compiled

Array = npt.NDArray[Any]
Words = tuple[Array, Array, Array]
"""`firsts` and `blocks` of `lay_out`, and how often each of its pretokens occurs."""

TOKEN, ENTRY = 0, 1
"""Columns of a cell. TOKEN: the id, or in the last of several cells minus their number."""
BORDER = -(2**31)
"""In place of a token, before and after each pretoken."""
NONE = -1
"""No entry, no token."""
BLOCK_BITS = 4
"""Cells of a block, as a power of two; a pretoken has three or more, with its border."""
PAIR, COUNT, FIRST = 0, 1, 2
"""Columns of an entry; its cells end in the pool where those of the next one begin."""
KEY, WEIGHT, NUM, PLACE = 0, 1, 2, 3
"""Columns of a group: pairs with the new token that come up in a merge."""
NUM_ENTRIES, POOL_SIZE, HEAP_SIZE, THRESHOLD, CHOSEN, NUM_GROUPS, ROOM = 0, 1, 2, 3, 4, 5, 6
"""Places in the state. CHOSEN: entry of the most frequent pair; ROOM: free cells that the pool needs."""
STATE = 7
RIGHT_BITS = 32


@compiled
def lay_out(ids: Array, tokens: Array, starts: Array, cells: Array, firsts: Array, blocks: Array) -> None:
    """Write the tokens of each pretoken of several ones into cells.

    Args:
        ids: All pretokens, one after another.
        tokens: What stands in `ids` -> id of the token.
        starts: Where in `ids` each pretoken begins and the last one ends.
        cells: As many as such pretokens, their tokens, and one more.
        firsts: Filled: the border before each of them, and the last one.
        blocks: Filled: the pretoken that the first cell of each block is of.
    """
    place = num = 0
    for word in range(len(starts) - 1):
        if starts[word + 1] - starts[word] < 2:
            continue
        cells[place, TOKEN] = BORDER
        firsts[num] = place
        place += 1
        for number in range(starts[word], starts[word + 1]):
            cells[place, TOKEN] = tokens[ids[number]]
            place += 1
        for block in range(
            (firsts[num] + (1 << BLOCK_BITS) - 1) >> BLOCK_BITS, ((place - 1) >> BLOCK_BITS) + 1
        ):
            blocks[block] = num
        num += 1
    cells[place, TOKEN] = BORDER
    firsts[num] = place


@compiled
def count_at(words: Words, place: int) -> Any:
    """Count of the pretoken of a cell."""
    firsts, blocks, counts = words
    word = blocks[place >> BLOCK_BITS]
    while firsts[word + 1] <= place:
        word += 1
    return counts[word]


@compiled
def count_pairs(cells: Array, words: Words, slots: Array, pairs: Array, num: int) -> int:
    """Give each cell that begins a pair the number of its pair, and count the pairs.

    `slots` is a hash table of their numbers, -1 where free, a power of two long. `pairs` gets KEY, WEIGHT and NUM of each.

    Returns:
        The number of pairs; -1 where there is no room for more.
    """
    mask = len(slots) - 1
    for place in range(len(cells) - 1):
        left, right = cells[place, TOKEN], cells[place + 1, TOKEN]
        cells[place, ENTRY] = NONE
        if BORDER in (left, right):
            continue
        pair = np.int64(left) << RIGHT_BITS | np.int64(right)
        slot = _slot_of(pair) & mask
        while slots[slot] >= 0 and pairs[slots[slot], KEY] != pair:
            slot = (slot + 1) & mask
        number = slots[slot]
        if number < 0:
            # Compiled code cannot grow an array, so the caller comes again with a larger one.
            if num == len(pairs):
                return -1
            number = slots[slot] = num
            pairs[num, KEY], pairs[num, WEIGHT], pairs[num, NUM] = pair, 0, 0
            num += 1
        cells[place, ENTRY] = number
        pairs[number, WEIGHT] += count_at(words, place)
        pairs[number, NUM] += 1
    cells[len(cells) - 1, ENTRY] = NONE
    return num


@compiled
def _slot_of(pair: Any) -> Any:
    """A number that spreads pairs. Source: Knuth's multiplicative hash with the golden ratio."""
    hashed = np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(hashed >> np.uint64(RIGHT_BITS))


@compiled
def list_pairs(cells: Array, pairs: Array, entries: Array, pool: Array, state: Array, least: int) -> None:
    """Make entries of the pairs that occur `least` times, with their cells in the pool, and fill the state."""
    num = size = 0
    highest = 0
    for number in range(len(pairs)):
        pairs[number, PLACE] = NONE
        if pairs[number, WEIGHT] >= least:
            entries[num, PAIR], entries[num, COUNT] = pairs[number, KEY], pairs[number, WEIGHT]
            entries[num, FIRST] = size
            pairs[number, PLACE] = num
            pairs[number, KEY] = size
            size += pairs[number, NUM]
            num += 1
            highest = max(highest, pairs[number, WEIGHT])
    entries[num, FIRST] = size
    for place in range(len(cells)):
        number = cells[place, ENTRY]
        if number >= 0:
            cells[place, ENTRY] = pairs[number, PLACE]
            if pairs[number, PLACE] >= 0:
                pool[pairs[number, KEY]] = place
                pairs[number, KEY] += 1
    state[NUM_ENTRIES], state[POOL_SIZE], state[HEAP_SIZE] = num, size, 0
    state[THRESHOLD], state[CHOSEN] = highest + 1, NONE
