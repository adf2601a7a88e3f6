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
BLANK_LINES = re.compile(r"\n{3,}")
PLAIN_ASCII = bytes([0x0A, *range(0x20, 0x7F)])
"""What needs no repair by itself."""
OTHER_SPACE = "\t\x0b-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space, as `str.split` knows it, that is neither a space nor a line feed."""
UNSOUND = re.compile(f"[{OTHER_SPACE}{INVISIBLE.pattern[1:]}")
UNTIDY = ("  ", "\n ", " \n", "\n\n\n")

MISREAD = re.compile(
    "[\u00c2-\u00df][\u0080-\u00bf]|[\u00e0-\u00ef][\u0080-\u00bf]{2}|[\u00f0-\u00f4][\u0080-\u00bf]{3}"
)
"""A UTF-8 sequence whose bytes stand there as characters (after `CP1252` went back to bytes)."""
LOST_SPACE = re.compile("[\u00e0-\u00ef](?: [\u0080-\u00bf]|[\u0080-\u00bf] )")
"""The same where a program took the byte A0 for a space; certain only inside misread text."""


def _bytes_of(codec: str) -> dict[int, int]:
    """Character -> byte, where they differ, of a code page with one byte a character."""
    characters = {byte: bytes([byte]).decode(codec, "ignore") for byte in range(0x80, 0x100)}
    return {ord(each): byte for byte, each in characters.items() if each and ord(each) != byte}


CP1252, CP1251 = _bytes_of("cp1252"), _bytes_of("cp1251")
SUSPECT = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{re.escape(''.join(map(chr, CP1252)))}]")
"""A first look that spares sound text the rest."""
CYRILLIC_SUSPECT = re.compile(
    "[{}][{}]".format(
        re.escape(bytes(range(0xC2, 0xF0)).decode("cp1251")),
        re.escape(bytes(range(0x80, 0xC0)).decode("cp1251", "ignore")),
    )
)
LATIN_5 = str.maketrans("þðýÞÐÝ", "şğıŞĞİ")
"""Where Latin-5 of Turkish and Azerbaijani, ISO 8859-9, has other letters than Latin-1."""
LATIN_5_LETTERS = frozenset("şğıŞĞİ")
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
    """Undo UTF-8 that was read as Latin-1, Windows-1252 or Windows-1251: `É™` and `Й™` were the letter `ə`.

    The whole text is judged, so that sound text never changes: nearly all of its non-ASCII
    characters must form valid UTF-8 sequences.
    """
    for suspect, table in ((SUSPECT, CP1252), (CYRILLIC_SUSPECT, CP1251)):
        if suspect.search(text) and (sound := _undone(text, table)) is not None:
            return sound
    return text


def _undone(text: str, table: dict[int, int]) -> str | None:
    """The text as UTF-8, if the code page of the table made it what it is."""
    bytewise = text.translate(table)
    found = MISREAD.findall(bytewise)
    if len(found) < MIN_MISREAD:
        return None
    num_foreign = sum(1 for character in text if character > "\x7f")
    if sum(map(len, found)) < MIN_MISREAD_SHARE * num_foreign:
        return None
    return _decoded(text, LOST_SPACE.sub(lambda match: match[0].replace(" ", "\u00a0"), bytewise))


def undo_latin_5(text: str) -> str:
    """Undo Latin-5 that was read as Latin-1, of a language that writes ş, ğ, ı and none of þ, ð, ý.

    Where one of those letters stands the text was read rightly, and þ is þ.
    """
    num_foreign = sum(map(text.count, "þðý"))
    if num_foreign < MIN_MISREAD or any(map(text.__contains__, LATIN_5_LETTERS)):
        return text
    return text.translate(LATIN_5)


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
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def is_sound(text: str) -> bool:
    """Whether neither `repair_characters` nor `normalize_spaces` changes a text; a fifth of their time.

    Expressions look at what is beyond plain ASCII only: most texts have little of it. Where that brings characters
    together that are apart in the text, the answer is no, and the repairs look closer.
    """
    try:
        rest = text.encode().translate(None, PLAIN_ASCII).decode()
    except UnicodeEncodeError:
        return False
    if UNSOUND.search(rest) or SUSPECT.search(rest) or CYRILLIC_SUSPECT.search(rest):
        return False
    if any(map(text.__contains__, UNTIDY)) or text.strip() != text:
        return False
    return unicodedata.is_normalized("NFC", text)


def repair_characters(text: str) -> str:
    """Well-formed, re-read, visible text in Unicode form NFC."""
    return unicodedata.normalize(
        "NFC", remove_invisible(apply_until_stable(undo_mojibake, join_surrogates(text)))
    )
