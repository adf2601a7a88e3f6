"""The inner loop of BPE training, on arrays: what `merger` drives.

**Cells.** All pretokens of two or more tokens stand one after another, a border before and after each. One
cell is one token of the beginning, and never moves. A token that was merged lies over the cells of its
parts: the first says which it is, the last how long, so that both neighbours of a token are found at once
and nothing depends on the length of a pretoken.

**Entries.** One for each pair of neighbouring tokens: how often it occurs, and at which cells, in order. A
pair that contains a new token comes up only when that token is made, so its cells are listed once. From
then on it can only become rarer: a pair that is too rare then is forgotten. A cell knows its entry, so a
pair that goes takes one subtraction, and a cell whose entry is another by now is passed over. Where the
lists are full, such cells and forgotten pairs are taken out: at the end most of both are.

**Words.** Which pretoken a cell is of takes no room in it: the first pretoken of each block of cells is known,
and from there it is a few steps. Of 100 MB of text that is a fifth of the memory.

**Heap.** Only pairs that occur at least as often as a threshold, which is halved when there are no more of
them: most pairs are rare and never enter it.
"""

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


@compiled
def choose_pair(entries: Array, heap: Array, state: Array, least: int) -> int:
    """The entry of the most frequent pair, of several the one of the lowest ids; -1 where there is none.

    Source: tokenizers 0.23, models/bpe/trainer.rs, order of `Merge`.
    """
    while True:
        if state[HEAP_SIZE] == 0:
            if state[THRESHOLD] <= least:
                return NONE
            _lower_threshold(entries, heap, state, least)
            continue
        entry, count = heap[0, 0], heap[0, 1]
        _pop(entries, heap, state)
        # Counts only fall, so a count in the heap is right or too high. One too high is pushed again.
        if entries[entry, COUNT] == count:
            return int(entry)
        if entries[entry, COUNT] >= state[THRESHOLD]:
            _push(entries, heap, state, entry)


