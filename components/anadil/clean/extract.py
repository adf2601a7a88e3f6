"""Web pages to text: which pages are worth it, what is content.

Two extractors in a cascade: Resiliparse with the rules below is fast and right on most pages; where its
result is doubtful, Trafilatura, ten times as slow, gives a second one.
"""

import functools
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pycld2
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from anadil.clean.charset import decode_text
from anadil.clean.extract_precise import precise_text
from anadil.recipe.sections import ExtractMode
from anadil.text.language import Language
from anadil.text.letters import UNKNOWN, Letters

MIN_PREFILTER_PERCENT = 5
MIN_OWN_LETTERS = 100
"""Rule measured on 929 real pages: finds 552 of 552 az and ja ones, passes 5 % of the others."""
MAX_FOREIGN_CHARS = 16_384
"""What CLD2 reads of a page without a letter of the language, from its middle: `spelling` drops its text, unless the letters
are entities or misread. Our choice: 803 real pages cost a third, and the same of them pass; of 270 with entities for
letters 268, of which all did."""

HTML_LANG = re.compile(r"<html\b[^>]{0,500}?\blang\s*=\s*[\"']?([a-zA-Z]+)", re.IGNORECASE)
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
SKIPPED_NAMES = [
    "rt", "rp", "nav", "footer", "aside", "form", "button", "noscript", "template", "dialog",
    "[role=navigation]", "[role=contentinfo]", "[role=search]", "[role=dialog]", "[aria-hidden=true]",
    "[class*=cookie]", "[id*=cookie]", "[class*=breadcrumb]", "[class*=share-]", "[class*=social]",
]  # fmt: skip
WRAPPER = "data-anadil-wrapper"
SKIPPED = [f"{selector}:not([{WRAPPER}])" for selector in SKIPPED_NAMES]
WRAPPERS = "form, body, html, [class*=breadcrumb], [class*=share-], [class*=social], main[class*=cookie], main[id*=cookie]"
"""What is skipped by its name, unless it holds most of the text: ASP.NET wraps pages in a form, themes say
`has-breadcrumbs` of the whole page. A cookie banner or a menu may hold most of the text of a poor page."""
MAX_WRAPPERS = 20
"""Elements that are checked: the first ones are the outer ones."""
MOST = 0.5
NO_LINK = re.compile(
    r"<[aA](?:\s+(?!(?i:href)\b)[^\s<>\"'=/]++(?:\s*=\s*(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>]++))?+)*+\s*+/?>"
)
"""The beginning of an anchor without an address: a mark, no link. Of `<a id="x"/>`, which XHTML of DocBook is full of, HTML
knows no end, so that all text up to the next anchor would be a link's; and so would headings that are marks."""
NO_TEXT = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|template|noscript)\b.*?(?:</\1\s*>|\Z)|<[^>]*>", re.DOTALL
)
"""Comments, programs, tags. What has no end goes up to the end of the page, so that a thousand
beginnings in a comment or an attribute are not a thousand searches for it."""
BLOCK = re.compile(r"<pre>(.*?)</pre>|<(h[1-6])>(.*?)</h[1-6]>|([^\n]+)", re.DOTALL)
LINK = re.compile(r"<a\b[^>]*>(.*?)</a>", re.DOTALL)
MARKUP = re.compile(r"</?(?:a|p|br|ul|ol|li|h[1-6]|pre|dl|dt|dd|blockquote|table|tr|td|th|div|span)\b[^>]*>")
BREAK = re.compile(r"<br\s*/?>")
MAX_LINK_DENSITY = 0.5
MAX_LINK_BLOCK = 200
"""Characters below which a block of mostly links is navigation."""
MAX_LONG_LINK_DENSITY = 0.35
"""A block of running text has fewer links."""
MIN_EDGE_CHARS = 25
"""A line before or after the running text that is kept needs this length and a full stop.

These four were tuned on trafilatura's evaluation pages: F1 .886 there against .859 without,
.934 against .927 on article-extraction-benchmark.
"""
MIN_SURE_BLOCKS = 3.5
"""A shorter result is doubtful; in lengths of a block of running text, so 500 characters where letters are Latin."""
MAX_SURE_LOSS = 0.15
"""Share of the extracted text that the rules above may discard before the result is doubtful."""
MIN_PRECISE_SHARE = 0.8
"""Length of the second result over the first from which it counts: of some pages it holds a single paragraph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """How pages become text."""

    mode: ExtractMode = "balanced"
    tables: bool = True
    """Whether rows of tables are kept, cells apart by tabs."""
    code: bool = True
    """Whether preformatted blocks are kept."""


DEFAULT = Extraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading, paragraph, list item or piece of code."""

    text: str
    is_heading: bool
    is_code: bool
    link_density: float

    @property
    def is_row(self) -> bool:
        """Whether it is a row of a table."""
        return "\t" in self.text and not self.is_code


def decode_page(data: bytes, charset: str, letters: Letters = UNKNOWN) -> tuple[str, bool]:
    """A page's text, and whether it was UTF-8.

    Args:
        data: The page.
        charset: What the server says of its encoding.
        letters: Of the language that is sought.
    """
    meta = META_CHARSET.search(data, 0, 4_096)
    text, codec = decode_text(data, [charset, meta[1].decode(errors="replace") if meta else ""], letters)
    return text, codec == "utf-8"


