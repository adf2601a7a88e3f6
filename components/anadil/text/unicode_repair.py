"""Repair of damaged characters, the same for every language; each function is idempotent."""

import re
import unicodedata
from collections.abc import Callable

MAX_PASSES = 8
"""A repair may uncover another (text that was misread twice); more depth than this is noise."""

INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2069"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffc\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U0010ffff]"
)
"""Controls, zero-width and direction marks, surrogates, private use and non-characters.

The zero-width joiner stays: it holds emoji together.
"""
LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
SPACES = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")
"""Runs of white space that are more than one plain space."""
BLANK_LINES = re.compile(r"\n{3,}")

MISREAD = re.compile(
    "[\u00c2-\u00df][\u0080-\u00bf]|[\u00e0-\u00ef][\u0080-\u00bf]{2}|[\u00f0-\u00f4][\u0080-\u00bf]{3}"
)
"""A UTF-8 sequence whose bytes stand there as characters (after `CP1252` went back to bytes)."""
LOST_SPACE = re.compile("[\u00e0-\u00ef](?: [\u0080-\u00bf]|[\u0080-\u00bf] )")
"""The same where a program took the byte A0 for a space; certain only inside misread text."""
CP1252 = {
    ord(bytes([byte]).decode("cp1252")): byte
    for byte in range(0x80, 0xA0)
    if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
SUSPECT = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{re.escape(''.join(map(chr, CP1252)))}]")
"""A first look that spares sound text the rest."""
MIN_MISREAD = 3
"""Fewer sequences may be chance, such as a capital letter before a closing quotation mark."""
MIN_MISREAD_SHARE = 0.8
"""Least share of the non-ASCII characters that is misread; in sound text it is near 0."""


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


def undo_mojibake(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1 or Windows-1252: `É™` was the letter `ə`.

    The whole text is judged, so that sound text never changes: nearly all of its non-ASCII
    characters must form valid UTF-8 sequences.
    """
    if not SUSPECT.search(text):
        return text
    bytewise = text.translate(CP1252)
    found = MISREAD.findall(bytewise)
    if len(found) < MIN_MISREAD:
        return text
    num_foreign = sum(1 for character in text if character > "\x7f")
    if sum(map(len, found)) < MIN_MISREAD_SHARE * num_foreign:
        return text
    bytewise = LOST_SPACE.sub(lambda match: match[0].replace(" ", "\u00a0"), bytewise)
    return _decoded(text, bytewise)


def _decoded(text: str, bytewise: str) -> str:
    """The text with each valid sequence decoded; `bytewise` has as many characters."""
    pieces = []
    end = 0
    for match in MISREAD.finditer(bytewise):
        try:
            character = match[0].encode("latin-1").decode()
        except UnicodeDecodeError:
            continue
        pieces += [text[end : match.start()], character]
        end = match.end()
    return "".join([*pieces, text[end:]])


def remove_invisible(text: str) -> str:
    """Text without characters that nobody sees, with line feeds for line ends."""
    return INVISIBLE.sub("", LINE_ENDS.sub("\n", text))


def normalize_spaces(text: str) -> str:
    """Single spaces, no spaces at line ends, one blank line at most."""
    lines = SPACES.sub(" ", text).split("\n")
    return BLANK_LINES.sub("\n\n", "\n".join(line.strip() for line in lines)).strip()


def repair_characters(text: str) -> str:
    """Well-formed, re-read, visible text in Unicode form NFC."""
    return unicodedata.normalize(
        "NFC", remove_invisible(apply_until_stable(undo_mojibake, join_surrogates(text)))
    )
