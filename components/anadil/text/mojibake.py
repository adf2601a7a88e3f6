"""Repair of UTF-8 that was read in a code page of one byte a character: whole texts, lines, or a few words."""

import re
from functools import partial

MISREAD = re.compile(
    "[\u00c2-\u00df][\u0080-\u00bf]|[\u00e0-\u00ef][\u0080-\u00bf]{2}|[\u00f0-\u00f4][\u0080-\u00bf]{3}"
)
"""A UTF-8 sequence whose bytes stand there as characters (after those of a code page went back to bytes)."""
CUT = re.compile(f"{MISREAD.pattern}|[\u00e0-\u00f4][\u0080-\u00bf]{{1,2}}")
"""The same, or a sequence of which a program removed a byte, such as a soft hyphen."""
LOST_SPACE = re.compile("[\u00e0-\u00ef](?: [\u0080-\u00bf]|[\u0080-\u00bf] )")
"""The same where a program took the byte A0 for a space; certain only inside misread text."""
MIN_MISREAD = 3  # Fewer sequences may be chance, such as a capital letter before a closing quotation mark
MIN_MISREAD_SHARE = 0.8  # Least share of the non-ASCII characters that is misread; in sound text it is near 0
RUN = re.compile(f"(?:(?:{MISREAD.pattern})[\x00-\x7f]*+){{{MIN_MISREAD},}}")
"""Sequences with nothing but ASCII between them: a misread quotation in a sound line."""
MIN_CERTAIN = 2
"""Sequences of Latin-1 with control characters, which sound text does not hold; one may be a capital before a quotation mark."""
CONTROL = re.compile("[\x80-\x9f]")


def _bytes_of(codec: str) -> dict[int, int]:
    """Character -> byte, where they differ, of a code page with one byte a character."""
    characters = {byte: bytes([byte]).decode(codec, "ignore") for byte in range(0x80, 0x100)}
    return {ord(each): byte for byte, each in characters.items() if each and ord(each) != byte}


def _suspect(codec: str) -> re.Pattern[str]:
    """Two sequences with nothing but ASCII between them, as characters of a code page: what sound text hardly holds."""
    leads = re.escape(bytes(range(0xC2, 0xF5)).decode(codec, "ignore"))
    others = "\x80-\x9f" + re.escape(bytes(range(0x80, 0xC0)).decode(codec, "ignore"))
    return re.compile(f"[{leads}][{others}]{{1,3}}+[\x00-\x7f]*+[{leads}][{others}]")


MISREADINGS = tuple((_suspect(codec), _bytes_of(codec)) for codec in ("cp1252", "cp1251", "cp1250"))
"""A first look, which spares sound text the rest, and the bytes of a code page's characters."""


BOXES = re.compile("[\u2500-\u259f√≈]")
"""First look: what DOS, KOI8-R and Mac Roman have at the beginning of a letter in UTF-8."""
BOXED = tuple(
    (_suspect(codec), _bytes_of(codec)) for codec in ("cp866", "koi8-r", "cp857", "cp850", "mac-roman")
)
CLOSING_QUOTES = "»”’›“‘"
"""Signs that may be behind a capital, unless a letter follows."""
PUNCTUATION = re.compile("[\u00a0-\u00bf\u2010-\u203a]")


def _single(codec: str) -> re.Pattern[str]:
    """A capital and a sign where sound text has none, within a word or at its beginning, or a misread quotation mark."""
    capitals = re.escape("".join(filter(str.isupper, bytes(range(0xC2, 0xD2)).decode(codec))))
    others = [bytes([byte]).decode(codec, "ignore") or chr(byte) for byte in range(0x80, 0xC0)]
    signs = re.escape("".join(each for each in others if not each.isalpha() or each in "Ÿƒµªº")) + "\x80-\x9f"
    free = f"(?![{CLOSING_QUOTES}])[{signs}]"
    mark = re.escape(b"\xe2\x80".decode(codec)) + f"[{re.escape(''.join(others))}]"
    within = f"(?<=[^\\W_])[{capitals}](?:{free}|[{CLOSING_QUOTES}](?=[^\\W\\d_]))"
    first = f"(?<!\\w)[{capitals}]{free}(?=[^\\W\\d_])"
    return re.compile(f"{within}|{first}|{mark}")


