"""A language known by its own text alone: log-probabilities of hashed n-grams of letters.

Where CLD2 does not know a language, its sample is all there is. A text is of the language if the sample
makes its n-grams likely, and likelier than any text that it is not: its siblings, or noise. The limits
are of the text's length, because the mean over few n-grams varies more.

How likely n-grams are follows the topic, most of all where a script has thousands of letters. Whether letters stand
together as seldom as in no text of the sample does not, and tells damaged text. Whether frequent words do tells shuffled
text, also where a script has no capitals to betray it.

Words end in few ways, which topics share and siblings do not: how many of a text's words end as no word of the sample does
tells a sibling that nobody gave, and misread words. Words with a capital do not count, since names end in any way.
"""

import base64
import functools
import math
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anadil.text.language import Profile

ORDERS = (2, 3, 4)
"""Letters of an n-gram. Measured on Azerbaijani and Turkish, each learnt alone: shorter ones carry over
best to text of another kind, longer ones tell siblings apart best; the three together do both."""
MAX_ORDER = 8
"""Of a pack. Our choice: longer n-grams are words."""
ASSOCIATED = (1, 2, 3)
"""Orders whose shares are compared: a pair or triple of letters, and its letters alone. A table of its own for each,
because the many triples of a large alphabet hide what its pairs tell."""
FREQUENT = 1 / 5_000
"""Share of words from which one is frequent: some 600 to 900 words, pairs of which 1 MB shows. Of 1 in 2,000 a fifth to a half of
Russian and Azerbaijani documents have too few pairs, of 1 in 5,000 a fifth."""
MIN_PAIRS = 24
"""Of frequent words, from which a text is judged by them. Of 8 it drops 5 in 300 more of Azerbaijani, of 24 none."""
ENDING = 4
"""Letters at the end of a word, with its border. Measured on seven languages learnt of handbooks: where .03 of messages of
programs in the language are lost, .00 to .28 of siblings are kept by four letters, .00 to .51 by five or by whole words."""
KNOWN = 2
"""Texts of the sample that end a word so, from which an ending is known: a misprint or a quotation is in one."""
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
PLACES = np.array([pow(int(MULTIPLIER), place + 1, 1 << 64) for place in range(ENDING)], np.uint64)
"""What the letters of an ending are multiplied with, the last one first."""

Table = npt.NDArray[np.float32]
"""Log-probability of each bucket."""
Endings = npt.NDArray[np.bool_]
"""Of each bucket whether it is an ending of the language."""
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


@functools.cache
def _is_capital() -> npt.NDArray[np.bool_]:
    return np.strings.isupper(np.arange(sys.maxunicode + 1, dtype=np.uint32).view("U1"))


def capitals_share(texts: Iterable[str]) -> float:
    """Of all letters; 0 in a script without capitals."""
    letters = capitals = 0
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
        letters += int((_kinds()[codes] > 0).sum())
        capitals += int(_is_capital()[codes].sum())
    return capitals / max(1, letters)


def without_names(text: str) -> str:
    """A text without its words that begin with a capital, and without signs."""
    codes = np.frombuffer(f" {text} ".encode("utf-32-le", "replace"), np.uint32)
    is_letter = _kinds()[codes] > 0
    starts = np.zeros_like(is_letter)
    starts[1:] = is_letter[1:] & ~is_letter[:-1]
    is_name = np.append(False, _is_capital()[codes[starts]])[np.cumsum(starts)]
    return np.where(is_letter & ~is_name, codes, np.uint32(ord(" "))).tobytes().decode("utf-32-le")


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
        found.append(_bucket(hashed))
    return found


