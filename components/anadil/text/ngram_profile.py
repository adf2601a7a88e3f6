"""A language known by its own text alone: log-probabilities of hashed n-grams of letters.

Where CLD2 does not know a language, its sample is all there is. A text is of the language if the sample
makes its n-grams likely, and likelier than any text that it is not: its siblings, or noise. The limits
are of the text's length, because the mean over few n-grams varies more.
"""

import base64
import functools
import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from anadil.text.language import Profile

ORDERS = (2, 3, 4)
"""Letters of an n-gram. Measured on Azerbaijani and Turkish, each learnt alone: shorter ones carry over
best to text of another kind, longer ones tell siblings apart best; the three together do both."""
NUM_BUCKETS = 1 << 16
"""Hashed n-grams. Four times as many make no difference at 2 MB of sample."""
SMOOTHING = 0.1
"""Added to each count. Our choice: an n-gram that 2 MB do not hold costs 3 nats more than a rare one."""
STEPS = 12
"""Steps of a nat in a pack: a byte holds 0 to -21."""
NO_LETTERS = re.compile(r"[\W\d_]+")
MULTIPLIER, PRIME, MIXER = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0x100000001B3),
    np.uint64(0xBF58476D1CE4E5B9),
)

Table = npt.NDArray[np.float32]
"""Log-probability of each bucket."""


def letters_of(text: str) -> str:
    """Words of lower-case letters with one space around each."""
    return f" {NO_LETTERS.sub(' ', text.lower()).strip()} "


def buckets(letters: str, orders: Sequence[int]) -> npt.NDArray[np.int64]:
    """The bucket of every n-gram of `letters_of` a text."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64) * MULTIPLIER
    found = []
    hashed = codes
    for order in range(1, max(orders) + 1):
        if order > 1:
            hashed = (hashed[:-1] * PRIME) ^ codes[order - 1 :]
        if order in orders:
            mixed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
            mixed ^= mixed >> np.uint64(29)
            found.append((mixed & np.uint64(NUM_BUCKETS - 1)).astype(np.int64))
    return np.concatenate(found)


def count_table(texts: Iterable[str]) -> Table:
    """Log-probabilities of the n-grams of texts, as a pack holds them."""
    counts = np.zeros(NUM_BUCKETS)
    for text in texts:
        counts += np.bincount(buckets(letters_of(text), ORDERS), minlength=NUM_BUCKETS)
    shares = (counts + SMOOTHING) / (counts.sum() + SMOOTHING * NUM_BUCKETS)
    return unpack_table(pack_table(np.log(shares).astype(np.float32)))


def pack_table(table: Table) -> str:
    """A table as text."""
    steps = np.clip(np.rint(-table * STEPS), 0, 255).astype(np.uint8)
    return base64.b85encode(zlib.compress(steps.tobytes(), 9)).decode()


def unpack_table(packed: str) -> Table:
    """The table of a text of `pack_table`.

    Raises:
        ValueError: It is none.
    """
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(packed), NUM_BUCKETS + 1)
    except zlib.error as error:
        raise ValueError(f"no table of n-grams: {error}") from None
    if len(data) != NUM_BUCKETS:
        raise ValueError(f"no table of n-grams: {len(data)} buckets, not {NUM_BUCKETS}")
    return -np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(STEPS)


@functools.lru_cache(maxsize=8)
def _tables(profile: Profile) -> tuple[Table, ...]:
    return tuple(map(unpack_table, (profile.own, *profile.others)))


def score_letters(
    letters: str, tables: Sequence[Table], orders: Sequence[int] = ORDERS
) -> tuple[float, float]:
    """Mean log-probability of a text, and by how much it exceeds that by the likeliest other table."""
    found = buckets(letters, orders)
    if not len(found):
        return -255 / STEPS, -255 / STEPS
    own, *others = (float(table[found].mean()) for table in tables)
    return own, own - max(others) if others else np.inf


def is_likely(text: str, profile: Profile) -> bool:
    """Whether a text is of the profile's language; one too short to tell is."""
    letters = letters_of(text)
    place = sum(len(letters) >= least for least in profile.min_chars) - 1
    if place < 0:
        return True
    own, margin = score_letters(letters, _tables(profile), profile.orders)
    if own < profile.min_likelihoods[place]:
        return False
    return not profile.others or margin >= profile.min_margins[place]
