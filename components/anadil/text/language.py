"""What the stages know of a language: data and small pure functions, a module for each."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from anadil.text import languages
from anadil.text.filter_limits import FilterLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Everything that the stages need to know about a language."""

    code: str
    """ISO 639-1."""
    name: str
    """English name, for reports."""
    words: Callable[[str], list[str]]
    """The words of a text: the unit of fertility and of the word filters."""
    shingle_units: Callable[[str], list[str]]
    """What near-duplicate shingles are made of: words or characters, case folded."""
    fold: Callable[[str], str]
    """One case for all: for comparing texts, never for writing them."""
    normalize: Callable[[str], str]
    """One form for equal text; idempotent."""
    is_script: Callable[[str], bool]
    """Whether a letter belongs to the language's script."""
    guard: Callable[[str], bool]
    """Whether a text surely is of this language, whatever an identifier says of short text."""
    lookalikes: frozenset[str]
    """Codes (of CLD2) under which its text may go by mistake; `guard` decides then."""
    own_letters: frozenset[str]
    """Letters that its neighbours do not write."""
    min_own_letters: float
    """Least share of letters that are its own; less is text in another spelling, such as ASCII."""
    stop_words: frozenset[str]
    """Frequent words, case folded."""
    stray_letters: frozenset[str]
    """Letters that stand alone in damaged PDF text."""
    sentence_ends: str
    """Characters that end a sentence."""
    min_long_block: int
    """Characters from which a block of a web page counts as running text."""
    limits: FilterLimits
    prompts: tuple[str, ...]
    """Beginnings that models continue, side by side in the report."""
    questions: tuple[str, ...]
    """Questions that the finetuned model answers in the report."""
    sample_words: tuple[str, ...] = ()
    """Words that the report always cuts up, beside the most frequent long ones."""


def language_codes() -> list[str]:
    """The ISO 639-1 codes of all languages: the modules of `languages/`."""
    return sorted(each.name for each in pkgutil.iter_modules(languages.__path__))


def load_language(code: str) -> Language:
    """The language of a code, such as `az`."""
    language: Language = importlib.import_module(f"{languages.__name__}.{code}").LANGUAGE
    return language
