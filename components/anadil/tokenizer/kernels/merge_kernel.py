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

import numpy as np

from anadil.tokenizer.kernels.compiled import compiled
from anadil.tokenizer.kernels.merge_layout import (
    BORDER,
    CHOSEN,
    COUNT,
    ENTRY,
    FIRST,
    HEAP_SIZE,
    KEY,
    NONE,
    NUM,
    NUM_ENTRIES,
    PAIR,
    PLACE,
    POOL_SIZE,
    RIGHT_BITS,
    ROOM,
    THRESHOLD,
    TOKEN,
    WEIGHT,
    Array,
    Words,
    count_at,
)  # fmt: skip


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
