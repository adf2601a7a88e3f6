"""Letters of another script that look like a word's own: `Aлматы` with a Latin A, `Вakı` with a Cyrillic В."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from anadil.text.letters import Letters, replace_words

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
NO_LEAD = bytes(set(range(0x100)) - {*range(0xCD, 0xD5), 0xE1})
"""Bytes of UTF-8 that begin neither a Cyrillic nor a Greek letter: text without those is told in a hundredth of the time."""
LATIN_BESIDE_OTHERS, OTHERS_BESIDE_LATIN = (
    re.compile(f"[{letters}](?:(?<=[{beside}].)|(?=[{beside}]))")
    for letters, beside in ((LATIN, CYRILLIC + GREEK), (CYRILLIC + GREEK, LATIN))
)


SUFFIXED = {name: re.compile(f"([{letters}]{{2,}})([^{letters}]+)") for name, letters in LETTERS_OF.items()}
"""A name of one script with an ending of another, as agglutinative languages write them."""
COMMON = frozenset("асеорхуАВСЕНКМОРТХУ")
"""Letters that all Cyrillic alphabets have."""
Tables = Mapping[tuple[str, str], Mapping[str, str]]


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
        if text.isascii() or not text.encode(errors="replace").translate(None, NO_LEAD):
            return text
        return replace_words(sign, lambda word: _in_one_script(word, script, tables), text)

    return repair


def _reversed(latin_of: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """Latin letter -> the known one that looks like it, if there is one only."""
    similar: defaultdict[str, list[str]] = defaultdict(list)
    for letter, latin in latin_of.items():
        if letter in known:
            similar[latin].append(letter)
    return {latin: letters[0] for latin, letters in similar.items() if len(letters) == 1}


def _in_one_script(word: str, script: str, tables: Tables) -> str:
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
    return "".join(tables[ways[0]].get(letter, letter) for letter in word)
