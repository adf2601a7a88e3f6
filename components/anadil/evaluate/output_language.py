"""Language of the models' texts, by the identifier that the corpus was cleaned with.

A model that learns Azerbaijani may answer in Turkish, and one that learns any language in English. Bits per byte of a
given text do not show that. `benchmarks/evaluate/languages.py` measures how often the identifier errs on real lines of
20 to 60 characters.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from anadil.core.errors import PreflightError
from anadil.evaluate.generate import GeneratedText
from anadil.text.language_data import Language
from anadil.text.language_id import identify_language

log = logging.getLogger(__name__)

MIN_LETTERS = 20
"""Letters from which on a language is identified. Our choice; `py3langid` and CLD2 both guess below."""
UNKNOWN = "un"
"""CLD2's code for what it cannot tell; a text of the language's own code that its identifier refuses gets it too."""


def language_of(text: str, language: Language) -> str | None:
    """Return the code of the language that most of a text is in: its own, or CLD2's; None if it is too short."""
    letters = [*filter(str.isalpha, text)]
    if len(letters) < MIN_LETTERS:
        return None
    identified = identify_language(language.normalize(text), language)
    # A profile tells nothing of under 40 letters, and lets text pass that is in another script.
    if identified.is_language and 2 * sum(map(language.is_script, letters)) >= len(letters):
        return language.code
    return UNKNOWN if identified.code in language.labels else identified.code


def with_languages(texts: Sequence[GeneratedText], language: Language) -> list[GeneratedText]:
    """Set the language of each text; none where the user's identifier is not there."""
    try:
        return [replace(one, language=language_of(one.text, language)) for one in texts]
    except PreflightError as error:
        log.warning("language of the output: %s", error)
        return list(texts)


def output_language(texts: Iterable[GeneratedText], language: Language) -> dict[str, Any]:
    """Return how many texts could be told, the share in the language itself, and that of each code."""
    counts = Counter(text.language for text in texts if text.language is not None)
    num = counts.total()
    shares = {
        code: count / num for code, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    }
    return {"num": num, "own": shares.get(language.code, 0.0) if num else None, "shares": shares}
