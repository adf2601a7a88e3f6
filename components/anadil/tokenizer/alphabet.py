"""Scripts of tokens: which ones no text of some languages can hold, and what losing them costs.

A small sample does not show all words of a language, but it shows its scripts. A token with a letter of an unused
script is in none of its words, and in no token that makes them. Without it all its texts are encoded as before.
"""

import codecs
import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from tokenizers import Tokenizer

from anadil.text.cut_patterns import to_bytes, to_text
from anadil.text.letters import NAMES, name_of

SCRIPTS = frozenset(itertools.chain.from_iterable(NAMES.values()))
"""Scripts by the first word of their letters' names; signs, digits and emoji have none of these."""
MIN_SHARE = 0.001
"""Least share of a text's letters for their script to be in use, not a name or a quotation. Assumption."""
LAST_LETTER = 0x2FFFF  # Code points beyond hold the rarest Chinese characters, and no scripts
INSIDE = bytes(range(0x80, 0xC0))
"""Bytes that continue a character in UTF-8."""


def characters(words: Iterable[tuple[str, int]]) -> Counter[str]:
    """Count the characters of a word-count table, whose pretokens are in byte symbols."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for character in to_text(word):
            counts[character] += count
    return counts


def scripts_of(counts: Counter[str]) -> set[str]:
    """Scripts of at least one letter in a thousand among counted characters."""
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        scripts[name_of(character)] += count
    letters = {name: count for name, count in scripts.items() if name in SCRIPTS}
    least = MIN_SHARE * sum(letters.values())
    return {name for name, count in letters.items() if count >= least}


class Alphabet:
    """All characters but letters of scripts that are not in use."""

    def __init__(self, scripts: Iterable[str], letters: Iterable[str] = ()) -> None:
        """List what whole and cut characters look like in UTF-8. `letters` are single ones of scripts that are not in use."""
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
        """Return True if a text may hold the character."""
        return (
            ord(character) > LAST_LETTER
            or character in self._letters
            or unicodedata.name(character, "").partition(" ")[0] not in self._foreign
        )

    def spells(self, token: str) -> bool:
        """Return True if a text may hold a token, in byte symbols, which may begin and end inside a character."""
        text = to_bytes(token)
        body = text.lstrip(INSIDE)
        head = text[: len(text) - len(body)]
        try:
            whole, num_bytes = codecs.utf_8_decode(body, "strict", False)
        except UnicodeDecodeError:
            return False
        cut = (head, body[num_bytes:])
        return all(map(self.has, whole)) and all(piece in self._parts for piece in cut if piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostScript:
    """Tokens of one script that the base has and a candidate lacks.

    No text of the script is at hand, or the tokens would have been needed. Their own cost says what such text costs.
    """

    tokens: int
    cost: float
    """Mean number of the candidate's tokens for the text of one of them."""


def lost_scripts(base: Tokenizer, candidate: Tokenizer) -> dict[str, LostScript]:
    """Script, such as `Cyrillic` -> its lost tokens, most first; pieces of letters have no script and do not count."""
    vocab = candidate.get_vocab(with_added_tokens=True)
    costs: dict[str, list[int]] = defaultdict(list)
    for token in base.get_vocab(with_added_tokens=False):
        if token in vocab:
            continue
        text = to_text(token)
        script = next((name for name in map(name_of, text) if name in SCRIPTS), "")
        if script and "\ufffd" not in text:
            costs[script.capitalize()].append(len(candidate.model.tokenize(token)))
    lost = {name: LostScript(tokens=len(each), cost=round(fmean(each), 2)) for name, each in costs.items()}
    return dict(sorted(lost.items(), key=lambda pair: (-pair[1].tokens, pair[0])))


def lost_text(lost: Mapping[str, LostScript]) -> str:
    """Words for people; empty where nothing is lost."""
    return ", ".join(
        f"{script} {each.tokens:,} (a text that was one of them takes {each.cost:g})"
        for script, each in lost.items()
    )
