"""Decode bytes: by byte order mark, declared encoding, the language's letters, or by what they look like; always to some text.

Labels come from servers and authors, so they may be anything: only those of the Encoding Standard
and well-known misspellings of them count. Python's own names are no labels: `rot13` is a codec too.
"""

import re
import sys
from collections.abc import Iterator, Sequence

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from anadil.text.code_pages import CODE_PAGES, best_code_page, nearly_utf_8, without_wrong_letters
from anadil.text.letters import UNKNOWN, Letters

FALLBACK = "windows-1252"
"""Gives some character for nearly every byte."""
BYTE_ORDER_MARKS = {
    b"\xff\xfe\0\0": "utf-32-le", b"\0\0\xfe\xff": "utf-32-be", b"\xef\xbb\xbf": "utf-8",
    b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be",
}  # fmt: skip
"""Byte order marks. Source: Encoding Standard, "decode"; those of UTF-32, which it leaves out, begin as UTF-16's do."""
FIRST_TAG = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
"""A page in UTF-16 without a mark, which would pass for UTF-8 with many zeros."""
MIN_ZEROS = 0.02
"""Least share of zeros among the bytes of UTF-16. Measured on documents: Russian has .06 or more, Azerbaijani .39, half of the Japanese ones .03."""
STATEFUL = {"iso2022_jp", "iso2022_kr", "hz"}
"""All their bytes are ASCII, so that they pass for UTF-8 too."""
JAPANESE_ESCAPE = re.compile(rb"\x1b\$[@B]")
WIDER = {
    "shift_jis": "cp932", "euc_jp": "euc_jis_2004", "iso2022_jp": "iso2022_jp_ext", "euc_kr": "cp949",
    "gbk": "gb18030", "big5": "big5hkscs", "iso8859-11": "cp874",
}  # fmt: skip
"""Encodings that the Encoding Standard means by these names; Python means the older, narrower sets."""
WIDE = {*WIDER, *WIDER.values()} - {"iso8859-11", "cp874"}
"""With more than one byte a character."""
ALIASES = {
    "utf8mb3": "utf-8", "utf8mb4": "utf-8", "utf8sig": "utf-8", "cp65001": "utf-8", "cp932": "cp932",
    "ms932": "cp932", "sjiswin": "cp932", "xsjis": "shift_jis", "eucjp": "euc_jp", "hzgb2312": "hz",
    "iso2022kr": "iso2022_kr", "xmaccyrillic": "mac-cyrillic", "kz1048": "kz1048", "rk1048": "kz1048",
    "strk10482002": "kz1048", "pt154": "ptcp154", "ptcp154": "ptcp154", "cp154": "ptcp154",
    "koi8t": "koi8-t",
}  # fmt: skip
"""Labels without signs that are in no standard but mean something."""
NUMBERED = re.compile(r"(?:win|windows|cp|ms|xcp|ibm|dos|oem)(\d{3,4})")
"""Code pages of Windows and of DOS."""


def decode_text(data: bytes, labels: Sequence[str] = (), letters: Letters = UNKNOWN) -> tuple[str, str]:
    """Decode a page or file; return the text and the name of its encoding.

    Declared encodings lie, and valid UTF-8 is hardly ever anything else: so UTF-8 goes before them,
    but for encodings that look like it. Of code pages the one counts that gives the letters of the language.

    `labels` are the encodings by server and page, in that order; each may be anything.
    """
    mark = next((mark for mark in BYTE_ORDER_MARKS if data.startswith(mark)), b"")
    declared = [codec for label in labels if (codec := codec_of(label))]
    codec = BYTE_ORDER_MARKS.get(mark) or _disguised(data, declared)
    if codec:
        return data[len(mark) :].decode(codec, "replace"), codec
    if (text := nearly_utf_8(data)) is not None:
        return _with_other_lines(text, data, labels, letters), "utf-8"
    candidates = list(dict.fromkeys(_candidates(data, declared)))
    if code_page := best_code_page(data, [each for each in candidates if each not in WIDE], letters):
        return without_wrong_letters(data.decode(code_page, "replace"), letters), code_page
    best = ("", "", len(data) + 1)
    for codec in candidates:
        text = data.decode(codec, "replace")
        if (errors := text.count("\ufffd")) < best[2]:
            best = (text, codec, errors)
        if not errors:
            break
    return best[:2]


def _with_other_lines(text: str, data: bytes, labels: Sequence[str], letters: Letters) -> str:
    """Read lines that are not UTF-8 in another encoding: somebody has joined files."""
    lines = data.split(b"\n") if "\ufffd" in text else []
    others = {line for line in lines if nearly_utf_8(line) is None}
    if not others:
        return text
    codec = decode_text(b"\n".join(line for line in lines if line in others), labels, letters)[1]
    return "\n".join(line.decode(codec if line in others else "utf-8", "replace") for line in lines)


def codec_of(label: str) -> str | None:
    """Return Python's name of the encoding that a label means; None for one that means nothing."""
    # The first word counts, as in browsers: `utf-8; charset=latin1`, `'utf-8',text/html`.
    words = re.findall(r"[\w.:+-]+", label.lower().replace("charset=", " "))
    if not words or not words[0].isascii():
        return None
    plain = re.sub(r"\W|_", "", words[0])
    for spelling in (words[0], plain):
        known: str | None = map_encoding_to_html5(spelling, fallback_utf8=False)
        if known:
            return known
    numbered = NUMBERED.fullmatch(plain)
    code_page = f"cp{numbered[1]}" if numbered else ""
    return ALIASES.get(plain) or (code_page if code_page in CODE_PAGES else None)


def _disguised(data: bytes, declared: Sequence[str]) -> str | None:
    """Return the encoding of bytes that pass for UTF-8 and are not."""
    if utf32 := _utf_32(data):
        return utf32
    if data[:2] in FIRST_TAG:
        return FIRST_TAG[data[:2]]
    if b"\0" in data:
        utf16 = next((codec for codec in declared if codec.startswith("utf-16")), None) or _utf_16(data)
        if utf16:
            return utf16
    if not data.isascii():
        return None
    if JAPANESE_ESCAPE.search(data):
        return WIDER["iso2022_jp"]
    return next((codec for codec in declared if codec in STATEFUL), None)


def _utf_32(data: bytes) -> str | None:
    # Each four bytes are a character: the highest is 0 then, and the second at most 16.
    for codec, first, second in (("utf-32-le", 3, 2), ("utf-32-be", 0, 1)):
        highest = data[first::4]
        if highest and highest.count(0) == len(highest) and max(data[second::4]) <= sys.maxunicode >> 16:
            return codec if data.strip(b"\0") else None
    return None


def _utf_16(data: bytes) -> str | None:
    # Spaces, stops and line ends show that two bytes are a character, and in which order.
    high_first, low_first = data[::2].count(0), data[1::2].count(0)
    if max(high_first, low_first) < MIN_ZEROS * len(data) or min(high_first, low_first) * 50 > len(data):
        return None
    return "utf-16-be" if high_first > low_first else "utf-16-le"


def _candidates(data: bytes, declared: Sequence[str]) -> Iterator[str]:
    detected = codec_of(detect_encoding(data) or "")
    for codec in [*declared, *([detected] if detected else []), FALLBACK]:
        # Zeros were looked for; without them UTF-16 would take any bytes for Chinese.
        if codec != "utf-8" and not codec.startswith("utf-16"):
            yield codec
            if codec in WIDER:
                yield WIDER[codec]