SINGLE = tuple((_single(codec), _bytes_of(codec)) for codec in ("cp1252", "cp1251", "cp1250"))
LEADS, SIGNS = (
    "".join(dict.fromkeys("".join(part.decode(codec, "ignore") for codec in ("cp1252", "cp1251", "cp1250"))))
    for part in (bytes(range(0xC2, 0xD2)), bytes(range(0x80, 0xC0)))
)
CAPITAL_AND_SIGN = re.compile(
    f"[{re.escape(''.join(filter(str.isupper, LEADS)))}âв]"
    f"[{re.escape(''.join(each for each in SIGNS if not each.isalpha() or each in 'Ÿƒµªº€Ђ'))}\x80-\x9f]"
)
"""A first look for all of these, which spares sound text the rest."""


def is_suspect(text: str) -> bool:
    """Return True if a text may hold UTF-8 that was misread."""
    first_looks = CAPITAL_AND_SIGN, BOXES, *(suspect for suspect, _ in MISREADINGS)
    return any(look.search(text) for look in first_looks)


def undo_mojibake(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1, Windows-1250 to -1252, in DOS or Mac Roman: `É™` and `Й™` were `ə`.

    Sound text never changes: nearly all non-ASCII characters of a text, of a line, or of a stretch between two sound ones
    must form valid UTF-8 sequences. One alone must be a capital and a sign where no word has them.
    """
    for suspect, table in MISREADINGS:
        if suspect.search(text) and (sound := _lines_undone(text, suspect, table)) != text:
            return sound
    for suspect, table in BOXED if BOXES.search(text) else ():
        # The right one of these leaves no box behind; a drawn table keeps all.
        if suspect.search(text) and not BOXES.search(sound := _lines_undone(text, suspect, table)):
            return sound
    if CONTROL.search(text):
        lines = text.split("\n")
        for number, line in enumerate(lines):
            sequences = [each for each in MISREAD.findall(line) if CONTROL.search(each)]
            # All control characters of the line are second bytes of letters.
            if len(sequences) >= MIN_CERTAIN and not CONTROL.search(MISREAD.sub("", line)):
                lines[number] = _decoded(line, line)
        text = "\n".join(lines)
    if CAPITAL_AND_SIGN.search(text):
        for single, table in SINGLE:
            text = single.sub(partial(_letter, table), text)
    return text


def _letter(table: dict[int, int], match: re.Match[str]) -> str:
    """The letter or sign that a misread one was, if it may stand where it does; else what stands there."""
    try:
        letter = match[0].translate(table).encode("latin-1").decode()
    except UnicodeError:
        return match[0]
    around = (
        match.string[max(0, match.start() - 1) : match.start()] + match.string[match.end() : match.end() + 1]
    )
    if PUNCTUATION.fullmatch(letter):
        return letter
    is_within_small = (
        letter.islower() and any(map(str.islower, around)) and not any(map(str.isdecimal, around))
    )
    return letter if is_within_small else match[0]


def _lines_undone(text: str, suspect: re.Pattern[str], table: dict[int, int]) -> str:
    """The text as UTF-8, or each of its lines, or stretches of them, as far as the table's code page made them."""
    whole = _undone(text, table)
    if whole is not None:
        return whole
    lines = (_line_undone(line, table) if suspect.search(line) else line for line in text.split("\n"))
    return "\n".join(lines)


def _undone(text: str, table: dict[int, int]) -> str | None:
    """The text as UTF-8, if the table's code page made it."""
    bytewise = text.translate(table)
    sequences = MISREAD.findall(bytewise)
    if len(sequences) < MIN_MISREAD:
        return None
    num_foreign = sum(1 for character in text if character > "\x7f")
    if sum(map(len, sequences)) < MIN_MISREAD_SHARE * num_foreign:
        return None
    return _decoded(text, LOST_SPACE.sub(lambda match: match[0].replace(" ", "\u00a0"), bytewise), CUT)


def _line_undone(line: str, table: dict[int, int]) -> str:
    whole = _undone(line, table)
    if whole is not None:
        return whole
    bytewise = line.translate(table)
    pieces, end = [], 0
    for match in RUN.finditer(bytewise):
        start, stop = match.span()
        pieces += [line[end:start], _decoded(line[start:stop], match[0])]
        end = stop
    return "".join([*pieces, line[end:]])


def _decoded(text: str, bytewise: str, sequences: re.Pattern[str] = MISREAD) -> str:
    """The text with each valid sequence decoded, and U+FFFD for one that is cut; `bytewise` has as many characters."""
    pieces = []
    end = 0
    for match in sequences.finditer(bytewise):
        try:
            character = match[0].encode("latin-1").decode()
        except UnicodeDecodeError:
            if MISREAD.fullmatch(match[0]):
                continue
            character = "\ufffd"
        pieces += [text[end : match.start()], character]
        end = match.end()
    return "".join([*pieces, text[end:]])