@compiled
def _lower_threshold(entries: Array, heap: Array, state: Array, least: int) -> None:
    """Halve the threshold, and put every pair that reaches it now into the empty heap."""
    state[THRESHOLD] = max(least, state[THRESHOLD] // 2)
    for entry in range(state[NUM_ENTRIES]):
        if entries[entry, COUNT] >= state[THRESHOLD]:
            _push(entries, heap, state, entry)


@compiled
def _comes_before(entries: Array, entry: int, count: int, other: int, other_count: int) -> bool:
    if count != other_count:
        return count > other_count
    return bool(entries[entry, PAIR] < entries[other, PAIR])


@compiled
def _push(entries: Array, heap: Array, state: Array, entry: int) -> None:
    count = entries[entry, COUNT]
    place = state[HEAP_SIZE]
    state[HEAP_SIZE] += 1
    while place > 0:
        parent = (place - 1) // 2
        if not _comes_before(entries, entry, count, heap[parent, 0], heap[parent, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = entry, count


@compiled
def _pop(entries: Array, heap: Array, state: Array) -> None:
    state[HEAP_SIZE] -= 1
    size = state[HEAP_SIZE]
    entry, count = heap[size, 0], heap[size, 1]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _comes_before(
            entries, heap[below + 1, 0], heap[below + 1, 1], heap[below, 0], heap[below, 1]
        ):
            below += 1
        if not _comes_before(entries, heap[below, 0], heap[below, 1], entry, count):
            break
        heap[place, 0], heap[place, 1] = heap[below, 0], heap[below, 1]
        place = below
    heap[place, 0], heap[place, 1] = entry, count


@compiled
def replace_pair(
    cells: Array, words: Words, lengths: Array, entries: Array, pool: Array, entry: int, new: int
) -> int:
    """Write a token wherever its pair stands, and subtract the pairs that go; return the number of its cells, the first in the pool."""
    left_length = lengths[entries[entry, PAIR] >> RIGHT_BITS]
    length = lengths[new]
    first, last = entries[entry, FIRST], entries[entry + 1, FIRST]
    num = 0
    for number in range(first, last):
        place = pool[number]
        if cells[place, ENTRY] != entry:
            continue
        count = count_at(words, place)
        right = place + left_length
        if cells[right, ENTRY] >= 0:
            entries[cells[right, ENTRY], COUNT] -= count
            cells[right, ENTRY] = NONE
        if cells[place - 1, TOKEN] != BORDER:
            left = _token_before(cells, place)
            if cells[left, ENTRY] >= 0:
                entries[cells[left, ENTRY], COUNT] -= count
                cells[left, ENTRY] = NONE
        cells[place, TOKEN] = new
        cells[place, ENTRY] = NONE
        cells[place + length - 1, TOKEN] = -length
        pool[first + num] = place
        num += 1
    entries[entry, COUNT] = 0
    return num


@compiled
def _token_before(cells: Array, place: int) -> int:
    """First cell of the token that ends before a cell."""
    before = cells[place - 1, TOKEN]
    return place - 1 if before >= 0 else place + before


@compiled
def group_neighbours(
    cells: Array, words: Words, lengths: Array, places: Array, groups: Array, group_of: Array, new: int
) -> int:
    """Count the pairs of a new token with its neighbours; return the number of pairs.

    `places` are the cells where it begins, in order. `groups` is filled. `group_of` maps a neighbour to its group, as the
    left one in row 0 and as the right one in row 1.
    """
    num = 0
    for place in places:
        count = count_at(words, place)
        for side in range(2):
            neighbour = _neighbour(cells, place, side, lengths[new])
            # Two new tokens in a row are one pair, counted as the first one's right side.
            if neighbour == NONE or (side == 0 and cells[neighbour, TOKEN] == new):
                continue
            token = cells[neighbour, TOKEN]
            group = group_of[side, token]
            if group < 0:
                group = group_of[side, token] = num
                left, right = (token, new) if side == 0 else (new, token)
                groups[num, KEY] = np.int64(left) << RIGHT_BITS | np.int64(right)
                groups[num, WEIGHT] = groups[num, NUM] = 0
                num += 1
            groups[group, WEIGHT] += count
            groups[group, NUM] += 1
    return num


@compiled
def _neighbour(cells: Array, place: int, side: int, length: int) -> int:
    """First cell of the token to the left (0) or right (1); -1 at a border."""
    if side == 0:
        return NONE if cells[place - 1, TOKEN] == BORDER else _token_before(cells, place)
    return NONE if cells[place + length, TOKEN] == BORDER else place + length


@compiled
def list_groups(
    cells: Array, lengths: Array, places: Array, groups: Array, group_of: Array, num: int, new: int,
    entries: Array, pool: Array, heap: Array, state: Array, least: int,
) -> None:  # fmt: skip
    """Make entries of the new pairs that occur often enough, and give the cells to them."""
    for group in range(num):
        entry = NONE
        if groups[group, WEIGHT] >= least:
            entry = state[NUM_ENTRIES]
            state[NUM_ENTRIES] += 1
            entries[entry, PAIR], entries[entry, COUNT] = groups[group, KEY], groups[group, WEIGHT]
            entries[entry, FIRST] = state[POOL_SIZE]
            groups[group, PLACE] = state[POOL_SIZE]
            state[POOL_SIZE] += groups[group, NUM]
            entries[entry + 1, FIRST] = state[POOL_SIZE]
            if entries[entry, COUNT] >= state[THRESHOLD]:
                _push(entries, heap, state, entry)
        groups[group, NUM] = entry
    for place in places:
        for side in range(2):
            neighbour = _neighbour(cells, place, side, lengths[new])
            if neighbour == NONE or (side == 0 and cells[neighbour, TOKEN] == new):
                continue
            group = group_of[side, cells[neighbour, TOKEN]]
            begin = neighbour if side == 0 else place
            cells[begin, ENTRY] = groups[group, NUM]
            if groups[group, NUM] >= 0:
                pool[groups[group, PLACE]] = begin
                groups[group, PLACE] += 1
    for group in range(num):
        left, right = groups[group, KEY] >> RIGHT_BITS, groups[group, KEY] & (2**RIGHT_BITS - 1)
        if right == new:
            group_of[0, left] = NONE
        if left == new:
            group_of[1, right] = NONE


@compiled
def merge_and_choose(
    cells: Array, words: Words, lengths: Array, entries: Array, pool: Array, heap: Array, groups: Array,
    group_of: Array, state: Array, new: int, least: int,
) -> bool:  # fmt: skip
    """Make a token of the chosen pair (-1: leave the pair as it is), and choose the next pair.

    Returns:
        True if there was room; else nothing was done, and the state holds the number of pool cells to free.
    """
    entry = state[CHOSEN]
    if new >= 0:
        # A merge lists at most two new pairs at each place.
        state[ROOM] = 2 * (entries[entry + 1, FIRST] - entries[entry, FIRST])
        num_new = min(state[ROOM], len(groups))
        if state[POOL_SIZE] + state[ROOM] > len(pool) or state[NUM_ENTRIES] + num_new + 1 > len(entries):
            return False
        num = replace_pair(cells, words, lengths, entries, pool, entry, new)
        places = pool[entries[entry, FIRST] : entries[entry, FIRST] + num]
        num = group_neighbours(cells, words, lengths, places, groups, group_of, new)
        list_groups(cells, lengths, places, groups, group_of, num, new, entries, pool, heap, state, least)
    elif entry >= 0:
        entries[entry, COUNT] = 0
    state[CHOSEN] = choose_pair(entries, heap, state, least)
    return True


@compiled
def forget_pairs(cells: Array, entries: Array, pool: Array, heap: Array, state: Array, least: int) -> None:
    """Take out pairs that are gone or too rare, and cells that begin another pair by now; renumber the others."""
    num = size = 0
    chosen = NONE
    last = entries[0, FIRST]
    for entry in range(state[NUM_ENTRIES]):
        first, last = last, entries[entry + 1, FIRST]
        is_left = entries[entry, COUNT] >= least
        entries[num, FIRST] = size
        for number in range(first, last):
            place = pool[number]
            if cells[place, ENTRY] != entry:
                continue
            cells[place, ENTRY] = num if is_left else NONE
            if is_left:
                pool[size] = place
                size += 1
        if is_left:
            entries[num, PAIR], entries[num, COUNT] = entries[entry, PAIR], entries[entry, COUNT]
            if entry == state[CHOSEN]:
                chosen = num
            num += 1
    entries[num, FIRST] = size
    state[NUM_ENTRIES], state[POOL_SIZE], state[HEAP_SIZE], state[CHOSEN] = num, size, 0, chosen
    for entry in range(num):
        if entries[entry, COUNT] >= state[THRESHOLD] and entry != chosen:
            _push(entries, heap, state, entry)
