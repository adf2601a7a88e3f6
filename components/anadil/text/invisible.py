"""Characters that nobody sees: which a script needs between its letters, and which go."""

import re

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


def remove_invisible(text: str) -> str:
    """Text without characters that nobody sees and nothing needs, with line feeds for line ends.

    UTF-8 that was misread must have been put right before: its bytes stand as control characters.
    """
    if OF_WINDOWS.search(text):
        text = text.translate(C1)
    text = INVISIBLE.sub("", LOST.sub("\ufffd", LINE_ENDS.sub("\n", text)))
    return STRAY_SELECTOR.sub("", STRAY_JOINER.sub("", text)) if JOINER.search(text) else text


def has_stray_joiner(text: str) -> bool:
    """True if a character that some script needs is at a place where none does."""
    return bool(STRAY_JOINER.search(text) or STRAY_SELECTOR.search(text))
