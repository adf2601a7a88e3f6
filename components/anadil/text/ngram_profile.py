"""Profile of a language by its own text alone: log-probabilities of hashed n-grams of letters.

If CLD2 does not know a language, its sample is all there is. A text is of the language if the sample makes its n-grams
likely, and likelier than any text that it is not: its siblings, or noise. Limits depend on the text's length, because the
mean over few n-grams varies more. The likelihood of n-grams follows the topic, most of all in scripts with thousands of
letters. Letters that stand together as seldom as in no text of the sample do not, and tell damaged text. Frequent words
tell shuffled text, also in a script without capitals.
"""

import base64
import functools
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

ORDERS = (2, 3, 4)
"""Letters of an n-gram. Measured on Azerbaijani and Turkish, each learnt alone: shorter ones carry over
best to text of another kind, longer ones tell siblings apart best; the three together do both."""
ASSOCIATED = (1, 2, 3)
"""Orders whose shares are compared: a pair or triple of letters, and its letters alone. A table of its own for each,
because the many triples of a large alphabet hide what its pairs tell."""
RARER = 3.5
"""Nats by which a pair or triple must be rarer than chance to count: such are missing where chance would have several. Names and loanwords of
other kinds of text are full of pairs that the sample has seldom; misread letters make those that it never has. Chosen between 3 and 4: of 1,280
letters, where .03 of Azerbaijani text on React is lost by a sample of laws, 1.00 of misread text is kept from 0 nats on, .22 from
3, .04 from 4; of Amharic learnt of .4 MB .00 from 3 and .11 from 4, where .01 of like text is lost."""
NUM_BUCKETS = 1 << 16  # Hashed n-grams. Four times as many make no difference at 2 MB of sample.
SMOOTHING = 0.1
"""Added to each count. Our choice: an n-gram that 2 MB do not hold costs 3 nats more than a rare one."""
STEPS = 12  # Steps of a nat in a pack: a byte holds 0 to -21
VOWEL_POINTS = range(10, 37)
"""Canonical combining classes of Hebrew and Arabic points, which texts may leave out. Source: Unicode, UAX 44."""
MARKS = range(0x300, 0x20000)
LETTER, MARK, POINT = 1, 2, 3
MULTIPLIER, PRIME, MIXER = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0x100000001B3),
    np.uint64(0xBF58476D1CE4E5B9),
)

Table = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint32]
"""Code points of a text, or a row of them for each of several pieces of one length."""
Buckets = Sequence[npt.NDArray[np.int64]]
"""Hashed n-grams of `Codes`, along the last axis: those of one letter, of two, and so on."""
Figures = npt.NDArray[np.float64]
"""A figure of a text, or one for each of several pieces."""


@functools.cache
def code_point_kinds() -> npt.NDArray[np.uint8]:
    """Kind of each code point: LETTER, MARK, POINT, or 0. Letters are the word characters of `re` but figures and `_`."""
    codes = np.arange(sys.maxunicode + 1, dtype=np.uint32).view("U1")
    kinds = (np.strings.isalnum(codes) & ~np.strings.isdecimal(codes)) * np.uint8(LETTER)
    for code in MARKS:
        if unicodedata.category(chr(code)).startswith("M"):
            kinds[code] = POINT if unicodedata.combining(chr(code)) in VOWEL_POINTS else MARK
    return kinds


def letters_of(text: str, *, marks: bool = True) -> str:
    """Words of lower-case letters with one space around each.

    With `marks`, vowel signs and tone marks are letters, and points that texts may omit are dropped.
    """
    codes = codes_of(f" {text.lower()} ")
    kinds = code_point_kinds()[codes]
    if marks and (kinds == POINT).any():
        codes, kinds = codes[kinds != POINT], kinds[kinds != POINT]
    is_letter = kinds > 0 if marks else kinds == LETTER
    # One space of a run of signs stays.
    is_kept = is_letter.copy()
    is_kept[0] = True
    is_kept[1:] |= is_letter[:-1]
    return np.where(is_letter, codes, np.uint32(ord(" ")))[is_kept].tobytes().decode("utf-32-le")


def codes_of(text: str) -> Codes:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)


def codes_of_pieces(pieces: Sequence[str]) -> Codes:
    """The code points of pieces of one length, a row for each."""
    return codes_of("".join(pieces)).reshape(len(pieces), len(pieces[0]))


def buckets(letters: Codes, num: int) -> Buckets:
    """The bucket of every n-gram of `letters_of` a text, of up to `num` letters."""
    codes = letters.astype(np.uint64) * MULTIPLIER
    by_order = []
    hashed = codes
    for order in range(1, num + 1):
        if order > 1:
            hashed = (hashed[..., :-1] * PRIME) ^ codes[..., order - 1 :]
        by_order.append(to_buckets(hashed))
    return by_order


