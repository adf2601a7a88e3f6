"""Letters of languages, by CLDR, and scripts of letters, by the names that Unicode gives them.

`scripts/language_letters.py` makes the table of languages.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "languages" / "letters.tsv"
NAMES: dict[str, tuple[str, ...]] = {
    "Hans": ("CJK",), "Hant": ("CJK",), "Hani": ("CJK",), "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Kore": ("HANGUL", "CJK"), "Latn": ("LATIN",), "Cyrl": ("CYRILLIC",), "Arab": ("ARABIC",),
    "Aran": ("ARABIC",), "Grek": ("GREEK",), "Hebr": ("HEBREW",), "Armn": ("ARMENIAN",), "Geor": ("GEORGIAN",),
    "Deva": ("DEVANAGARI",), "Beng": ("BENGALI",), "Guru": ("GURMUKHI",), "Gujr": ("GUJARATI",),
    "Orya": ("ORIYA",), "Taml": ("TAMIL",), "Telu": ("TELUGU",), "Knda": ("KANNADA",), "Mlym": ("MALAYALAM",),
    "Sinh": ("SINHALA",), "Thai": ("THAI",), "Laoo": ("LAO",), "Khmr": ("KHMER",), "Mymr": ("MYANMAR",),
    "Tibt": ("TIBETAN",), "Ethi": ("ETHIOPIC",), "Cans": ("CANADIAN",), "Cher": ("CHEROKEE",),
    "Mong": ("MONGOLIAN",), "Thaa": ("THAANA",), "Syrc": ("SYRIAC",), "Nkoo": ("NKO",), "Tfng": ("TIFINAGH",),
    "Olck": ("OL",), "Yiii": ("YI",), "Vaii": ("VAI",), "Java": ("JAVANESE",), "Bali": ("BALINESE",),
    "Mtei": ("MEETEI",), "Adlm": ("ADLAM",), "Lisu": ("LISU",), "Cakm": ("CHAKMA",), "Bugi": ("BUGINESE",),
    "Hang": ("HANGUL",), "Hira": ("HIRAGANA",), "Kana": ("KATAKANA",),
}  # fmt: skip
"""First word of the names of a script's letters, where it is known; of others every letter counts."""
WITHOUT_SPACES = frozenset({"Hans", "Hant", "Hani", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"})
"""Scripts that put no space between words."""
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Letters of a language in both cases; empty where nobody has listed them."""

    own: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    """Those of foreign names and words."""


UNKNOWN = Letters()


@functools.cache
def _table() -> dict[str, tuple[str, str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {code: (usual, others) for code, usual, others in rows}


def letters_of(code: str, alphabet: str = "") -> Letters:
    """The letters of a language's id, or of its alphabet if the table lacks it."""
    usual, others = _table().get(code, (alphabet, ""))
    return Letters(own=_both_cases(usual), others=_both_cases(others))


def _both_cases(letters: Iterable[str]) -> frozenset[str]:
    # `ß` has a capital of two letters, and ASCII tells no language apart.
    each = {case for letter in letters for case in (letter, letter.upper())}
    return frozenset(letter for letter in each if len(letter) == 1 and letter > "\x7f")


@functools.lru_cache(maxsize=65_536)
def name_of(letter: str) -> str:
    """First word of a letter's Unicode name, such as `LATIN`."""
    return unicodedata.name(letter, "").partition(" ")[0]


def script_test(script: str) -> Callable[[str], bool]:
    """Test of letters: True for those of the script."""
    names = NAMES.get(script)
    if names is None:
        return str.isalpha

    def belongs(letter: str) -> bool:
        return name_of(letter) in names

    return belongs


def script_of(letters: Iterable[str]) -> str:
    """The script of most letters of a text; `Zyyy` where it is none of the table."""
    counts = Counter(map(name_of, letters))
    kana = counts["HIRAGANA"] + counts["KATAKANA"]
    if kana > counts.total() / 10:
        return "Jpan"
    most = next((name for name, _ in counts.most_common(1)), "")
    named = {"CJK": "Hani", "HANGUL": "Kore", "ARABIC": "Arab"}
    return named.get(most) or next((code for code, names in NAMES.items() if names == (most,)), "Zyyy")


def replace_words(sign: re.Pattern[str], replacement: Callable[[str], str], text: str) -> str:
    """Replace each word that holds a sign, one character long. No other word is looked at."""
    pieces, end = [], 0
    for match in sign.finditer(text):
        start = match.start()
        word = WORD.match(text, start)
        if start < end or not word:
            continue
        while start > end and WORD.match(text, start - 1):
            start -= 1
        pieces += [text[end:start], replacement(text[start : word.end()])]
        end = word.end()
    return "".join([*pieces, text[end:]])
