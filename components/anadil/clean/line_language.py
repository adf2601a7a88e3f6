"""Lines of another language inside a document: taken out and counted; a document full of them is dropped."""

from dataclasses import dataclass

from anadil.text.language import Language
from anadil.text.language_id import identify_language, second_opinion

MIN_LINE_CHARS = 40
"""Of a shorter line nobody can say it: 4 in 1,000 Turkish ones pass as Azerbaijani, 13 at 20 characters."""
MIN_LETTERS = 0.88
"""Share of a line that is letters and spaces; less is code, numbers or an address, in no language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOfLanguage:
    """A document without its lines in another language."""

    text: str
    removed: int
    """Lines."""
    foreign_share: float
    """Of the document's characters that are no white space around lines."""


def keep_own_lines(text: str, language: Language) -> LinesOfLanguage:
    """A normalized document of the language without lines of 40 characters or more in another one.

    Shorter lines, and lines of code or numbers, stay. It is idempotent.
    """
    lines = text.split("\n")
    foreign = [index for index, line in enumerate(lines) if is_foreign(line, language)]
    if not foreign:
        return LinesOfLanguage(text=text, removed=0, foreign_share=0.0)
    gone, total = set(foreign), sum(map(len, lines))
    share = sum(len(lines[index]) for index in foreign) / total
    kept = "\n".join(line for index, line in enumerate(lines) if index not in gone)
    while "\n\n\n" in kept:
        kept = kept.replace("\n\n\n", "\n\n")
    return LinesOfLanguage(text=kept.strip(), removed=len(foreign), foreign_share=share)


def is_foreign(line: str, language: Language) -> bool:
    """Whether a line surely is in another language: both identifiers have to say so, where both know it."""
    # Of most lines its letters say it, in a hundredth of the identifier's time.
    if len(line) < MIN_LINE_CHARS or language.is_certain(line):
        return False
    found = identify_language(line, language)
    if found.is_language:
        return False
    # Of nearly all lines the identifier is sure, and it is faster than a look at each letter.
    if sum(letter.isalpha() or letter.isspace() for letter in line) < MIN_LETTERS * len(line):
        return False
    if language.profile or language.model:
        return True
    if not language.second_label:
        return found.is_reliable
    return second_opinion(line) != language.second_label