def _bucket(hashed: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    mixed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
    mixed ^= mixed >> np.uint64(29)
    return (mixed & np.uint64(NUM_BUCKETS - 1)).astype(np.int64)


def word_buckets(letters: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bucket of every word of `letters_of` a text, and of every two neighbours."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32)
    starts = np.flatnonzero((codes[:-1] == ord(" ")) & (codes[1:] != ord(" "))) + 1
    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Each letter is hashed with its place in the word, and the word's sum is mixed.
    codes = codes[starts[0] :]
    starts -= starts[0]
    place = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    hashed = (codes * MULTIPLIER) ^ (place.astype(np.uint64) * PRIME)
    hashed = (hashed ^ (hashed >> np.uint64(31))) * MIXER
    hashed[codes == ord(" ")] = 0
    words = np.add.reduceat(hashed, starts)
    return _bucket(words), _bucket((words[:-1] * PRIME) ^ words[1:])


def small_letters_of(text: str) -> str:
    """`letters_of` the words that begin with no capital."""
    return letters_of(without_names(text))


def ending_buckets(letters: str) -> npt.NDArray[np.int64]:
    """The bucket of the ending of every word of `small_letters_of` a text."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32)
    is_letter = codes != ord(" ")
    last = np.flatnonzero(is_letter[:-1] & ~is_letter[1:])
    places = last[:, np.newaxis] - np.arange(ENDING)
    inside = np.logical_and.accumulate((places >= 0) & is_letter[places], axis=1)
    return _bucket((np.where(inside, codes[places], 0) * PLACES).sum(axis=1, dtype=np.uint64))


def count_table(texts: Iterable[str], orders: Sequence[int] = ORDERS) -> Table:
    """Log-probabilities of the n-grams of texts, as a pack holds them."""
    counts = np.zeros(NUM_BUCKETS)
    for text in texts:
        found = buckets(letters_of(text), max(orders))
        for order in orders:
            counts += np.bincount(found[order - 1], minlength=NUM_BUCKETS)
    return _packed_shares(counts)


def count_words(texts: Iterable[str]) -> tuple[Table, Table]:
    """Log-probabilities of frequent words, and of pairs of them, as a pack holds them."""
    found = [word_buckets(letters_of(text)) for text in texts]
    alone, together = np.zeros(NUM_BUCKETS), np.zeros(NUM_BUCKETS)
    for words, _ in found:
        alone += np.bincount(words, minlength=NUM_BUCKETS)
    alone[alone < FREQUENT * alone.sum()] = 0
    for words, pairs in found:
        together += np.bincount(pairs[_are_frequent(alone > 0, words)], minlength=NUM_BUCKETS)
    return unpack_table(pack_table(_log(alone))), _packed_shares(together)


def count_endings(texts: Iterable[str]) -> Endings:
    """Whether the words of several texts end so."""
    counts = np.zeros(NUM_BUCKETS, np.uint32)
    for text in texts:
        counts[np.unique(ending_buckets(small_letters_of(text)))] += 1
    return counts >= KNOWN


def _log(counts: npt.NDArray[np.float64]) -> Table:
    """Log-probabilities; of what was not counted the least that a pack holds."""
    shares = np.full(NUM_BUCKETS, -255 / STEPS)
    np.log(counts / max(1.0, counts.sum()), out=shares, where=counts > 0)
    return shares.astype(np.float32)


def _packed_shares(counts: npt.NDArray[np.float64]) -> Table:
    shares = (counts + SMOOTHING) / (counts.sum() + SMOOTHING * NUM_BUCKETS)
    return unpack_table(pack_table(np.log(shares).astype(np.float32)))


def _are_frequent(is_frequent: npt.NDArray[np.bool_], words: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Of every two neighbours whether both are."""
    frequent = is_frequent[words]
    return frequent[:-1] & frequent[1:]


def pack_table(table: Table) -> str:
    """A table as text."""
    steps = np.clip(np.rint(-table * STEPS), 0, 255).astype(np.uint8)
    return base64.b85encode(zlib.compress(steps.tobytes(), 9)).decode()


def pack_endings(endings: Endings) -> str:
    """Endings as text."""
    return base64.b85encode(zlib.compress(np.packbits(endings).tobytes(), 9)).decode()


def unpack_endings(packed: str) -> Endings:
    """The endings of a text of `pack_endings`.

    Raises:
        ValueError: It is none.
    """
    return np.unpackbits(np.frombuffer(_unpack(packed, NUM_BUCKETS // 8), np.uint8)).astype(np.bool_)


def _unpack(packed: str, size: int) -> bytes:
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(packed), size + 1)
    except zlib.error as error:
        raise ValueError(f"no table of n-grams: {error}") from None
    if len(data) != size:
        raise ValueError(f"no table of n-grams: {len(data)} bytes, not {size}")
    return data


def unpack_table(packed: str) -> Table:
    """The table of a text of `pack_table`.

    Raises:
        ValueError: It is none.
    """
    data = _unpack(packed, NUM_BUCKETS)
    return -np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(STEPS)


@functools.lru_cache(maxsize=8)
def _tables(profile: Profile) -> tuple[tuple[Table, ...], ...]:
    """Of all n-grams together, own and others; of each order that is associated; of words and pairs of them."""
    packed = ((profile.own, *profile.others), profile.associations, profile.words)
    return tuple(tuple(map(unpack_table, each)) for each in packed)


@functools.lru_cache(maxsize=8)
def _endings(profile: Profile) -> Endings | None:
    return unpack_endings(profile.endings) if profile.endings else None


def check_profile(profile: Profile) -> None:
    """Make sure that a profile's tables can be read, and that each has a limit of each length.

    Raises:
        ValueError: With what is wrong.
    """
    _tables(profile)
    _endings(profile)
    limits: dict[str, tuple[float, ...]] = {"min_likelihoods": profile.min_likelihoods}
    limits |= {"min_margins": profile.min_margins} if profile.others else {}
    limits |= {"min_associations": profile.min_associations} if profile.associations else {}
    limits |= {"min_words": profile.min_words} if profile.words else {}
    limits |= {"max_new_endings": profile.max_new_endings} if profile.endings else {}
    for name, given in limits.items():
        if len(given) != len(profile.min_chars):
            raise ValueError(f"{name} has {len(given)} values, min_chars {len(profile.min_chars)}")
    for name, tables, needed in (
        ("associations", profile.associations, len(ASSOCIATED)),
        ("words", profile.words, 2),
    ):
        if len(tables) not in {0, needed}:
            raise ValueError(f"{name} has {len(tables)} tables, not {needed}")
    if not profile.orders or min(profile.orders) < 1 or max(profile.orders) > MAX_ORDER:
        raise ValueError(f"orders are {profile.orders}, not of 1 to {MAX_ORDER}")


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


def score_words(letters: str, tables: Sequence[Table]) -> float:
    """By how much pairs of frequent words are rarer in the sample than chance has it: mean nats, at most 0, as for letters.

    Args:
        letters: `letters_of` a text.
        tables: Of `count_words`.

    Returns:
        The mean; NaN of fewer than `MIN_PAIRS`, which is less than no limit.
    """
    words, pairs = word_buckets(letters)
    alone, together = tables
    frequent = _are_frequent(alone > -255 / STEPS, words)
    if frequent.sum() < MIN_PAIRS:
        return math.nan
    chance = (alone[words[:-1]] + alone[words[1:]])[frequent]
    return float(np.minimum(together[pairs[frequent]] - chance, 0).mean())


def score_endings(letters: str, endings: Endings) -> float:
    """The share of words that end as none of the language.

    Args:
        letters: `small_letters_of` a text.
        endings: Of `count_endings`.
    """
    found = ending_buckets(letters)
    return float(np.mean(~endings[found])) if len(found) else 1.0


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """What was measured of a text, and the profile's limit at its length."""

    name: str
    value: float
    limit: float
    is_least: bool = True
    """Whether the limit is the least value, not the most."""

    @property
    def passes(self) -> bool:
        """A value that could not be measured (NaN) breaks no limit."""
        return not (self.value < self.limit if self.is_least else self.value > self.limit)


def profile_checks(text: str, profile: Profile) -> Iterator[ProfileCheck]:
    """What decides, the cheapest first; nothing of a text that is too short to tell."""
    # Packs without associations were made when marks were no letters.
    letters = letters_of(text, marks=bool(profile.associations))
    place = _place(letters, profile)
    if place < 0:
        return
    tables, associations, words = _tables(profile)
    found = buckets(letters, max(*profile.orders, len(ASSOCIATED)))
    own, margin = score_letters(found, tables, profile.orders)
    yield ProfileCheck("likelihood", own, profile.min_likelihoods[place])
    if profile.others:
        yield ProfileCheck("margin", margin, profile.min_margins[place])
    if associations:
        yield ProfileCheck(
            "association", score_association(found, associations), profile.min_associations[place]
        )
    endings = _endings(profile)
    small = small_letters_of(text) if endings is not None else ""
    if endings is not None and (place_of_small := _place(small, profile)) >= 0:
        share, most = score_endings(small, endings), profile.max_new_endings[place_of_small]
        yield ProfileCheck("new_endings", share, most, is_least=False)
    if words:
        yield ProfileCheck("frequent_words", score_words(letters, words), profile.min_words[place])


def is_likely(text: str, profile: Profile) -> bool:
    """Whether a text is of the profile's language; one too short to tell is."""
    return all(check.passes for check in profile_checks(text, profile))


def _place(letters: str, profile: Profile) -> int:
    """Which limits hold for a text; -1: it is too short for any."""
    return sum(len(letters) >= least for least in profile.min_chars) - 1
