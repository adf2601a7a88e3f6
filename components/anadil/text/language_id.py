"""Identification of a text's language: CLD2, a second opinion, the language's own letters, its profile or model."""

import functools
from dataclasses import dataclass
from typing import Any

import py3langid
import pycld2

from anadil.text.fasttext_model import load_fasttext, predict
from anadil.text.language import is_alone_in_script, known_languages
from anadil.text.language_data import Language
from anadil.text.profile_checks import is_likely
from anadil.text.reading_order import REFUSED

MIN_PERCENT = 50
"""Share of the text that must be in the language, as CLD2 counts it; the rest may be code or
quotations. Our choice: on 803 pages of a test crawl it accepts none in another language."""
LONG_CHARS = 400
"""From which a label counts that CLD2 is not sure of. Of pieces of 60 characters of Danish it takes 7 % for Norwegian, surely; of
400 characters .6 %."""
PIECE_CHARS = 60
"""Characters of a piece, if CLD2 takes the whole for a sibling. Measured: of such Indonesian text a third to a half of
the pieces are taken for Indonesian, of Malay one in sixteen; of pieces of 40, 100 or 250 more of Malay passes where as much own text is lost."""
CLOSE_SETS = tuple(
    map(str.split, ("id ms", "bo dz", "cs sk", "zu xh", "bs hr sr sr-ME", "hi mr bh ne", "no nn da", "gl es pt", "rw rn"))
)  # fmt: skip
"""Labels of languages that CLD2 hardly tells apart. Source: CLD2, internal/lang_script.cc, `LanguageCloseSet`."""
MIN_OWN_SCRIPT = 0.9  # Share of letters in the own script; the others are names and quotations
MAX_SECOND_CHARS = 2_000  # Characters that the second opinion reads. It is ten times as slow as CLD2.


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedLanguage:
    """Language of a text, as CLD2 and the rules of the language see it."""

    code: str
    """CLD2's code of the language that most of it is in; `un` if it cannot tell."""
    is_language: bool
    is_reliable: bool
    """CLD2 has seen enough text to be sure."""
    retried: bool
    """CLD2 refused the text at first."""
    other_percent: int = 0
    """Share of the text that CLD2 takes for other languages, of the three that it names, but for siblings."""
    sibling: str = ""
    """Label of a sibling for which CLD2 takes the text; empty: of none."""


NOT_ASKED = IdentifiedLanguage(code="un", is_language=True, is_reliable=False, retried=False)


def identify_language(text: str, language: Language) -> IdentifiedLanguage:
    """Tell if a normalized text is in the language.

    CLD2 takes 2 to 12 % of short Azerbaijani for Turkish or nothing; the language's guard takes those back. On FLORES,
    Tatoeba and XNLI lines both together reach .987.
    """
    if language.is_none:
        return NOT_ASKED
    is_reliable, code, percent, retried, shares = _detect(text)
    siblings, sibling = siblings_of(language), ""
    if language.model:
        labels = predict(load_fasttext(language.model.path, language.model.sha256), text)
        is_language = next(iter(labels), "") == language.model.label
    elif language.profile:
        # An answer that the sample never got is another language; else the sample decides.
        if language.long_lookalikes and len(text) >= LONG_CHARS:
            expected, counts = language.long_lookalikes, percent >= MIN_PERCENT
        else:
            expected, counts = language.lookalikes, is_reliable and percent >= MIN_PERCENT
        is_other = counts and (code not in language.labels | expected or _is_siblings(text, code, language))
        is_sure = code in language.labels and is_reliable and percent >= MIN_PERCENT
        is_sure = is_sure or _is_own_script(text, language)
        is_language = not is_other and is_likely(text, language.profile, is_sure=is_sure)
    elif code in language.labels:
        is_language = percent >= MIN_PERCENT and (is_reliable or _is_confirmed(text, language))
    elif code in siblings and percent >= MIN_PERCENT:
        sibling = code
        is_language = siblings[code] and second_opinion(text) == language.second_label
    else:
        is_language = code in language.lookalikes and language.guard(text)
        # The second opinion is ten times as slow, so it is asked only if CLD2 has none.
        if not is_language and not is_reliable and code == "un":
            is_language = second_opinion(text) == language.second_label != ""
    expected = language.labels | {"un", *siblings}
    if language.profile:  # learnt from a sample, some of which CLD2 took for these
        expected |= language.lookalikes | language.long_lookalikes
    other = sum(share for label, share in shares.items() if label not in expected)
    return IdentifiedLanguage(
        code=code, is_language=is_language, is_reliable=is_reliable, retried=retried, other_percent=other, sibling=sibling
    )  # fmt: skip


