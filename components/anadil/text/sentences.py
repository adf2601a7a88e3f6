"""Sentences of a text and words of a sentence, as places in it."""

import re
import unicodedata
from collections.abc import Iterator

from anadil.text.language_data import Language

CLOSERS = "\"'”’»)]」』）】›"
"""Characters that may follow the end of a sentence within it."""
TERMINALS = ".!?…։؟۔।॥။።፧።។៕᠃᠉᱾᱿꛳꯫‼⁇⁈⁉。！？．｡"
"""Ends of sentences of all scripts. Source: Unicode, property Sentence_Terminal."""
SENTENCE = re.compile(
    rf".+?(?:[{re.escape(TERMINALS)}]+[{re.escape(CLOSERS)}]*(?:\s+|$)|[。！？．｡።]+[{re.escape(CLOSERS)}]*|$)"
)
"""With the space behind it. A full stop within a number or a name ends none."""
INNER = "'’ʼʻ-\u200b\u200c\u200d"
"""Signs that a word may hold: apostrophes, hyphens, and joiners that nobody sees."""
Span = tuple[int, int]
"""First place, and the place behind the last."""


def sentence_spans(text: str, language: Language) -> Iterator[Span]:
    """Yield the places of sentences, without blanks around them. A line feed ends one, too."""
    for line in re.finditer(r"[^\n]+", text):
        spans = list[Span]()
        for match in SENTENCE.finditer(line[0]):
            stripped = match[0].strip()
            first = line.start() + match.start() + match[0].find(stripped)
            # "e.g. this" goes on in a small letter.
            if spans and stripped[:1].islower() and not language.word_unit:
                first = spans.pop()[0]
            if stripped:
                spans.append((first, line.start() + match.start() + len(match[0].rstrip())))
        yield from spans


def word_spans(text: str, language: Language) -> list[Span]:
    """Return the places of the words that are letters only, without the signs around them."""
    spans, place = [], 0
    for word in language.words(text):
        start = text.index(word, place)
        place = start + len(word)
        first, last = start, place
        while first < last and not is_letter(text[first]):
            first += 1
        while last > first and not is_letter(text[last - 1]):
            last -= 1
        if first < last and all(is_letter(each) or each in INNER for each in text[first:last]):
            spans.append((first, last))
    return spans


def is_letter(character: str) -> bool:
    """True for a letter, and for a mark: vowels of Indic scripts are marks."""
    return character.isalpha() or unicodedata.category(character)[0] == "M"
