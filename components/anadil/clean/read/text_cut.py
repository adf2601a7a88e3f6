"""A document of a `.txt`: the file, a line, or a block between blank lines. The recipe says it, or the file's beginning."""

import re
from itertools import groupby
from statistics import median
from typing import Literal, NamedTuple

from anadil.artifacts.ranged import ReadableFile
from anadil.clean.kernels.characters import ENDED
from anadil.clean.read.charset import decode_text
from anadil.core.format import MIB
from anadil.recipe.clean import TxtDocument
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from anadil.text.letters import letters_of

Cut = Literal["file", "line", "block"]
FILE: Cut = "file"
LINE: Cut = "line"
BLOCK: Cut = "block"
SAMPLE_BYTES = MIB
"""First bytes of a file that are looked at."""
MAX_DOCUMENT_BYTES = MIB
"""A larger file is hardly one document: it has some 100,000 words, from which rule `long` drops."""
MIN_UNITS = 20
"""Lines or blocks from which a file may hold as many documents: an article has fewer paragraphs."""
MIN_ENDED = 0.8
"""Share of lines that end as sentences do: those of code, poems, lists and books with hard-wrapped lines do not."""
MAX_SHORT, SHORT_CHARS = 0.1, 80
"""Share of lines that are headings or said by somebody, of which a book or an article has more."""
MIN_MEDIAN = 250
"""Characters of a line that is a document. These limits are our choice: a paragraph of a novel has some 100 to 250."""
MIN_MEDIAN_OF_LARGE = 60
"""The same in a file that is hardly one document: its lines may be sentences."""
MIN_SURE = 1_000
"""A line that is typical with so many is a document, however it ends."""
MIN_PARAGRAPH, MIN_ENDED_OF_BLOCKS = 120, 0.5
"""Characters of a line between others, where blocks hold several, and share of lines that end as sentences do: headings stand there, too."""
MIN_BLOCK = 600
"""Characters of a line between blank lines that is a document and no paragraph."""
WIDE = "\u2e80"
"""From here on a letter counts as two."""
NUMBERED = re.compile(r"\d+\t(?=\S)")
"""Number of a line, as the Leipzig corpora have it."""
SEPARATOR, MIN_SEPARATORS = re.compile(r"<\|end_?of_?text\|>|</s>|</?doc\b[^<>]*>", re.IGNORECASE), 2
"""Lines between documents, as files for training have them, and WikiExtractor's output."""
STATEFUL = ("utf-16", "utf-32", "iso2022", "hz")
"""Encodings in which the byte of a line feed may be part of a letter: such a file is decoded as a whole."""


def txt_document_of(recipe: Recipe) -> TxtDocument:
    """Return what the recipe takes for a document of a `.txt`; a file of code, or of text that stays as it is, is one."""
    asked = recipe.clean.txt_document
    is_kept = recipe.clean.as_is or load_language(recipe.language).is_none
    return "file" if asked == "guess" and is_kept else asked


class TextCut(NamedTuple):
    """How a file is cut into documents."""

    cut: Cut
    codec: str
    is_numbered: bool
    """Its lines begin with their numbers, which are no text."""
    is_separated: bool = False
    """Lines of signs stand between its documents."""
    is_doubtful: bool = False
    """One document, whose lines end as sentences do: each may be one."""


def cut_of(file: ReadableFile, asked: TxtDocument, language: str, size: int) -> TextCut:
    """Return how a file of so many bytes is cut; `asked` is the recipe's word, or `guess`."""
    with file.open("rb") as stream:
        sample = stream.read(SAMPLE_BYTES)
    whole = sample if size <= len(sample) else sample[: sample.rfind(b"\n") + 1] or sample
    text, codec = decode_text(whole, letters=letters_of(language))
    lines = [line.strip() for line in text.split("\n")]
    filled = [line for line in lines if line]
    is_numbered = len(filled) >= MIN_UNITS and all(map(NUMBERED.match, filled))
    cut = (
        _guess(text, lines, is_numbered=is_numbered, is_large=size > MAX_DOCUMENT_BYTES)
        if asked == "guess"
        else asked
    )
    # A blank line between paragraphs is how books are written.
    is_dense = len(filled) >= MIN_UNITS and len(lines) - len(filled) < len(filled) / MIN_UNITS
    is_doubtful = asked == "guess" and cut == FILE and is_dense and _are_ended(filled)
    is_separated = cut == BLOCK and _are_separated(filled)
    return TextCut(cut, codec, is_numbered and cut == LINE, is_separated, is_doubtful)


def _are_separated(lines: list[str]) -> bool:
    return sum(bool(SEPARATOR.fullmatch(line)) for line in lines) >= MIN_SEPARATORS


def _are_ended(lines: list[str]) -> bool:
    return sum(bool(ENDED.search(line)) for line in lines) >= MIN_ENDED * len(lines)


def _guess(text: str, lines: list[str], *, is_numbered: bool, is_large: bool) -> Cut:
    blocks = [list(block) for is_filled, block in groupby(lines, bool) if is_filled]
    filled = [line for block in blocks for line in block]
    if _are_separated(filled):
        return BLOCK
    if len(filled) < MIN_UNITS or "\f" in text or text.lstrip()[:1] == "<":
        return FILE
    if is_numbered:
        return LINE
    chars = [len(line) * (1 + (line[0] >= WIDE)) for line in filled]
    num_ended = sum(bool(ENDED.search(line)) for line in filled)
    num_short = sum(each < SHORT_CHARS for each in chars)
    is_prose = _are_ended(filled) and (is_large or num_short <= MAX_SHORT * len(filled))
    typical = median(chars)
    # Without blank lines, but for some between chapters.
    if len(blocks) * MIN_UNITS < len(filled):
        is_cut = is_prose and typical >= (MIN_MEDIAN_OF_LARGE if is_large else MIN_MEDIAN)
        return LINE if is_cut or typical >= MIN_SURE else FILE
    if len(blocks) < MIN_UNITS:
        return FILE
    # Lines that are paragraphs, several between blank lines, as in CC-100; else a blank line stands between paragraphs.
    if 2 * sum(len(block) > 1 for block in blocks) >= len(blocks):
        is_cut = num_ended >= MIN_ENDED_OF_BLOCKS * len(filled) and typical >= MIN_PARAGRAPH
        return BLOCK if is_cut else FILE
    return BLOCK if is_prose and typical >= (MIN_MEDIAN if is_large else MIN_BLOCK) else FILE
