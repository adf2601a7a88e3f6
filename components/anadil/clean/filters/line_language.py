"""Take lines and sentences of another language out of a document, and count them; a document full of them is dropped."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anadil.text.language_data import Language
from anadil.text.language_id import IdentifiedLanguage, identify_language, second_opinion
from anadil.text.sentences import SENTENCE

MIN_LINE_CHARS = 40
"""Shorter lines do not tell their language: 4 in 1,000 Turkish ones pass as Azerbaijani, 13 at 20 characters."""
MIN_LETTERS = 0.88
"""Share of a line that is letters and spaces; less is code, numbers or an address, in no language."""


MIN_OTHER_PERCENT = 3
"""Percent of a document in other languages, by CLD2, from which its sentences are looked at. In five languages .85 to .99 of
own text has none. Documents that alternate two languages have 11 or more."""
MIN_SENTENCES = 2
"""In another language, surely; one is a quotation."""
SIGNS = re.escape(
    "".join(filter(lambda each: unicodedata.category(each)[0] in "PS", map(chr, range(0x3000))))
)
CLAUSE = re.compile(
    rf".{{1,80}}?(?:[{SIGNS}]\s+|\s+(?=[{SIGNS}])|\t|[、，；：）]|(?=（)|$)|.{{40,80}}\s|.{{80}}"
)
"""Up to a sign beside white space, be it a comma, a bracket or a dash; without one, some ten words."""
BRACKETS = "([{（［【"
MIN_CLAUSES_SHARE = 0.2
"""Share of a document that clauses in another language are, from which they go: below it they are titles and terms within its sentences."""
WITHOUT_KANA = re.compile("[\u3400-\u9fff，、；,;]{16}")
"""A run that is hardly Japanese: CLD2 takes all ideographs of a text with kana for it, and so sees no Chinese beside them."""
QUOTES = {"«": "»", "„": "“”", "“": "”", '"': '"', "「": "」", "『": "』"}
"""Marks that begin a quotation, and marks that end it."""
FIRST_WIDE = "\u2e80"
"""From here on letters are ideographs, kana and syllables."""


Parts = list[tuple[str, bool]]
"""Parts of a line; True for each that goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOfLanguage:
    """A document without its lines and sentences in another language."""

    text: str
    removed: int
    foreign_share: float
    """Share of the document's letters and signs; an ideograph or a kana counts as two."""


def may_be_mixed(text: str, identified: IdentifiedLanguage, language: Language) -> bool:
    """Return whether a document may hold sentences in another language, so that each is looked at."""
    is_japanese = language.script == "Jpan"
    return identified.other_percent >= MIN_OTHER_PERCENT or (is_japanese and bool(WITHOUT_KANA.search(text)))


def keep_own_lines(text: str, language: Language, *, by_sentence: bool = False) -> LinesOfLanguage:
    """Take lines of 40 characters or more in another language out of a normalized document.

    Shorter lines, and lines of code or numbers, stay. It is idempotent. `by_sentence` judges lines of several
    sentences by these, too: where the document is in two languages.
    """
    lines = [(line, is_foreign(line, language)) for line in text.split("\n")]
    if not by_sentence and not any(is_gone for _, is_gone in lines):
        return LinesOfLanguage(text=text, removed=0, foreign_share=0.0)
    whole = _joined([[each] for each in lines])
    if not by_sentence:
        return whole
    sentences = [_judged(line, SENTENCE.findall(line[0]), language) for line in lines]
    clauses = [_judged(line, _clauses(line[0]), language) for line in lines]
    of_sentences = _joined(sentences) if _is_enough(sentences) else whole
    of_clauses = _joined(clauses) if _is_enough(clauses) else whole
    is_mixed = of_clauses.foreign_share >= of_sentences.foreign_share + MIN_CLAUSES_SHARE
    return of_clauses if is_mixed else of_sentences


def _is_enough(judged: Sequence[Parts]) -> bool:
    return sum(is_gone for parts in judged if len(parts) > 1 for _, is_gone in parts) >= MIN_SENTENCES


def _joined(judged: Sequence[Parts]) -> LinesOfLanguage:
    by_line = [[is_gone for _, is_gone in parts] for parts in judged]
    if not any(map(any, by_line)):
        text = "\n".join("".join(part for part, _ in parts) for parts in judged)
        return LinesOfLanguage(text=text, removed=0, foreign_share=0.0)
    gone = sum(_length(part) for parts in judged for part, is_gone in parts if is_gone)
    rest = ("".join(part for part, is_gone in parts if not is_gone).strip() for parts in judged)
    text = "\n".join(line for line, is_gone in zip(rest, by_line, strict=True) if line or not any(is_gone))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    total = sum(_length(part) for parts in judged for part, _ in parts)
    return LinesOfLanguage(text=text.strip(), removed=sum(map(sum, by_line)), foreign_share=gone / total)


def _judged(line: tuple[str, bool], parts: Sequence[str], language: Language) -> Parts:
    """Judge a line as one, or by its parts where some are in another language and others are not."""
    if len(parts) < 2:
        return [line]
    is_foreign = [
        not is_quoted and _is_long(part) and _is_surely_foreign(part, language)
        for part, is_quoted in zip(parts, _quoted(parts), strict=True)
    ]
    if line[1] and all(is_foreign[place] for place, each in enumerate(parts) if _is_long(each)):
        return [line]
    return list(zip(parts, is_foreign, strict=True))


def _clauses(line: str) -> list[str]:
    """Cut a line at its signs where white space is beside them, each clause long enough to say its language."""
    clauses = [""]
    for clause in CLAUSE.findall(line):
        if _is_long(clauses[-1]) or clause[0] in BRACKETS:
            clauses.append("")
        clauses[-1] += clause
    return clauses


def _is_long(part: str) -> bool:
    # Shorter parts of a line do not say their language.
    return _length(part) >= MIN_LINE_CHARS


def _length(part: str) -> int:
    # An ideograph or a kana stands for two letters.
    return len(part) + sum(letter >= FIRST_WIDE for letter in part)


def _quoted(sentences: Sequence[str]) -> Iterator[bool]:
    """Yield whether each sentence of a line is a quotation: begins with its mark, or goes on within it."""
    closing = ""
    for sentence in sentences:
        text = sentence.lstrip()
        if not closing and (closing := QUOTES.get(text[:1], "")):
            text = text[1:]
        yield bool(closing)
        if any(mark in text for mark in closing):
            closing = ""


def is_foreign(line: str, language: Language) -> bool:
    """Return whether a line surely is in another language: both identifiers have to say so, where both know it."""
    return len(line) >= MIN_LINE_CHARS and _is_surely_foreign(line, language)


def _is_surely_foreign(line: str, language: Language) -> bool:
    # The letters of most lines decide, in a hundredth of the identifier's time.
    if language.is_certain(line):
        return False
    identified = identify_language(line, language)
    if identified.is_language:
        return False
    # The identifier is sure about nearly all lines, and faster than a look at each letter.
    if sum(letter.isalpha() or letter.isspace() for letter in line) < MIN_LETTERS * len(line):
        return False
    if language.profile or language.model:
        return True
    if not language.second_label:
        return identified.is_reliable
    return second_opinion(line) != language.second_label
