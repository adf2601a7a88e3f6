"""Letters of languages, by CLDR, and scripts of letters, by the names that Unicode gives them.

`scripts/language_letters.py` makes the table of languages.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
WORD = re.compile(r"[^\W\d_]+")
LATIN = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff"
CYRILLIC, GREEK = "\u0400-\u052f", "\u0370-\u03ff\u1f00-\u1fff"
LETTERS_OF = {"Latn": LATIN, "Cyrl": CYRILLIC, "Grek": GREEK}
LATIN_OF_CYRILLIC = dict(
    zip("асеорхАВСЕНКМОРТХуУіІјЈѕЅһҺәӘёЁїЇӧӦӓӒӱӰӑӐӗӖҫҪӳӲӕӔԛԚԝԜүҮ",
        "aceopxABCEHKMOPTXyYiIjJsShHəƏëËïÏöÖäÄÿŸăĂĕĔçÇÿŸæÆqQwWyY", strict=True)
)  # fmt: skip
"""Source: Unicode, confusables.txt, and letters that people type for those that their keyboards lack: Chuvash, Ossetian."""
LATIN_OF_GREEK = dict(
    zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοναικρυχμεγΓφͻ", "ABEZHIKMNOPTYXovaikpuxµɛɣƔɸɔ", strict=True)
)  # fmt: skip
LATIN_LIKE_GREEK = "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"
"""Letters that pass for ASCII in a Latin word. A small letter beside it is more likely a formula's."""
MIN_GREEK_WORD = 3  # Letters of a word with Greek ones; a shorter one is a unit or a symbol, such as kΩ
LEADS = (*range(0xCD, 0xD5), 0xE1)
"""Bytes of UTF-8 that begin a Cyrillic or a Greek letter: text without them is known in a hundredth of the time."""
LATIN_BESIDE_OTHERS, OTHERS_BESIDE_LATIN = (
    re.compile(f"[{letters}](?:(?<=[{beside}].)|(?=[{beside}]))")
    for letters, beside in ((LATIN, CYRILLIC + GREEK), (CYRILLIC + GREEK, LATIN))
)
SUFFIXED = {name: re.compile(f"([{letters}]{{2,}})([^{letters}]+)") for name, letters in LETTERS_OF.items()}
"""A name of one script with an ending of another, as agglutinative languages write them."""
BACK_VOWELS, FRONT_VOWELS = frozenset("аоыұуюяё"), frozenset("әөүіеэи")
"""Vowels of Turkic and Mongolian languages in Cyrillic, which words do not mix."""
COMMON = frozenset("асеорхуАВСЕНКМОРТХУ")
"""Letters that all Cyrillic alphabets have."""
Tables = Mapping[tuple[str, str], Mapping[str, str]]


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


def lookalike_repair(script: str, letters: Letters) -> Callable[[str], str]:
    """Repair of words with letters of two scripts, for a language in Latin, Cyrillic or Greek script.

    The script of a word is that of its letters which no other script has. If all of them may be of either, and in words
    with Greek letters, it is the language's.
    """
    if script not in LETTERS_OF:
        return lambda text: text
    known = letters.own | letters.others if script == "Cyrl" else COMMON
    tables: Tables = {
        ("Latn", "Cyrl"): _reversed(LATIN_OF_CYRILLIC, known or COMMON),
        ("Cyrl", "Latn"): LATIN_OF_CYRILLIC,
        ("Latn", "Grek"): _reversed(LATIN_OF_GREEK, frozenset(LATIN_OF_GREEK)),
        ("Grek", "Latn"): {
            greek: latin
            for greek, latin in LATIN_OF_GREEK.items()
            if greek in LATIN_LIKE_GREEK or latin in letters.own
        },
    }

    # The search begins with letters that the language's text hardly has.
    sign = OTHERS_BESIDE_LATIN if script == "Latn" else LATIN_BESIDE_OTHERS

    def repair(text: str) -> str:
        if text.isascii() or not any(map(text.encode(errors="replace").__contains__, LEADS)):
            return text
        return replace_words(sign, lambda word: _in_one_script(word, script, tables, known), text)

    return repair


def _reversed(latin_of: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """Latin letter -> the first known one that looks like it; `y` is у, or by the other vowels of its word ү."""
    return {latin: letter for letter, latin in reversed(list(latin_of.items())) if letter in known}


def _in_one_script(word: str, script: str, tables: Tables, known: frozenset[str]) -> str:
    letters_by_script = {name: re.findall(f"[{letters}]", word) for name, letters in LETTERS_OF.items()}
    present = [name for name, letters in letters_by_script.items() if letters]
    if len(present) != 2 or sum(map(len, letters_by_script.values())) < len(word):
        return word
    if letters_by_script["Grek"] and len(word) < MIN_GREEK_WORD:
        return word
    ways = [
        (source, target)
        for source, target in itertools.permutations(present)
        if all(map(tables.get((source, target), {}).__contains__, letters_by_script[source]))
    ]
    if "Grek" in present or len(ways) == 2:
        ways = [way for way in ways if way[1] == script]
    if len(ways) != 1:
        return word
    suffixed = SUFFIXED[ways[0][0]].fullmatch(word)
    if suffixed and suffixed[1].isupper() and suffixed[2].islower():
        return word
    whole = "".join(tables[ways[0]].get(letter, letter) for letter in word)
    return _with_front_y(word, whole, known) if "ү" in known and ways[0][1] == "Cyrl" else whole


def _with_front_y(word: str, whole: str, known: frozenset[str]) -> str:
    """Write ү for `y` where the word has no back vowel; in languages with ә it stands in the first syllable alone."""
    if BACK_VOWELS & set(whole.lower()) - {"у"}:
        return whole
    letters = list(whole)
    for place, letter in enumerate(word):
        if letter in "yY" and not ("ә" in known and FRONT_VOWELS & set(whole[:place].lower())):
            letters[place] = "ү" if letter == "y" else "Ү"
    return "".join(letters)
