"""The inner loop of counting: cut texts as the pre-tokenizer's pattern would, and count the pieces.

The patterns of Llama 3, Qwen and GPT-2 try the same few alternatives in the same order, and each of them needs
to look at no more than runs of letters, digits, spaces and other characters, so that no regular expression is
needed. What is a letter is what the library's own engine takes for one; for Qwen 3.5's a combining mark is one too.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.tokenizer.kernels.compiled import compiled

Array = npt.NDArray[Any]

OTHER, LETTER, NUMBER, SPACE, NEWLINE, END = 0, 1, 2, 3, 4, 5
"""Kinds of characters: neither of the next, `\\p{L}`, `\\p{N}`, `\\s` but for the next, `[\\r\\n]`; END: of the text."""
KIND_BITS = 3
APOSTROPHE, BLANK = 0x27, 0x20
STYLE, DIGITS, LONGEST = 0, 1, 2
"""Places in the settings. DIGITS: most of them in a pretoken; LONGEST: bytes of one that is counted."""
LLAMA, GPT2 = 0, 1
"""Styles: Llama 3's pattern, of which Qwen's is one, and GPT-2's."""
START, COUNT, HASH = 0, 1, 2
"""Columns of an entry; its bytes end where those of the next one begin."""
DOCUMENT, PLACE, NUM, SIZE, TOO_LONG = 0, 1, 2, 3, 4
"""Places in the state: where counting is, different pretokens, their bytes, occurrences of those left out."""
STATE = 5


@compiled
def _look(data: Array, place: int, end: int, kinds: Array) -> Any:
    """Kind of the character at a place; above its bits the number of its bytes."""
    if place >= end:
        return END
    first = np.int64(data[place])
    if first < 0x80:
        return kinds[first] | 1 << KIND_BITS
    second = np.int64(data[place + 1]) & 0x3F
    if first < 0xE0:
        return kinds[(first & 0x1F) << 6 | second] | 2 << KIND_BITS
    third = np.int64(data[place + 2]) & 0x3F
    if first < 0xF0:
        return kinds[(first & 0x0F) << 12 | second << 6 | third] | 3 << KIND_BITS
    fourth = np.int64(data[place + 3]) & 0x3F
    return kinds[(first & 0x07) << 18 | second << 12 | third << 6 | fourth] | 4 << KIND_BITS


@compiled
def mark_pages(data: Array, pages: Array) -> None:
    """Mark the pages of 256 code points that a text uses."""
    pages[0] = True
    for place in range(len(data)):
        first = np.int64(data[place])
        if first < 0xC0:
            continue
        second = np.int64(data[place + 1]) & 0x3F
        if first < 0xE0:
            pages[(first & 0x1F) >> 2] = True
        elif first < 0xF0:
            pages[(first & 0x0F) << 4 | second >> 2] = True
        else:
            pages[(first & 0x07) << 10 | second << 4 | (np.int64(data[place + 2]) & 0x3F) >> 2] = True


@compiled
def _after_run(data: Array, place: int, end: int, kinds: Array, kind: int, most: int) -> int:
    """End of a run of at most so many characters of one kind."""
    while most > 0:
        seen = _look(data, place, end, kinds)
        if seen & 7 != kind:
            break
        place += seen >> KIND_BITS
        most -= 1
    return place


@compiled
def _contraction(data: Array, place: int, end: int, ignores_case: bool) -> int:
    """Bytes of one of 's 't 're 've 'm 'll 'd at an apostrophe; 0 where there is none."""
    if place + 1 >= end:
        return 0
    first = data[place + 1]
    # The long s is an s of the other case.
    if ignores_case and first == 0xC5 and data[place + 2] == 0xBF:
        return 3
    second = data[place + 2] if place + 2 < end else np.uint8(0)
    if ignores_case:
        first = first | 0x20 if 0x41 <= first <= 0x5A else first
        second = second | 0x20 if 0x41 <= second <= 0x5A else second
    if first in (0x73, 0x74, 0x6D, 0x64):  # s t m d
        return 2
    if (second == 0x65 and first in (0x72, 0x76)) or (first == 0x6C and second == 0x6C):  # re ve ll
        return 3
    return 0


