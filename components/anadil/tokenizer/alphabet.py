"""Which tokens no text of some languages can hold: those with letters of other scripts.

A small sample says little about which words a language needs, but it shows its scripts. A token
that spells a letter of a script that is in use nowhere is in no word of the languages, nor is it
made on the way to a token of theirs: without it each of their texts is encoded as before.
"""

import codecs
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable

from anadil.text.byte_symbols import to_bytes, to_text
from anadil.text.scripts import NAMES, name_of

SCRIPTS = frozenset(itertools.chain.from_iterable(NAMES.values()))
"""Scripts by the first word of their letters' names; signs, digits and emoji have none of these."""
MIN_SHARE = 0.001
"""Share of a text's letters from which on their script is in use there, and no name or quotation. Assumption."""
LAST_LETTER = 0x2FFFF
"""Code points beyond hold the rarest Chinese characters, and no scripts."""
INSIDE = bytes(range(0x80, 0xC0))
"""Bytes that continue a character in UTF-8."""


def characters(words: Iterable[tuple[str, int]]) -> Counter[str]:
    """How often each character stands in a word-count table: pretokens in byte symbols, and their counts."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for character in to_text(word):
            counts[character] += count
    return counts


def scripts_of(counts: Counter[str]) -> set[str]:
    """The scripts in use among counted characters: at least one letter in a thousand."""
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        scripts[name_of(character)] += count
    letters = {name: count for name, count in scripts.items() if name in SCRIPTS}
    least = MIN_SHARE * sum(letters.values())
    return {name for name, count in letters.items() if count >= least}


class Alphabet:
    """All characters but letters of scripts that are not in use."""

    def __init__(self, scripts: Iterable[str], letters: Iterable[str] = ()) -> None:
        """List what whole and cut characters look like in UTF-8.

        Args:
            scripts: Those in use, as `SCRIPTS` names them.
            letters: Single letters of other scripts that are in use too.
        """
        self._foreign = SCRIPTS - set(scripts)
        self._letters = frozenset(letters)
        self._parts: set[bytes] = set()
        """Pieces of the UTF-8 of one character that begin or end inside it."""
        # A token may begin and end inside a character, so every piece of an allowed one is listed.
        for point in range(0x80, LAST_LETTER + 1):
            if not 0xD800 <= point < 0xE000 and self.has(chr(point)):
                encoded = chr(point).encode()
                self._parts.update(
                    encoded[start:end]
                    for start in range(len(encoded))
                    for end in range(start + 1, len(encoded) + 1)
                )

    def has(self, character: str) -> bool:
        """True if a text may hold the character."""
        return (
            ord(character) > LAST_LETTER
            or character in self._letters
            or unicodedata.name(character, "").partition(" ")[0] not in self._foreign
        )

    def spells(self, token: str) -> bool:
        """True if a token, in byte symbols, may be in a text. It may begin and end inside a character."""
        text = to_bytes(token)
        body = text.lstrip(INSIDE)
        head = text[: len(text) - len(body)]
        try:
            whole, num_bytes = codecs.utf_8_decode(body, "strict", False)
        except UnicodeDecodeError:
            return False
        cut = (head, body[num_bytes:])
        return all(map(self.has, whole)) and all(piece in self._parts for piece in cut if piece)
