"""The inner loop of BPE training, on arrays: what `merger` drives.

**Cells.** All pretokens of two or more tokens stand one after another, a border before and after each. One
cell is one token of the beginning, and never moves. A token that was merged lies over the cells of its
parts: the first says which it is, the last how long, so that both neighbours of a token are found at once
and nothing depends on the length of a pretoken.

**Entries.** One for each pair of neighbouring tokens: how often it occurs, and at which cells, in order. A
pair that contains a new token comes up only when that token is made, so its cells are listed once. From
then on it can only become rarer: a pair that is too rare then is forgotten. A cell knows its entry, so a
pair that goes takes one subtraction, and a cell whose entry is another by now is passed over.

**Heap.** Only pairs that occur at least as often as a threshold, which is halved when there are no more of
them: most pairs are rare and never enter it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.tokenizer.compiled import compiled

Array = npt.NDArray[Any]

TOKEN, ENTRY, WORD = 0, 1, 2
"""Columns of a cell. TOKEN: the id, or in the last of several cells minus their number."""
BORDER = -(2**31)
"""In place of a token, before and after each pretoken."""
NONE = -1
"""No entry, no token."""
PAIR, COUNT, FIRST = 0, 1, 2
"""Columns of an entry; its cells end in the pool where those of the next one begin."""
KEY, WEIGHT, NUM, PLACE = 0, 1, 2, 3
"""Columns of a group: pairs with the new token that come up in a merge."""
NUM_ENTRIES, POOL_SIZE, HEAP_SIZE, THRESHOLD, CHOSEN, NUM_GROUPS, ROOM = 0, 1, 2, 3, 4, 5, 6
"""Places in the state. CHOSEN: entry of the most frequent pair; ROOM: free cells that the pool needs."""
STATE = 7
RIGHT_BITS = 32


@compiled
def lay_out(ids: Array, tokens: Array, starts: Array, cells: Array) -> None:
    """Write the tokens of each pretoken into cells.

    Args:
        ids: All pretokens, one after another.
        tokens: What stands in `ids` -> id of the token.
        starts: Where in `ids` each pretoken begins and the last one ends.
        cells: As many as pretokens of several tokens, their tokens, and one more.
    """
    place = 0
    for word in range(len(starts) - 1):
        if starts[word + 1] - starts[word] < 2:
            continue
        cells[place, TOKEN] = BORDER
        place += 1
        for number in range(starts[word], starts[word + 1]):
            cells[place, TOKEN] = tokens[ids[number]]
            cells[place, WORD] = word
            place += 1
    cells[place, TOKEN] = BORDER


@compiled
def count_pairs(cells: Array, counts: Array, slots: Array, found: Array, num: int) -> int:
    """Give each cell that begins a pair the number of its pair, and count the pairs, as far as there is room.

    Args:
        cells: From `lay_out`.
        counts: How often each pretoken occurs.
        slots: Hash table of their numbers, -1 where free; a power of two long.
        found: Room for pairs; KEY, WEIGHT and NUM of each.
        num: Pairs found.

    Returns:
        How many pairs there are; -1 where there is no room for more.
    """
    mask = len(slots) - 1
    for place in range(len(cells) - 1):
        left, right = cells[place, TOKEN], cells[place + 1, TOKEN]
        cells[place, ENTRY] = NONE
        if BORDER in (left, right):
            continue
        pair = np.int64(left) << RIGHT_BITS | np.int64(right)
        slot = _slot_of(pair) & mask
        while slots[slot] >= 0 and found[slots[slot], KEY] != pair:
            slot = (slot + 1) & mask
        number = slots[slot]
        if number < 0:
            if num == len(found):
                return -1
            number = slots[slot] = num
            found[num, KEY], found[num, WEIGHT], found[num, NUM] = pair, 0, 0
            num += 1
        cells[place, ENTRY] = number
        found[number, WEIGHT] += counts[cells[place, WORD]]
        found[number, NUM] += 1
    cells[len(cells) - 1, ENTRY] = NONE
    return num


@compiled
def _slot_of(pair: Any) -> Any:
    """A number that spreads pairs; Knuth's multiplicative hash with the golden ratio."""
    mixed = np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(RIGHT_BITS))