@compiled
def end_of_pretoken(data: Array, place: int, end: int, kinds: Array, settings: Array) -> int:
    """End of the pretoken that begins at a place.

    Source: the alternatives of `LLAMA_3_REGEX` and of openai/gpt-2, src/encoder.py, in their order.
    """
    far = end
    is_llama = settings[STYLE] == LLAMA
    if data[place] == APOSTROPHE:
        length = _contraction(data, place, end, is_llama)
        if length:
            return place + length
    seen = _look(data, place, end, kinds)
    kind, after = seen & 7, place + (seen >> KIND_BITS)
    following = _look(data, after, end, kinds) & 7
    is_blank = data[place] == BLANK
    if kind == LETTER:
        return _after_run(data, after, end, kinds, LETTER, far)
    if following == LETTER and (is_blank or (is_llama and kind in (OTHER, SPACE))):
        return _after_run(data, after, end, kinds, LETTER, far)
    if kind == NUMBER:
        return _after_run(data, place, end, kinds, NUMBER, settings[DIGITS])
    if is_blank and following == NUMBER and not is_llama:
        return _after_run(data, after, end, kinds, NUMBER, far)
    if kind == OTHER or (is_blank and following == OTHER):
        after = _after_run(data, after, end, kinds, OTHER, far)
        return _after_run(data, after, end, kinds, NEWLINE, far) if is_llama else after
    return _end_of_space(data, place, end, kinds, is_llama)


@compiled
def _end_of_space(data: Array, place: int, end: int, kinds: Array, is_llama: bool) -> int:
    """After the last line break of a run of space; else before its last character, if text follows."""
    begin, last, after_break = place, place, -1
    while True:
        seen = _look(data, place, end, kinds)
        kind = seen & 7
        if kind not in (SPACE, NEWLINE):
            break
        last = place
        place += seen >> KIND_BITS
        if kind == NEWLINE:
            after_break = place
    if is_llama and after_break >= 0:
        return after_break
    return place if kind == END or last == begin else last


@compiled
def count_batch(
    data: Array, ends: Array, kinds: Array, settings: Array, slots: Array, entries: Array, text: Array, state: Array
) -> bool:  # fmt: skip
    """Count the pretokens of some texts, as far as there is room.

    `data` holds the texts in UTF-8, `ends` where each ends. `slots` is a hash table of entries, -1 where free, a power of
    two long. `state` says where to resume.

    Returns:
        True if all was counted; else there has to be more room first.
    """
    mask = len(slots) - 1
    # Half of the slots stays free, or searches would get long.
    most = min(len(slots) // 2, len(entries) - 1)
    place = state[PLACE]
    for document in range(state[DOCUMENT], len(ends)):
        end = ends[document]
        while place < end:
            if state[NUM] >= most or state[SIZE] + settings[LONGEST] > len(text):
                state[DOCUMENT], state[PLACE] = document, place
                return False
            after = end_of_pretoken(data, place, end, kinds, settings)
            if after - place > settings[LONGEST]:
                state[TOO_LONG] += 1
            else:
                _count(data, place, after, slots, mask, entries, text, state)
            place = after
    state[DOCUMENT], state[PLACE] = 0, 0
    return True


@compiled
def _count(
    data: Array, place: int, after: int, slots: Array, mask: int, entries: Array, text: Array, state: Array
) -> None:
    """Count one pretoken; FNV-1a tells them apart, then their bytes."""
    hashed = np.uint64(0xCBF29CE484222325)
    for at in range(place, after):
        hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
    name = np.int64(hashed ^ (hashed >> np.uint64(32)))
    slot = name & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        if entries[entry, HASH] == name and _is_equal(data, place, after, text, entries, entry):
            entries[entry, COUNT] += 1
            return
        slot = (slot + 1) & mask
    entry = state[NUM]
    slots[slot] = entry
    entries[entry, START], entries[entry, COUNT], entries[entry, HASH] = state[SIZE], 1, name
    text[state[SIZE] : state[SIZE] + after - place] = data[place:after]
    state[NUM] += 1
    state[SIZE] += after - place
    entries[entry + 1, START] = state[SIZE]


@compiled
def _is_equal(data: Array, place: int, after: int, text: Array, entries: Array, entry: int) -> bool:
    start = entries[entry, START]
    if entries[entry + 1, START] - start != after - place:
        return False
    for at in range(after - place):  # noqa: SIM110  numba has no generators in `all`
        if data[place + at] != text[start + at]:
            return False
    return True


@compiled
def fill_slots(entries: Array, num: int, slots: Array) -> None:
    """Put the entries into an empty hash table."""
    mask = len(slots) - 1
    for entry in range(num):
        slot = entries[entry, HASH] & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry


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
