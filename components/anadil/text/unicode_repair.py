"""Repair of damaged characters, the same for every language; each function is idempotent."""

import re
import unicodedata
from collections.abc import Callable

from anadil.text.code_lines import indents_of
from anadil.text.invisible import INVISIBLE, JOINER, SPACES, has_stray_joiner, remove_invisible
from anadil.text.mojibake import MIN_MISREAD, is_suspect, undo_mojibake

MAX_PASSES = 8
"""A repair may uncover another (text that was misread twice); more depth than this is noise."""

INDENTED = re.compile(r"^[^\S\n]+\S", re.MULTILINE)
BLANK_LINES = re.compile(r"\n{3,}")
PLAIN_ASCII = bytes([0x0A, *range(0x20, 0x7F)])
"""Characters that need no repair by themselves."""
OTHER_SPACE = "\t\x0b-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space, as `str.split` knows it, that is neither a space nor a line feed."""
SHAPES = re.compile("[\ufb00-\ufb06\ufb50-\ufbb1\ufbd3-\ufc5d\ufc64-\ufd3d\ufd50-\ufdc7\ufe80-\ufefc]+")
"""Latin ligatures and the forms of Arabic letters, as PDF files hold them; not U+FDF0 to U+FDFD, which are signs of their own,
nor the letter U+0587 and the ligatures of Armenian."""
UNSOUND = re.compile(f"[{OTHER_SPACE}\x80-\x9f{SHAPES.pattern[1:-2]}{INVISIBLE.pattern[1:]}")
UNSOUND_OR_JOINER = re.compile(f"{JOINER.pattern[:-1]}{UNSOUND.pattern[1:]}")
UNTIDY = ("  ", "\n ", " \n", "\n\n\n")

LATIN_5 = str.maketrans("þðýÞÐÝ", "şğıŞĞİ")
"""Where Latin-5 of Turkish and Azerbaijani, ISO 8859-9, has other letters than Latin-1."""
LATIN_5_LETTERS = frozenset("şğıŞĞİ")


def apply_until_stable(once: Callable[[str], str], text: str) -> str:
    """Apply one pass of a normalization until the text no longer changes."""
    for _ in range(MAX_PASSES):
        after = once(text)
        if after == text:
            break
        text = after
    return text


def join_surrogates(text: str) -> str:
    """Join surrogate pairs that a broken JSON writer left apart; drop those without a partner."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return text


def undo_latin_5(text: str) -> str:
    """Undo Latin-5 that was read as Latin-1, of a language that writes ş, ğ, ı and none of þ, ð, ý.

    Where one of those letters stands the text was read rightly, and þ is þ.
    """
    num_foreign = sum(map(text.count, "þðý"))
    if num_foreign < MIN_MISREAD or any(map(text.__contains__, LATIN_5_LETTERS)):
        return text
    return text.translate(LATIN_5)


def normalize_spaces(text: str) -> str:
    """Single spaces, none at line ends, one blank line at most; code keeps its indentation, cells of tables a tab."""
    lines = text.split("\n")
    tidy = map(_tidy_line, lines)
    if INDENTED.search(text):
        tidy = map(str.__add__, indents_of(lines), tidy)
    return BLANK_LINES.sub("\n\n", "\n".join(tidy)).strip("\n")


def _tidy_line(line: str) -> str:
    if "\t" not in line:
        return _tidy_cell(line)
    return "\t".join(filter(None, map(_tidy_cell, line.split("\t"))))


def _tidy_cell(cell: str) -> str:
    # A narrow no-break space is part of a word in Mongolian.
    return SPACES.sub(" ", cell).strip() if "\u202f" in cell else " ".join(cell.split())


def is_sound(text: str) -> bool:
    """True if neither `repair_characters` nor `normalize_spaces` changes a text; a fifth of their time.

    Expressions look at what is beyond plain ASCII only: most texts have little of it. Where that brings characters
    together that are apart in the text, the answer is no, and the repairs look closer.
    """
    try:
        rest = text.encode().translate(None, PLAIN_ASCII).decode()
    except UnicodeEncodeError:
        return False
    if UNSOUND_OR_JOINER.search(rest) and (UNSOUND.search(rest) or has_stray_joiner(text)):
        return False
    if is_suspect(rest):
        return False
    if any(map(text.__contains__, UNTIDY)) or text.strip() != text:
        return False
    return unicodedata.is_normalized("NFC", text)


def repair_characters(text: str) -> str:
    """Well-formed, re-read, visible text in Unicode form NFC."""
    # Misread bytes look like control characters, so they are put right before those go.
    visible = remove_invisible(apply_until_stable(undo_mojibake, join_surrogates(text)))
    plain = SHAPES.sub(lambda match: unicodedata.normalize("NFKC", match[0]), visible)
    return unicodedata.normalize("NFC", plain)