def siblings_of(language: Language) -> dict[str, bool]:
    """Labels of languages that CLD2 hardly tells from this one; True where the second opinion knows both.

    On pieces of 200 characters of the Declaration of Human Rights CLD2 takes 35 % of Croatian for Bosnian, and 19 % of Indonesian
    for Malay. A learnt language, and one with a model, has a judge of its own.
    """
    is_judged = language.profile or language.model
    return {} if is_judged else _siblings(language.labels, bool(language.second_label))


@functools.cache
def _siblings(labels: frozenset[str], has_second: bool) -> dict[str, bool]:
    second = {row.cld2: row.second for row in known_languages().values() if row.cld2}
    others = {label for each in CLOSE_SETS if labels & {*each} for label in each} - labels
    return {label: has_second and bool(second.get(label)) for label in sorted(others)}


def cld2_label(text: str) -> tuple[str, bool]:
    """CLD2's label for most of a text, and True if CLD2 is sure."""
    is_reliable, code, percent, *_ = _detect(text)
    return code, is_reliable and percent >= MIN_PERCENT


def main_label(text: str) -> str:
    """CLD2's label for most of a text, sure or not; `un` if nothing is half of it."""
    _, code, percent, *_ = _detect(text)
    return code if percent >= MIN_PERCENT else "un"


def label_share(text: str, label: str, sibling: str) -> float:
    """Share of the first of two labels among the pieces of a text with either; 0 without any."""
    labels = [_detect(text[start : start + PIECE_CHARS])[1] for start in range(0, len(text), PIECE_CHARS)]
    return labels.count(label) / max(1, labels.count(label) + labels.count(sibling))


def _is_siblings(text: str, code: str, language: Language) -> bool:
    """True if a text with an expected sibling's label has it in its pieces, too. Those of the language's own are of both."""
    if not language.usual_label or len(text) < LONG_CHARS or code in {"un", language.usual_label}:
        return False
    return label_share(text, language.usual_label, code) < language.min_usual_pieces


def _is_own_script(text: str, language: Language) -> bool:
    """True if nearly all letters are of a script in which no other language is usually written."""
    if not is_alone_in_script(language.code, language.script):
        return False
    letters = [letter for letter in text if letter.isalpha()]
    return sum(map(language.is_script, letters)) >= MIN_OWN_SCRIPT * max(1, len(letters))


def _detect(text: str) -> tuple[bool, str, int, bool, dict[str, int]]:
    """CLD2's answer: sure or not, first label, its share, if it refused the text at first, and up to three labels."""
    retried = False
    try:
        is_reliable, _, details = pycld2.detect(text)
    except (pycld2.error, UnicodeEncodeError):
        retried = True
        try:
            is_reliable, _, details = pycld2.detect(REFUSED.sub("", text))
        except (pycld2.error, UnicodeEncodeError):
            is_reliable, details = False, (("Unknown", "un", 0, 0.0),)
    return is_reliable, details[0][1], details[0][2], retried, {each[1]: each[2] for each in details}


def _is_confirmed(text: str, language: Language) -> bool:
    """True if something else agrees with a CLD2 that is not sure."""
    return (
        not language.second_label
        or language.guard(text)
        or second_opinion(text) in (language.second_label, "und")
    )


@functools.cache
def second_identifier() -> Any:
    """py3langid with its model, which takes .8 CPU seconds to unpack."""
    return py3langid.langid.LanguageIdentifier.from_model_file(py3langid.langid.MODEL_FILE)


def second_opinion(text: str) -> str:
    """py3langid's label for a text: always some language, however short the text is."""
    label, _ = second_identifier().classify(text[:MAX_SECOND_CHARS])
    return str(label)
