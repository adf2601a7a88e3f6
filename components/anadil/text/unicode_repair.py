"""Repair of damaged characters, the same for every language; each function is idempotent."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial

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
UNUSUAL = re.compile("[^\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027]")
"""Beyond plain ASCII: what may be unsound, a box, or not in NFC."""
UNTIDY = ("  ", "\n ", " \n", "\n\n\n")

LATIN_5 = str.maketrans("þðýÞÐÝ", "şğıŞĞİ")
"""Where Latin-5 of Turkish and Azerbaijani, ISO 8859-9, has other letters than Latin-1."""
LATIN_5_LETTERS = frozenset("şğıŞĞİ")
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
BOXES = re.compile("[\u2500-\u259f√≈]")
"""First look: what DOS, KOI8-R and Mac Roman have at the beginning of a letter in UTF-8."""
CLOSING_QUOTES = "»”’›“‘"
"""Signs that may be behind a capital, unless a letter follows."""
PUNCTUATION = re.compile("[\u00a0-\u00bf\u2010-\u203a]")
LEADS, SIGNS = (
    "".join(dict.fromkeys("".join(part.decode(codec, "ignore") for codec in ("cp1252", "cp1251", "cp1250"))))
    for part in (bytes(range(0xC2, 0xD2)), bytes(range(0x80, 0xC0)))
)
CAPITAL_AND_SIGN = re.compile(
    f"[{re.escape(''.join(filter(str.isupper, LEADS)))}âв]"
    f"[{re.escape(''.join(each for each in SIGNS if not each.isalpha() or each in 'Ÿƒµªº€Ђ'))}\x80-\x9f]"
)
"""A first look for all of these, which spares sound text the rest."""
CODE = re.compile(
    r"""
      ^(?:\#|//|/\*|--\s|;;|<!--|<[/?]?[A-Za-z][\w:-]*[\s/>]|[$%>]\s|>>>|\.\.\.\s|@\w|"[^"]*"\s*[:,]|'[^']*'\s*[:,])  # comments, tags, prompts
    | ^[\s{}()\[\];,<>/]+$
    | ^-\s\S+$ | ^(?:-\s+)?[^\W\d][\w./-]*:(?:\s+[^\s]+){0,4}$                                         # keys of settings
    | ^(?:def|class|elif|else|try|except|finally|return|import|raise|yield|pass|break|continue|print|echo|puts|func|function|fn|
        var|let|const|public|private|static|void|int|end|fi|done|then|do|esac|begin|module|package|include|use|where|case|switch|
        SELECT|FROM|WHERE|INSERT|INTO|VALUES|JOIN|CREATE|UPDATE|DELETE|SET|AND|OR|ORDER|GROUP|RUN|COPY|ENV)\b(?!,)
    | (?:==|!=|<=|>=|:=|=>|->|<-|::|\+=|-=|\*=|/=|&&|\|\||\+\+|\$\w|\$\{|\\$|</\w|/>)
    | \w\s*=\s*[\w"'(\[{<$-]
    | \b[^\W\d][\w.]*\([^()]*\)?
    | \b[a-z]+_[a-z]\w*|\b[a-z]+[A-Z]\w*|\b[a-z]\w*\.[a-z_]\w*[.(]
    | \s[<>+*/|&%]\s | \s--?[a-z]\w*(?:[\s=]|$) | ^\\[a-z]+
    | [{(\[]$|^[})\]]|\};?$
    """,
    re.VERBOSE,
)
"""Marks of programs, settings and markup that sentences seldom have."""
DEFINITION = re.compile(
    r"^(?:(?:async|export|default|pub|public|private|protected|static|final|abstract|inline)\s+)*"
    r"(?:def|class|function|func|fun|fn|sub|proc|struct|enum|interface|trait|impl|module|namespace)\s.*[:{(=]$"
)
"""Beginning of a definition. All that is indented below it belongs to it, a description too."""
OPENING, CLOSING = "([{", ")]}"
HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
"""Head of a piece of a diff, in which a line that did not change begins with a space."""
MAX_LINE = 400  # Characters of a line that are looked at
MIN_CODE = 0.5  # Share of a run of indented lines that is code, at least


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
    is_unusual = UNUSUAL.search(rest) is not None
    if (
        is_unusual and UNSOUND_OR_JOINER.search(rest) and (UNSOUND.search(rest) or has_stray_joiner(text))
    ) or is_suspect(rest, is_unusual=is_unusual):
        return False
    if any(map(text.__contains__, UNTIDY)) or text.strip() != text:
        return False
    return not is_unusual or unicodedata.is_normalized("NFC", text)


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
LATIN_LOOKS = CAPITAL_AND_SIGN, MISREADINGS[0][0], MISREADINGS[2][0]
FIRST_LOOKS = *LATIN_LOOKS, BOXES, MISREADINGS[1][0]


BOXED = tuple(
    (_suspect(codec), _bytes_of(codec)) for codec in ("cp866", "koi8-r", "cp857", "cp850", "mac-roman")
)


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


def is_suspect(text: str, *, is_unusual: bool = True) -> bool:
    """Return True if a text may hold UTF-8 that was misread; what `UNUSUAL` does not find has neither boxes nor Cyrillic."""
    return any(look.search(text) for look in (FIRST_LOOKS if is_unusual else LATIN_LOOKS))


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


def indents_of(lines: Sequence[str]) -> list[str]:
    """White space before each line that belongs to code; empty before prose.

    Indented lines that follow each other are judged together with the line above them: one line of a program may look like
    a word.
    """
    indents = [""] * len(lines)
    head, run, is_hunk = "", list[int](), False
    for number, line in enumerate([*lines, "end"]):
        is_hunk = bool(HUNK.match(line)) or (is_hunk and line[:1] in {" ", "+", "-", "\\"})
        if line[:1].isspace() and line.strip():
            run.append(number)
            if is_hunk:
                indents[number] = _indent(line)
        elif line.strip():
            if run and _is_code(head, [lines[each] for each in run], line):
                for each in run:
                    indents[each] = _indent(lines[each])
            head, run = line, []
    return indents


def _is_code(head: str, run: Sequence[str], after: str) -> bool:
    """True if indented lines between two others are code: by what holds them, by their shape, or by most of themselves."""
    if DEFINITION.search(head.strip()[:MAX_LINE]):
        return True
    # Brackets of the first line are closed at the end of the lines below it, or right behind them.
    depth = _depth(head)
    is_closed = run[-1].rstrip(";, \t").endswith((*CLOSING,)) and depth + sum(map(_depth, run)) == 0
    if depth > 0 and (is_closed or after[:1] in CLOSING):
        return True
    # Names below names, some deeper than others or in a folder, are files or keys.
    if all(len(line.split()) == 1 for line in (head, *run)) and (
        len({len(line) - len(line.lstrip()) for line in run}) > 1 or head.rstrip().endswith("/")
    ):
        return True
    texts = [" ".join(line[:MAX_LINE].split()) for line in (head, *run) if line.strip()]
    return sum(CODE.search(text) is not None for text in texts) >= MIN_CODE * len(texts)


def _depth(line: str) -> int:
    return sum(map(line.count, OPENING)) - sum(map(line.count, CLOSING))


def _indent(line: str) -> str:
    """Tabs, and one space for each other one."""
    white = line[: len(line) - len(line.lstrip())]
    return "".join(each if each == "\t" else " " for each in white)
