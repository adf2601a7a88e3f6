"""Text of scripts from right to left whose lines stand in the order of a page, put into the order in which it is read.

Many PDF files and old terminals have the letters of a line from left to right, as they are seen: each word is spelt backwards.
"""

import re
import unicodedata
from collections.abc import Sequence

from anadil.text.unicode_repair import SHAPES

REFUSED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that make CLD2 refuse a text as invalid UTF-8."""
FROM_THE_RIGHT = frozenset(("Arab", "Aran", "Hebr"))
BACKWARDS = re.compile(
    r"(?<![^\W\d_])(?<![\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670])[ةىءؤںےۓۃېۍەۆۇۈێךםןףץ](?=[^\W\d_])|(?<=[^\W\d_])[آإ](?![^\W\d_]|[\u064b-\u065f\u0670])"
)
"""Letters that begin no word at its beginning, and those that end none at its end: a first look."""
MIN_BACKWARDS = 2
"""Fewer may be mistakes of typing."""
LETTERS = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
MIN_LETTERS = 30
"""Letters of a line that is judged by itself; a shorter one goes by the others."""
TIMES = 1.5
"""Times that CLD2 must be surer of a line in one order than in the other. On the Declaration of Human Rights in 13 languages it
is 1.9 to 12 times as sure of the order in which they are read."""
_LATIN = r"A-Za-z\u00c0-\u024f"
FROM_THE_LEFT = re.compile(
    rf"[{_LATIN}](?:[{_LATIN}0-9_ .,'&/:@+-]*[{_LATIN}0-9])?|\d+(?:[.,:/\u066b\u066c]\d+)*"
)
"""Words in Latin script and figures, which are read as they are seen."""
MIRRORED = str.maketrans("()[]{}«»", ")(][}{»«")
BRACKETS = re.compile(r"[()\[\]{}«»]")


def put_in_reading_order(text: str) -> str:
    """Turn the lines round that are surely spelt backwards; idempotent."""
    shown = SHAPES.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    if len(BACKWARDS.findall(shown)) < MIN_BACKWARDS:
        return text
    lines, shown_lines = text.split("\n"), shown.split("\n")
    verdicts = [_is_backwards([line]) for line in shown_lines]
    # Lines that are too short by themselves are judged together, or go by the others.
    others = _is_backwards(
        [line for line, verdict in zip(shown_lines, verdicts, strict=True) if verdict is None]
    )
    others = verdicts.count(True) > verdicts.count(False) if others is None else others
    if True not in (*verdicts, others):
        return text
    return "\n".join(
        _turned(line) if (others if verdict is None else verdict) and LETTERS.search(line) else line
        for line, verdict in zip(lines, verdicts, strict=True)
    )


def _is_backwards(lines: Sequence[str]) -> bool | None:
    """True for lines that are spelt backwards, None where they are too short to tell."""
    if sum(len(LETTERS.findall(line)) for line in lines) < MIN_LETTERS:
        return None
    read, turned = _certainty("\n".join(lines)), _certainty("\n".join(line[::-1] for line in lines))
    if turned > TIMES * read:
        return True
    return False if read > TIMES * turned else None


def _certainty(line: str) -> float:
    import pycld2  # not where recipes are read

    details = pycld2.detect(REFUSED.sub(" ", line).encode(errors="replace"), bestEffort=True)[2]
    return float(details[0][3])


def _turned(line: str) -> str:
    turned = FROM_THE_LEFT.sub(lambda match: match[0][::-1], line[::-1])
    first = BRACKETS.search(turned)
    return turned.translate(MIRRORED) if first and first[0] in ")]}»" else turned