@compiled
def list_pairs(cells: Array, found: Array, entries: Array, pool: Array, state: Array, least: int) -> None:
    """Make entries of the pairs of the beginning that occur often enough.

    Args:
        cells: From `count_pairs`.
        found: From `count_pairs`.
        entries: Room for as many and one more.
        pool: Room for as many cells as begin pairs.
        state: Filled.
        least: How often a pair has to occur.
    """
    num = size = 0
    highest = 0
    for number in range(len(found)):
        found[number, PLACE] = NONE
        if found[number, WEIGHT] >= least:
            entries[num, PAIR], entries[num, COUNT] = found[number, KEY], found[number, WEIGHT]
            entries[num, FIRST] = size
            found[number, PLACE] = num
            found[number, KEY] = size
            size += found[number, NUM]
            num += 1
            highest = max(highest, found[number, WEIGHT])
    entries[num, FIRST] = size
    for place in range(len(cells)):
        number = cells[place, ENTRY]
        if number >= 0:
            cells[place, ENTRY] = found[number, PLACE]
            if found[number, PLACE] >= 0:
                pool[found[number, KEY]] = place
                found[number, KEY] += 1
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
        above = (place - 1) // 2
        if not _comes_before(entries, entry, count, heap[above, 0], heap[above, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[above, 0], heap[above, 1]
        place = above
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
    cells: Array, counts: Array, lengths: Array, entries: Array, pool: Array, entry: int, new: int
) -> int:
    """Write a token wherever its pair stands, and subtract the pairs that go; at how many cells.

    Those cells stand at the beginning of the entry's part of the pool.
    """
    left_length = lengths[entries[entry, PAIR] >> RIGHT_BITS]
    length = lengths[new]
    first, last = entries[entry, FIRST], entries[entry + 1, FIRST]
    num = 0
    for number in range(first, last):
        place = pool[number]
        if cells[place, ENTRY] != entry:
            continue
        count = counts[cells[place, WORD]]
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
    """Where the token begins that ends before a cell."""
    before = cells[place - 1, TOKEN]
    return place - 1 if before >= 0 else place + before


@compiled
def group_neighbours(
    cells: Array, counts: Array, lengths: Array, places: Array, groups: Array, group_of: Array, new: int
) -> int:
    """Count the pairs of a token with what stands beside it; how many pairs.

    Args:
        cells: After `replace_pair`.
        counts: How often each pretoken occurs.
        lengths: Cells of each token.
        places: Where the token stands, in order.
        groups: Filled: the pairs.
        group_of: Neighbour -> its group, as the left one in row 0 and as the right one in row 1.
        new: The token.
    """
    num = 0
    for place in places:
        count = counts[cells[place, WORD]]
        for side in range(2):
            neighbour = _neighbour(cells, place, side, lengths[new])
            # Of two new tokens on end the first one has the pair, as its right side.
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
    """Where the token to the left (0) or right (1) begins; -1 at a border."""
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
    cells: Array, counts: Array, lengths: Array, entries: Array, pool: Array, heap: Array, groups: Array,
    group_of: Array, state: Array, new: int, least: int,
) -> bool:  # fmt: skip
    """Make a token of the chosen pair, and choose the next pair.

    Args:
        cells: All tokens.
        counts: How often each pretoken occurs.
        lengths: Cells of each token.
        entries: All pairs.
        pool: Their cells.
        heap: The frequent ones.
        groups: Room for twice as many pairs as tokens.
        group_of: From `group_neighbours`, all free.
        state: With the pair chosen, and after it the next one.
        new: The token; -1 to leave the pair as it is.
        least: How often a pair has to occur.

    Returns:
        Whether there was room; else nothing was done, and the state says how many cells of the pool to free.
    """
    entry = state[CHOSEN]
    if new >= 0:
        state[ROOM] = 2 * (entries[entry + 1, FIRST] - entries[entry, FIRST])
        num_new = min(state[ROOM], len(groups))
        if state[POOL_SIZE] + state[ROOM] > len(pool) or state[NUM_ENTRIES] + num_new + 1 > len(entries):
            return False
        num = replace_pair(cells, counts, lengths, entries, pool, entry, new)
        places = pool[entries[entry, FIRST] : entries[entry, FIRST] + num]
        num = group_neighbours(cells, counts, lengths, places, groups, group_of, new)
        list_groups(cells, lengths, places, groups, group_of, num, new, entries, pool, heap, state, least)
    elif entry >= 0:
        entries[entry, COUNT] = 0
    state[CHOSEN] = choose_pair(entries, heap, state, least)
    return True
