"""A language known by its own text alone: log-probabilities of hashed n-grams of letters.

Where CLD2 does not know a language, its sample is all there is. A text is of the language if the sample
makes its n-grams likely, and likelier than any text that it is not: its siblings, or noise. The limits
are of the text's length, because the mean over few n-grams varies more.

How likely n-grams are follows the topic, most of all where a script has thousands of letters. Whether letters stand
together as seldom as in no text of the sample does not, and tells damaged text.
"""

import base64
import functools
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from anadil.text.language import Profile

ORDERS = (2, 3, 4)
"""Letters of an n-gram. Measured on Azerbaijani and Turkish, each learnt alone: shorter ones carry over
best to text of another kind, longer ones tell siblings apart best; the three together do both."""
ASSOCIATED = (1, 2, 3)
"""Orders whose shares are compared: a pair or triple of letters, and its letters alone. A table of its own for each,
because the many triples of a large alphabet hide what its pairs tell."""
NUM_BUCKETS = 1 << 16
"""Hashed n-grams. Four times as many make no difference at 2 MB of sample."""
SMOOTHING = 0.1
"""Added to each count. Our choice: an n-gram that 2 MB do not hold costs 3 nats more than a rare one."""
STEPS = 12
"""Steps of a nat in a pack: a byte holds 0 to -21."""
VOWEL_POINTS = range(10, 37)
"""Canonical combining classes of Hebrew and Arabic points, which texts may leave out. Source: Unicode, UAX 44."""
MARKS = range(0x300, 0x20000)
"""Code points among which the marks of scripts are."""
LETTER, MARK, POINT = 1, 2, 3
MULTIPLIER, PRIME, MIXER = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0x100000001B3),
    np.uint64(0xBF58476D1CE4E5B9),
)

Table = npt.NDArray[np.float32]
"""Log-probability of each bucket."""
Buckets = Sequence[npt.NDArray[np.int64]]
"""Of the n-grams of one text: those of one letter, of two, and so on."""


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Of each code point: LETTER, MARK, POINT, or 0. Letters are the word characters of `re` but figures and `_`."""
    codes = np.arange(sys.maxunicode + 1, dtype=np.uint32).view("U1")
    kinds = (np.strings.isalnum(codes) & ~np.strings.isdecimal(codes)) * np.uint8(LETTER)
    for code in MARKS:
        if unicodedata.category(chr(code)).startswith("M"):
            kinds[code] = POINT if unicodedata.combining(chr(code)) in VOWEL_POINTS else MARK
    return kinds


def letters_of(text: str, *, marks: bool = True) -> str:
    """Words of lower-case letters with one space around each.

    Args:
        text: Any.
        marks: Vowel signs and tone marks are letters, and points that texts may leave out are left out.
    """
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "replace"), np.uint32)
    kinds = _kinds()[codes]
    if marks and (kinds == POINT).any():
        codes, kinds = codes[kinds != POINT], kinds[kinds != POINT]
    is_letter = kinds > 0 if marks else kinds == LETTER
    is_kept = is_letter.copy()
    is_kept[0] = True
    is_kept[1:] |= is_letter[:-1]
    return np.where(is_letter, codes, np.uint32(ord(" ")))[is_kept].tobytes().decode("utf-32-le")


def buckets(letters: str, num: int) -> Buckets:
    """The bucket of every n-gram of `letters_of` a text, of up to `num` letters."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64) * MULTIPLIER
    found = []
    hashed = codes
    for order in range(1, num + 1):
        if order > 1:
            hashed = (hashed[:-1] * PRIME) ^ codes[order - 1 :]
        mixed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
        mixed ^= mixed >> np.uint64(29)
        found.append((mixed & np.uint64(NUM_BUCKETS - 1)).astype(np.int64))
    return found


def count_table(texts: Iterable[str], orders: Sequence[int] = ORDERS) -> Table:
    """Log-probabilities of the n-grams of texts, as a pack holds them."""
    counts = np.zeros(NUM_BUCKETS)
    for text in texts:
        found = buckets(letters_of(text), max(orders))
        for order in orders:
            counts += np.bincount(found[order - 1], minlength=NUM_BUCKETS)
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
def _tables(profile: Profile) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    """Of all n-grams together, own and others; and of each order that is associated."""
    likelihoods = tuple(map(unpack_table, (profile.own, *profile.others)))
    return likelihoods, tuple(map(unpack_table, profile.associations))


def score_letters(
    found: Buckets, tables: Sequence[Table], orders: Sequence[int] = ORDERS
) -> tuple[float, float]:
    """Mean log-probability of a text, and by how much it exceeds that by the likeliest other table."""
    together = np.concatenate([found[order - 1] for order in orders])
    if not len(together):
        return -255 / STEPS, -255 / STEPS
    own, *others = (float(table[together].mean()) for table in tables)
    return own, own - max(others) if others else np.inf


def score_association(found: Buckets, tables: Sequence[Table]) -> float:
    """By how much pairs and triples of letters are rarer in the sample than chance has it: mean nats, at most 0.

    Those that are more frequent count as 0: they follow the topic. A letter that the sample lacks tells nothing
    here, because chance has it nowhere.

    Args:
        found: Buckets of a text.
        tables: Of the orders `ASSOCIATED`.

    Source: pointwise mutual information; Church and Hanks 1990, "Word association norms, mutual information, and
    lexicography".
    """
    alone, *together = (table[found[order - 1]] for table, order in zip(tables, ASSOCIATED, strict=True))
    total = 0.0
    chance = alone
    for place, shares in enumerate(together, 1):
        if len(shares):
            chance = chance[:-1] + alone[place:]
            total += float(np.minimum(shares - chance, 0).mean())
    return total


def is_likely(text: str, profile: Profile) -> bool:
    """Whether a text is of the profile's language; one too short to tell is."""
    # Packs without associations were made when marks were no letters.
    letters = letters_of(text, marks=bool(profile.associations))
    place = sum(len(letters) >= least for least in profile.min_chars) - 1
    if place < 0:
        return True
    tables, associations = _tables(profile)
    found = buckets(letters, max(profile.orders))
    own, margin = score_letters(found, tables, profile.orders)
    if own < profile.min_likelihoods[place]:
        return False
    if associations and score_association(found, associations) < profile.min_associations[place]:
        return False
    return not profile.others or margin >= profile.min_margins[place]
