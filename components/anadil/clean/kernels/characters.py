"""Facts of a language about each character, as tables that kernels index with the code point."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from anadil.text.language_data import Language
from anadil.text.letters import LETTERS_OF
from anadil.text.ngram_overlap import DROPPED, plain_letters
from anadil.text.sentences import CLOSERS, TERMINALS

Flags = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.uint32]

LETTER, SPACE, SCRIPT, OWN, STRAY, UPPER, LOWER = (1 << bit for bit in range(7))
SENTENCE_END, CLOSER, STRIPPED, BULLET, ELLIPSIS = (1 << bit for bit in range(7, 12))
HIRAGANA, KATAKANA, JAPANESE, SWALLOW_END, NO_START, COMMA = (1 << bit for bit in range(12, 18))
OTHER_ALPHABET = 1 << 18
"""Letters of the other two of Latin, Greek and Cyrillic, which look like its own."""
LAST = 0x40000
"""Above it no character has a class, case or fold."""
MAX_BATCH_CHARS = 4_000_000
"""Characters that a kernel works on at a time, and most of one text, so that memory stays small: some 100 bytes for each.

A longer text has more words than any limit lets pass; the rules do not see the rest of it.
"""
ZERO = ord("0")
STRIPPED_MARKS = ".,;:!?\"'()«»“”"
"""Characters that are not part of a stop word."""
BULLETS = "-*•‣⁃●○■□▪▫◆◇・·"
"""Dashes are none: they begin what people say."""
ELLIPSES = "…・"
"""Characters that leave a sentence open. Source: swallow-corpus, quality.py."""
NO_STARTS = "をはがにのへんっゃゅょァィゥェォッャュョンヲー々、。，．"
"""Characters that hardly ever begin a Japanese sentence or clause: particles, small kana, marks."""
RUN_CLASSES = (
    ((0x3005, 0x3006), (0x3400, 0x4DC0), (0x4E00, 0xA000)),
    ((0x3041, 0x30A0),),
    ((0x30A1, 0x3100),),
)
"""Kanji, hiragana, katakana: each run is a word of a language that writes no spaces."""
OTHER_LETTER, DIGIT, ALONE = 4, 5, 6
"""Kinds of further words; of the last each character is one."""
LOST = 0xFFFD
"""The character that decoders put where bytes are none."""
ENDED = re.compile(rf"[{re.escape(TERMINALS)}][{re.escape(CLOSERS)}]*\Z")
"""End of a sentence, and of a line."""


class Characters:
    """Tables of a language; every array has a place for each code point."""

    def __init__(self, language: Language) -> None:
        self.flags = _general_flags().copy()
        self.has_spaces = language.words("a,b c") == ["a,b", "c"]
        """True if words are what white space separates."""
        self.has_runs = not self.has_spaces and language.words("abc") == ["abc"]
        """True if words are runs of one class of characters; without spaces and runs each letter is one."""
        self.by_character = language.shingle_units("ab") == ["a", "b"]
        """True if shingles are made of characters."""
        letters = np.flatnonzero(self.flags & LETTER)
        in_script = [language.is_script(chr(code)) for code in letters.tolist()]
        self.flags[letters[np.array(in_script, dtype=bool)]] |= SCRIPT
        if language.script in LETTERS_OF:
            others = re.compile("[{}]".format("".join(LETTERS_OF.values()))).match
            foreign = [code for code in letters.tolist() if others(chr(code))]
            self.flags[foreign] |= np.where(self.flags[foreign] & SCRIPT, 0, OTHER_ALPHABET).astype(np.uint32)
        # Where words have no spaces, a full stop of ASCII is a part of numbers and names.
        ends = {*language.sentence_ends, *(TERMINALS if self.has_spaces else TERMINALS.replace(".", ""))}
        for flag, marked in (
            (OWN, language.own_letters),
            (STRAY, language.stray_letters),
            (SENTENCE_END, ends - {*CLOSERS, *":;"}),
        ):
            self.flags[[ord(letter) for letter in marked]] |= flag
        self.kinds = _kinds(has_spaces=self.has_spaces, has_runs=self.has_runs)
        """0: outside words; a word is a run of one kind."""
        self.folds = _folds(language.fold)
        """Code point after case folding; 0 if it goes."""

    @cached_property
    def units(self) -> Codes:
        """Code point by which copies are found: a plain letter, `ZERO` for every digit, `DROPPED` or `SEPARATOR`.

        Case, signs and accents are no difference, as in datatrove's `simplify_text`; letters whose mark makes them
        another one, as of kana and Indic scripts, keep it.
        """
        plain = plain_letters()
        is_known = self.folds < len(plain)
        units: Codes = np.where(is_known, plain[np.where(is_known, self.folds, 0)], self.folds)
        units[self.folds == 0] = DROPPED
        units[np.flatnonzero(_table(np.strings.isdecimal))] = ZERO
        return units


@lru_cache(maxsize=1)
def characters_of(language: Language) -> Characters:
    """Return the tables of a language, made once in a process: they take .2 s, and a process works on many shards."""
    return Characters(language)


@cache
def _general_flags() -> Flags:
    flags = np.zeros(sys.maxunicode + 1, dtype=np.uint32)
    for flag, test in (
        (LETTER, np.strings.isalpha),
        (SPACE, np.strings.isspace),
        (UPPER, np.strings.isupper),
        (LOWER, np.strings.islower),
    ):
        flags[:LAST] |= _table(test) * np.uint32(flag)
    for flag, characters in (
        (CLOSER, CLOSERS),
        (STRIPPED, STRIPPED_MARKS),
        (BULLET, BULLETS),
        (ELLIPSIS, ELLIPSES),
        (JAPANESE, "、，。．！？々〇〻"),
        (SWALLOW_END, "。．！？!?"),
        (NO_START, NO_STARTS),
        (COMMA, "、，"),
    ):
        flags[[ord(character) for character in characters]] |= flag
    # A script such as the Georgian has small letters only: sentences begin with them.
    small = np.flatnonzero(flags & LOWER)
    flags[[code for code in small.tolist() if chr(code).title() == chr(code)]] &= ~np.uint32(LOWER)
    flags[0x3041:0x3097] |= HIRAGANA | JAPANESE
    flags[0x30A1:0x30FB] |= KATAKANA | JAPANESE
    for start, stop in ((0x3400, 0xA000), (0xF900, 0xFB00), (0x20000, 0x323B0)):
        flags[start:stop] |= JAPANESE
    return flags


def _table(test: Callable[[npt.NDArray[np.str_]], npt.NDArray[np.bool_]]) -> Flags:
    # A tenth of the time of one call for each code point.
    return test(np.arange(LAST, dtype=np.uint32).view("<U1")).astype(np.uint32)


@cache
def _kinds(*, has_spaces: bool, has_runs: bool) -> npt.NDArray[np.uint8]:
    flags = _general_flags()
    if has_spaces:
        return np.asarray(flags & SPACE == 0, dtype=np.uint8)
    kinds = np.zeros(len(flags), dtype=np.uint8)
    kinds[:LAST] = _table(np.strings.isalnum) * OTHER_LETTER
    kinds[:LAST][_table(np.strings.isdecimal) == 1] = DIGIT
    # A character that was lost stood in a word: where no spaces show it, it is one.
    kinds[LOST] = ALONE
    if not has_runs:
        kinds[kinds == OTHER_LETTER] = ALONE
        return kinds
    for kind, ranges in enumerate(RUN_CLASSES, start=1):
        for start, stop in ranges:
            kinds[start:stop] = kind
    return kinds


def _folds(fold: Callable[[str], str]) -> Codes:
    # One call folds all characters; a line feed keeps them apart.
    folds = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    codes = [*range(0x20, 0xD800), *range(0xE000, 0x20000)]
    folded = np.frombuffer(fold("\n".join([*map(chr, codes), ""])).encode("utf-32-le"), dtype=np.uint32)
    is_end = folded == ord("\n")
    starts = np.flatnonzero(np.concatenate(([True], is_end[:-1])))
    folds[codes] = np.where(is_end[starts], 0, folded[starts])
    return folds


def encode(texts: Sequence[str]) -> tuple[Codes, npt.NDArray[np.int64]]:
    """Return the code points of all texts, and where each ends."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    return np.frombuffer(joined, dtype=np.uint32), ends


def batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts with at most `MAX_BATCH_CHARS` characters, unless one text alone has more."""
    start, chars = 0, 0
    for index, text in enumerate(texts):
        if chars and chars + len(text) > MAX_BATCH_CHARS:
            yield start, index
            start, chars = index, 0
        chars += len(text)
    if start < len(texts):
        yield start, len(texts)