def to_buckets(hashed: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Numbers mixed, and cut to those of the tables."""
    hashed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
    hashed ^= hashed >> np.uint64(29)
    return (hashed & np.uint64(NUM_BUCKETS - 1)).astype(np.int64)


def word_buckets(letters: str) -> npt.NDArray[np.int64]:
    """The bucket of every word of `letters_of` a text."""
    codes = codes_of(letters)
    starts = np.flatnonzero((codes[:-1] == ord(" ")) & (codes[1:] != ord(" "))) + 1
    if not len(starts):
        return np.empty(0, np.int64)
    # Each letter is hashed with its place in the word, and the word's sum is mixed.
    codes = codes[starts[0] :]
    starts -= starts[0]
    place = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    hashed = (codes * MULTIPLIER) ^ (place.astype(np.uint64) * PRIME)
    hashed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
    hashed[codes == ord(" ")] = 0
    return to_buckets(np.add.reduceat(hashed, starts))


def count_ngrams(texts: Iterable[str], num: int) -> npt.NDArray[np.float64]:
    """Counts of the n-grams of texts in each bucket, those of one letter first, of up to `num`."""
    counts = np.zeros((num, NUM_BUCKETS))
    for text in texts:
        for order, hashed in enumerate(buckets(codes_of(letters_of(text)), num)):
            counts[order] += np.bincount(hashed, minlength=NUM_BUCKETS)
    return counts


def count_table(texts: Iterable[str], orders: Sequence[int] = ORDERS) -> Table:
    """Log-probabilities of the n-grams of texts, as a pack holds them."""
    return to_table(count_ngrams(texts, max(orders)), orders)


def to_table(counted: npt.NDArray[np.float64], orders: Sequence[int]) -> Table:
    """Log-probabilities of n-grams of some orders together, of `count_ngrams`."""
    counts = counted[[order - 1 for order in orders]].sum(axis=0)
    shares = (counts + SMOOTHING) / (counts.sum() + SMOOTHING * NUM_BUCKETS)
    # Rounded as a pack rounds it: limits are measured on the figures that will be read.
    return _of_steps(_to_steps(np.log(shares).astype(np.float32)))


def _to_steps(table: Table) -> npt.NDArray[np.uint8]:
    return np.clip(np.rint(-table * STEPS), 0, 255).astype(np.uint8)


def _of_steps(steps: npt.NDArray[np.uint8]) -> Table:
    return -steps.astype(np.float32) / np.float32(STEPS)


def pack_table(table: Table) -> str:
    """A table as text."""
    return pack(_to_steps(table).tobytes())


def pack(data: bytes) -> str:
    """Bytes as text of a pack."""
    return base64.b85encode(zlib.compress(data, 9)).decode()


def unpack(packed: str, size: int) -> bytes:
    """The bytes of a text of `pack`."""
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(packed), size + 1)
    except (ValueError, zlib.error) as error:  # of base 85, of what it holds
        raise ValueError(f"no table of n-grams: {error}") from None
    if len(data) != size:
        raise ValueError(f"no table of n-grams: {len(data)} bytes, not {size}")
    return data


def unpack_table(packed: str) -> Table:
    """The table of a text of `pack_table`."""
    return _of_steps(np.frombuffer(unpack(packed, NUM_BUCKETS), np.uint8))


def score_letters(
    ngrams: Buckets, tables: Sequence[Table], orders: Sequence[int] = ORDERS
) -> tuple[Figures, Figures]:
    """Mean log-probability of a text, and by how much it exceeds that by the likeliest other table."""
    together = np.concatenate([ngrams[order - 1] for order in orders], axis=-1)
    if not together.shape[-1]:
        lowest = np.full(together.shape[:-1], -255 / STEPS)
        return lowest, lowest
    mean, *others = (table[together].mean(axis=-1).astype(np.float64) for table in tables)
    return mean, mean - functools.reduce(np.maximum, others, np.float64(-np.inf))


def score_association(ngrams: Buckets, tables: Sequence[Table], least: float = RARER) -> Figures:
    """Mean nats, at most 0, by which pairs and triples of letters are rarer in the sample than chance has it.

    More frequent ones count as 0: they follow the topic. A letter that the sample lacks tells nothing, because chance has
    it nowhere. `tables` are of the orders `ASSOCIATED`; only nats beyond `least` count.

    Source: pointwise mutual information; Church and Hanks 1990, "Word association norms, mutual information, and
    lexicography".
    """
    alone, *together = (table[ngrams[order - 1]] for table, order in zip(tables, ASSOCIATED, strict=True))
    total = np.zeros(alone.shape[:-1])
    chance = alone
    for place, shares in enumerate(together, 1):
        if shares.shape[-1]:
            chance = chance[..., :-1] + alone[..., place:]
            total = total + np.minimum(shares - chance + least, 0).mean(axis=-1).astype(np.float64)
    return total
