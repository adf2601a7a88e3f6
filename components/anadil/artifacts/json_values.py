"""Values of a `.json` file, one at a time: the items of a list, or values that follow one another.

A file may unpack to terabytes, and Python takes up to thirty times the bytes of JSON. So one value of bounded length
is held at a time.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from anadil.artifacts.line_reader import MAX_LINE_BYTES, TooLong, lines_with_offsets, unpacked
from anadil.artifacts.ranged import ReadableFile
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes
from anadil.core.json_text import TooDeepError, parse_json, parse_next

PACKED_JSON = (".json.gz", ".json.zst")
JSON_SUFFIXES = (".json", *PACKED_JSON)
FIRST_KEY = re.compile(r'\ufeff?\s*(?:\[\s*)?(?:\{\s*(?:"|$)|$)')
"""How a file of JSON objects, or of a list of them, begins; bytes that are damaged do not."""
NO_LINES = re.compile(rb"(?:\xef\xbb\xbf)?\s*([\[{])\s*(?:(?<=\[)\{.*)?$", re.DOTALL)
"""First line of a list of objects, or of an object over several lines."""
FIRST_BYTES = 256
SPACE = re.compile(r"[ \t\r\n]*")


def refuse_wide(name: str, first: bytes | TooLong) -> None:
    """Refuse a file in UTF-16 or UTF-32, in which every line would be bad for a reason of its own."""
    if isinstance(first, TooLong):
        return
    codec = json.detect_encoding(first[:4])
    is_marked = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if is_marked or (not codec.startswith("utf-8") and FIRST_KEY.match(first.decode(codec, errors="ignore"))):
        standard = codec.upper().replace("-LE", "LE").replace("-BE", "BE")
        raise DataError(
            f"{name}: is in {standard}, but JSON is read in UTF-8 only; convert it, such as with "
            f"`iconv -f {standard} -t UTF-8`"
        )


def refuse_no_lines(name: str, first: bytes | TooLong) -> None:
    """Refuse a file of lines that is one list, or objects over several lines, which no correction of a line mends."""
    refuse_wide(name, first)
    if isinstance(first, bytes) and (begin := NO_LINES.match(first)):
        taken = (
            "'.[]'`, or where each chat is a list, with `jq -c '{messages: .}'" if begin[1] == b"[" else "."
        )
        raise DataError(
            f"{name}: is JSON over several lines, or lists; write an object a line, such as with `jq -c {taken}`"
        )


def holds_lines(path: ReadableFile, suffix: str) -> bool:
    """Return whether a `.json` file holds JSON lines, as in many data sets: its first line is an object."""
    with unpacked(path, suffix) as file:
        # A line feed of 16 or 32 bits ends no line.
        refuse_wide(path.name, file.read(FIRST_BYTES))
    first = next((line for _, line in lines_with_offsets(path, suffix)), b"")
    if isinstance(first, TooLong) or not first.lstrip().startswith((b"{", b"\xef\xbb\xbf{")):
        return False
    try:
        return isinstance(parse_json(first), dict)
    except ValueError:
        return False


def json_values(path: ReadableFile, suffix: str) -> Iterator[tuple[int, object]]:
    """Yield each value and its number from 1 on."""
    with unpacked(path, suffix) as file:
        text = _Text(file)
        in_list = text.next_is("[")
        closed = in_list and text.next_is("]")
        number = 0
        while not closed and not text.at_end():
            number += 1
            yield number, text.value()
            if in_list:
                closed = text.next_is("]")
                if not closed and not text.next_is(","):
                    raise ValueError(f"after value {number:,} stands neither a comma nor the list's end")
        if (in_list and not closed) or (closed and not text.at_end()):
            raise ValueError("the list has no end" if not closed else "something follows the end of the list")


class _Text:
    """A window of a file's text, from the place that is read on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._place, self._is_whole = "", 0, False

    def value(self) -> object:
        while True:
            try:
                parsed, end = parse_next(self._text, self._place)
            except ValueError as error:
                why = error
            else:
                # A number that ends with the window may go on behind it.
                if end < len(self._text) or self._is_whole:
                    self._place = end
                    return parsed
                why = ValueError("a value without an end")
            if self._is_whole or isinstance(why, TooDeepError):
                raise ValueError(str(why))
            if len(self._text) - self._place > MAX_LINE_BYTES:
                raise ValueError(f"a value is longer than {human_bytes(MAX_LINE_BYTES)}, or not JSON: {why}")
            self._fill()

    def next_is(self, sign: str) -> bool:
        is_next = not self.at_end() and self._text[self._place] == sign
        self._place += is_next
        return is_next

    def at_end(self) -> bool:
        """Return whether only white space follows."""
        while True:
            space = SPACE.match(self._text, self._place)
            self._place = space.end() if space else self._place
            if self._place < len(self._text) or self._is_whole:
                return self._place == len(self._text)
            self._fill()

    def _fill(self) -> None:
        """Twice as much as there is: a value that is read anew for each piece would take the square of its length."""
        piece = self._file.read(max(MIB, len(self._text) - self._place))
        self._is_whole = not piece
        self._text = self._text[self._place :] + self._decoder.decode(piece, final=not piece)
        self._place = 0
