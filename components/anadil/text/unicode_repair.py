"""Repair of damaged characters, the same for every language; each function is idempotent."""

import re
import unicodedata
from collections.abc import Callable

from anadil.text.code_lines import indents_of
from anadil.text.mojibake import MIN_MISREAD, is_suspect, undo_mojibake

CURSIVE = (
    "\u0600-\u08ff\ufb50-\ufdff\ufe70-\ufefc\U00010ac0-\U00010aff\U00010d00-\U00010d3f\U00010f30-\U00010faf"
    "\U0001e900-\U0001e95f"
)
"""Scripts whose letters join: Arabic, Syriac, N'Ko, Mandaic, Manichaean, Rohingya, Sogdian, Adlam."""
CONJUNCT = (
    "\u0900-\u109f\u1700-\u18af\u1900-\u1c7f\u1cd0-\u1cff\ua800-\ua95f\ua980-\uaaff\uabc0-\uabff"
    "\U00010a00-\U00010a5f\U00011000-\U00011fff"
)
"""Scripts of India, South-East Asia, Tibet and Mongolia: what stands behind a letter gives it its form, also at a word's end."""
JOINED = CURSIVE + CONJUNCT
UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u1950-\u1bff\ua930-\ua95f\ua980-\uaadf"
"""Scripts of South-East Asia and Tibet that put no space between words, or a zero-width one."""
MONGOLIAN = "\u1800-\u18af"
PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"
"""Arrows, signs and emoji, which the zero-width joiner holds together."""

INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f\xad\u061c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffc\ud800-\udfff"
    "\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U0010ffff]"
)
"""Controls, soft hyphens, direction marks, surrogates, private use and non-characters: no language needs them."""
LOST = re.compile("[\ue000-\uf8ff](?<=[^\\W\\d_].)[\ue000-\uf8ff]*(?=[^\\W\\d_])")
"""Letters of a font's own code: nobody can tell which, and without them the words are others."""
JOINER = re.compile("[\u200b-\u200d\ufe00-\ufe0f]")
STRAY_JOINER = re.compile(
    f"\u200b(?<![{UNSPACED}].)(?![{UNSPACED}])|\u200b(?<=\u200b.)"
    f"|\u200c(?<![{CONJUNCT}].)(?!\\S)|\u200c(?<![{JOINED}].)(?![{JOINED}])|\u200c(?<![^\\s\u200c].)"
    f"|\u200d(?<![{JOINED}].)(?![{JOINED}{PICTURES}])|\u200d(?<=\u200d.)"
)
STRAY_SELECTOR = re.compile(f"[\ufe00-\ufe0f](?<![{JOINED}].)")
"""Zero-width spaces, joiners and variation selectors where no letter beside them takes another form by them.

Persian writes half-spaces with U+200C, behind figures and Latin words too; Bengali, Kannada, Malayalam and Sinhala choose
the form of conjuncts by U+200C and U+200D; Khmer, Thai, Burmese and Javanese part words by U+200B.
"""
NARROW_SPACE = f"(?<=[{MONGOLIAN}])\u202f(?=[{MONGOLIAN}])"
"""Space that Mongolian puts before a suffix, whose form depends on it."""
SPACES = re.compile(f"(?:(?!{NARROW_SPACE})\\s)+")
C1 = {code: ord(bytes([code]).decode("cp1252", "replace")) for code in range(0x80, 0xA0)}
"""Control characters that nothing has used since terminals -> what they are in Windows-1252, which was read as Latin-1; else a
lost character. Source: HTML, "numeric character reference end state"."""
OF_WINDOWS = re.compile("[\x80-\x84\x86-\x9f]")
LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
MAX_PASSES = 8  # A repair may uncover another (text that was misread twice); more depth than this is noise

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
    """Undo Latin-5 that was read as Latin-1, of a language that writes ş, ğ, ı and none of þ, ð, ý."""
    num_foreign = sum(map(text.count, "þðý"))
    # If one of its letters stands there, the text was read rightly, and þ is þ.
    if num_foreign < MIN_MISREAD or any(map(text.__contains__, LATIN_5_LETTERS)):
        return text
    return text.translate(LATIN_5)


def normalize_spaces(text: str) -> str:
    """Single spaces, none at line ends, one blank line at most; code keeps its indentation, table cells a tab."""
    lines = text.split("\n")
    tidy = map(_tidy_line, lines)
    if INDENTED.search(text):
        tidy = map(str.__add__, indents_of(lines), tidy)
    return BLANK_LINES.sub("\n\n", "\n".join(tidy)).strip("\n")


def _tidy_line(line: str) -> str:
    return "\t".join(filter(None, map(_tidy_cell, line.split("\t")))) if "\t" in line else _tidy_cell(line)


def _tidy_cell(cell: str) -> str:
    # A narrow no-break space is part of a word in Mongolian.
    return SPACES.sub(" ", cell).strip() if "\u202f" in cell else " ".join(cell.split())


def is_sound(text: str) -> bool:
    """Return True if neither `repair_characters` nor `normalize_spaces` changes a text, in a fifth of their time."""
    # Expressions see only what is beyond plain ASCII, of which most texts have little. If that brings characters together
    # that are apart in the text, the answer is no, and the repairs look closer.
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


def remove_invisible(text: str) -> str:
    """Text without invisible characters that nothing needs, with line feeds for line ends.

    UTF-8 that was misread must have been put right before: its bytes stand as control characters.
    """
    if OF_WINDOWS.search(text):
        text = text.translate(C1)
    text = INVISIBLE.sub("", LOST.sub("\ufffd", LINE_ENDS.sub("\n", text)))
    return STRAY_SELECTOR.sub("", STRAY_JOINER.sub("", text)) if JOINER.search(text) else text


def has_stray_joiner(text: str) -> bool:
    """Return True if a joiner or selector stands where no script needs it."""
    return bool(STRAY_JOINER.search(text) or STRAY_SELECTOR.search(text))
