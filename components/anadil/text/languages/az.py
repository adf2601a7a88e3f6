"""Azerbaijani in Latin script: one code point for ə, and its script. The pack holds the rest."""

import re

from anadil.text import unicode_repair
from anadil.text.letters import replace_words

SCHWAS = str.maketrans({"\u04d9": "ə", "\u04d8": "Ə", "\u01dd": "ə", "\u018e": "Ə"})
SCHWA = re.compile("[\u04d9\u04d8\u01dd\u018e]")
CYRILLIC = re.compile("[\u0400-\u04d7\u04da-\u052f]")
LAST_LATIN = "\u024f"


def normalize(text: str) -> str:
    """NFC, one code point for ə, no invisible characters, misread bytes put right, tidy spaces."""
    return unicode_repair.apply_until_stable(_normalize_once, text)


def _normalize_once(text: str) -> str:
    sound = unicode_repair.is_sound(text)
    text = unicode_repair.undo_latin_5(text if sound else unicode_repair.repair_characters(text))
    if any(map(text.__contains__, map(chr, SCHWAS))):
        text = replace_words(SCHWA, _latin_schwa, text)
    return text if sound else unicode_repair.normalize_spaces(text)


def _latin_schwa(word: str) -> str:
    """Keep the letter in a word that is Cyrillic otherwise: there it is no mistake."""
    return word if CYRILLIC.search(word) else word.translate(SCHWAS)


def is_script(letter: str) -> bool:
    """True for a Latin letter."""
    return letter <= LAST_LATIN or letter == "ə" or "\u1e00" <= letter <= "\u1eff"