def may_be_in_language(page: str, language: Language) -> bool:
    """Whether a page may hold the language: a cheap question before the expensive extraction."""
    if not language.labels:
        # CLD2 cannot say it of raw HTML, and nothing else can tell markup from text.
        return True
    lang = HTML_LANG.search(page, 0, 20_000)
    if lang and lang[1].lower() == language.code:
        return True
    own_letters = np.count_nonzero(_own_units(language.own_letters).take(_units(page)))
    if own_letters >= MIN_OWN_LETTERS:
        return True
    if language.min_own_letters and not own_letters and len(page) > MAX_FOREIGN_CHARS:
        start = (len(page) - MAX_FOREIGN_CHARS) // 2
        page = page[start : start + MAX_FOREIGN_CHARS]
    try:
        details = _labels(page)
    except pycld2.error:
        # Rare; the check of the extracted text decides.
        return True
    return any(
        code in language.labels and percent >= MIN_PREFILTER_PERCENT for _, code, percent, _ in details
    )


def _units(text: str) -> npt.NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")


@functools.cache
def _own_units(letters: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which units of UTF-16 are letters: all kana are found in the time that two letters take one by one."""
    is_own = np.zeros(1 << 16, dtype=bool)
    is_own[_units("".join(letters))] = True
    return is_own


def _labels(page: str) -> Sequence[tuple[str, str, int, float]]:
    """Languages of HTML by CLD2; characters that it refuses are only looked for in pages that it refuses.

    Raises:
        pycld2.error: It refuses the page still.
    """
    try:
        found = pycld2.detect(page, isPlainText=False)
    except (pycld2.error, UnicodeEncodeError):
        found = pycld2.detect(CONTROLS.sub(" ", page), isPlainText=False)
    details: Sequence[tuple[str, str, int, float]] = found[2]
    return details


def main_text(page: str, language: Language, extraction: Extraction = DEFAULT) -> str:
    """The running text of a page with its headings, a block a line; may be empty.

    The page must not be a bomb (`bomb.excess`).
    """
    if extraction.mode == "precision":
        return precise_text(page, tables=extraction.tables) or _fast(page, language, extraction)[0]
    text, lost = _fast(page, language, extraction)
    is_sure = len(text) >= MIN_SURE_BLOCKS * language.min_long_block and lost <= MAX_SURE_LOSS
    if is_sure or extraction.mode == "fast":
        return text
    precise = precise_text(page, tables=extraction.tables)
    return precise if len(precise) > MIN_PRECISE_SHARE * len(text) else text


def _fast(page: str, language: Language, extraction: Extraction) -> tuple[str, float]:
    """The text by Resiliparse, and the share of what it found that the rules discarded."""
    tree = HTMLTree.parse(NO_LINK.sub("", page))
    _mark_wrappers(tree)
    reduced = extract_plain_text(
        tree, preserve_formatting="minimal_html", main_content=True, links=True, alt_texts=False,
        list_bullets=False, comments=False, skip_elements=SKIPPED,
    )  # fmt: skip
    found = _blocks(reduced)
    blocks = [
        block
        for block in found
        if not _is_navigation(block)
        and (extraction.tables or not block.is_row)
        and (extraction.code or not block.is_code)
    ]
    kept = _running_text(blocks, language)
    total = sum(len(block.text) for block in found)
    return "\n".join(kept), 1 - sum(map(len, kept)) / total if total else 0.0


def _running_text(blocks: list[Block], language: Language) -> list[str]:
    """The texts from the first long block to the last one with its tables and code, and what is a sentence outside."""
    long = [
        index
        for index, block in enumerate(blocks)
        if len(block.text) >= language.min_long_block and block.link_density < MAX_LONG_LINK_DENSITY
    ]
    first, last = (long[0], long[-1]) if long else (len(blocks), -1)
    while 0 <= last < len(blocks) - 1 and (blocks[last + 1].is_row or blocks[last + 1].is_code):
        last += 1
    return [
        block.text
        for index, block in enumerate(blocks)
        if first <= index <= last
        or (block.is_heading and index < first)
        or (len(block.text) >= MIN_EDGE_CHARS and block.text[-1] in language.sentence_ends)
    ]


def _mark_wrappers(tree: HTMLTree) -> None:
    """Mark elements that hold most of the page's text, however they are called, so that they are not skipped."""
    if tree.document is None or tree.body is None:
        return
    total = 0
    for element in tree.document.query_selector_all(WRAPPERS)[:MAX_WRAPPERS]:
        if element.tag in ("html", "body"):  # which hold all of it
            element[WRAPPER] = ""
            continue
        total = total or _num_chars(tree.body.html)
        source = element.html
        if len(source) > MOST * total and _num_chars(source) > MOST * total:
            element[WRAPPER] = ""


def _num_chars(source: str) -> int:
    """Length of an element's text without its programs.

    Not by way of the tree: the time of its collections grows with the square.
    """
    return sum(map(len, NO_TEXT.sub("", source).split()))


def _blocks(reduced: str) -> list[Block]:
    blocks = []
    for match in BLOCK.finditer(reduced):
        code, _, heading, line = match.groups()
        marked = next(part for part in (code, heading, line) if part is not None)
        text = _plain(marked)
        if text:
            linked = sum(len(_plain(link)) for link in LINK.findall(marked))
            blocks.append(
                Block(
                    text=text,
                    is_heading=heading is not None,
                    is_code=code is not None,
                    link_density=linked / len(text),
                )
            )
    return blocks


def _plain(marked: str) -> str:
    return html.unescape(MARKUP.sub("", BREAK.sub("\n", marked))).strip()


def _is_navigation(block: Block) -> bool:
    return block.link_density >= MAX_LINK_DENSITY and len(block.text) < MAX_LINK_BLOCK
