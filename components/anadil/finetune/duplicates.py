"""Chats that say the same: exact keys, and MinHash bands for those that differ in a few words.

Source: Broder 1997, "On the resemblance and containment of documents"; banding as in Leskovec et al., "Mining of
Massive Datasets", section 3.4. `clean` has kernels of its own for billions of documents, which no training image holds.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anadil.text.chats import Chat, fingerprint, folded

Keys = npt.NDArray[np.uint64]

BANDS, ROWS = 6, 16
"""Chats of Jaccard similarity (1 / 6) ** (1 / 16) = 0.89 are found about half the time, of 0.7 one in 50. Chosen by
us: a template with another name in it is another chat."""
SHINGLE_CHARS = 8
"""Characters of a shingle, the same for languages that write no spaces."""
MIN_CHARS = 200
"""Shortest near copy: in a shorter chat another word or number is another question. Our choice."""
NUM_KEYS = 1 + BANDS
"""Keys of a chat: one of the whole text, and one of each band."""
SHINGLES_AT_A_TIME = 4_096
"""Bounds the memory of a long chat, such as a row of 10 MB."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_GENERATOR = np.random.default_rng(20240617)
_FACTORS = _GENERATOR.integers(0, 2**31, (BANDS * ROWS, 1), dtype=np.uint32) * np.uint32(2) + np.uint32(1)
_OFFSETS = _GENERATOR.integers(0, 2**32, (BANDS * ROWS, 1), dtype=np.uint32)


def keys_of(chat: Chat) -> Keys:
    """Return a key of the chat without case, blanks and punctuation, then one for each band; shape (7,)."""
    text = "\n".join(f"{message.role}\t{folded(message.content)}" for message in chat.messages)
    keys = np.full(NUM_KEYS, fingerprint(text), dtype=np.uint64)
    if len(text) < MIN_CHARS:
        return keys
    signature = np.full(BANDS * ROWS, 0xFFFFFFFF, dtype=np.uint32)
    shingles = _shingles(text)
    for start in range(0, len(shingles), SHINGLES_AT_A_TIME):
        values = shingles[start : start + SHINGLES_AT_A_TIME] * _FACTORS + _OFFSETS
        values ^= values >> np.uint32(15)
        np.minimum(signature, values.min(axis=1), out=signature)
    bands = signature.reshape(BANDS, ROWS).astype(np.uint64)
    keys[1:] = np.arange(BANDS, dtype=np.uint64)
    for row in range(ROWS):
        keys[1:] = (keys[1:] ^ bands[:, row]) * MULTIPLIER
        keys[1:] ^= keys[1:] >> np.uint64(29)
    return keys


def repeats(
    keys: Sequence[Keys], ranks: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the chats that repeat another one, and of those that nearly do; they do not overlap."""
    # The chat of lower rank stays; among equal ranks, the earlier one.
    order = np.argsort(ranks, kind="stable")
    repeated = np.zeros((2, len(order)), dtype=np.bool_)
    for number, column in enumerate(keys):
        _, first, inverse = np.unique(column[order], return_index=True, return_inverse=True)
        repeated[min(number, 1), order] |= first[inverse] < np.arange(len(order))
    return repeated[0], repeated[1] & ~repeated[0]


def _shingles(text: str) -> npt.NDArray[np.uint32]:
    """Hash each run of eight characters, or the whole text if it is shorter."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    width = min(SHINGLE_CHARS, len(codes))
    hashes = np.zeros(len(codes) - width + 1, dtype=np.uint64)
    for place in range(width):
        hashes = (hashes + codes[place : place + len(hashes)]) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return (hashes >> np.uint64(32)).astype(np.uint32)
