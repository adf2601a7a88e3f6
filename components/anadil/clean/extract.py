"""Web pages to text: which pages are worth it, which could stall the parser, what is content."""

import html
import re
from dataclasses import dataclass

import pycld2
from resiliparse.extract.html2text import extract_plain_text

from anadil.clean.charset import text_of
from anadil.languages.language import Language

MAX_HTML_BYTES = 2_000_000
"""Source: our choice; Common Crawl cuts pages at 1 MiB."""
MAX_TAGS = 100_000
"""About 0.3 s of parsing, measured."""
MAX_DEPTH = 1_000
"""The parser's time grows with the square: 0.03 s here, 9 s at 20,000. Blink stops at 512."""
MAX_ATTRIBUTES = 1_000
"""In one tag; 100,000 different ones take the parser more than 20 s."""

MIN_PREFILTER_PERCENT = 5
MIN_OWN_LETTERS = 100
"""Rule measured on 929 real pages: finds 552 of 552 az and ja ones, passes 5 % of the others."""

HTML_LANG = re.compile(r"<html\b[^>]{0,500}?\blang\s*=\s*[\"']?([a-zA-Z]+)", re.IGNORECASE)
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)((?:[^>\"']++|\"[^\"]*+\"?|'[^']*+'?)*+)>?")
QUOTED = re.compile(r"\"[^\"]*\"?|'[^']*'?")
NO_END_TAG = frozenset(
    re.findall(
        r"\w+",
        "area base br col embed hr img input link meta param source track wbr p li dt dd tr td th thead tbody "
        "tfoot option optgroup colgroup rt rp html head body",
    )
)
"""Void elements, and those whose end tag authors leave out: they do not nest without it."""

SKIPPED = [
    "rt", "rp", "nav", "footer", "aside", "form", "button", "noscript", "template", "dialog",
    "[role=navigation]", "[role=contentinfo]", "[role=search]", "[role=dialog]", "[aria-hidden=true]",
    "[class*=cookie]", "[id*=cookie]", "[class*=breadcrumb]", "[class*=share-]", "[class*=social]",
]  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading, paragraph, list item or piece of code."""

    text: str
    is_heading: bool
    link_density: float


def decoded(data: bytes, charset: str) -> tuple[str, bool]:
    """A page's text, and whether it was UTF-8.

    Args:
        data: The page.
        charset: What the server says of its encoding.
    """
    meta = META_CHARSET.search(data, 0, 4_096)
    text, codec = text_of(data, [charset, meta[1].decode(errors="replace") if meta else ""])
    return text, codec == "utf-8"


def may_be(page: str, language: Language) -> bool:
    """Whether a page may hold the language: a cheap question before the expensive extraction."""
    lang = HTML_LANG.search(page, 0, 20_000)
    if lang and lang[1].lower() == language.code:
        return True
    if sum(map(page.count, language.own_letters)) >= MIN_OWN_LETTERS:
        return True
    try:
        _, _, details = pycld2.detect(CONTROLS.sub(" ", page), isPlainText=False)
    except pycld2.error:
        # Rare; the check of the extracted text decides.
        return True
    return any(code == language.code and percent >= MIN_PREFILTER_PERCENT for _, code, percent, _ in details)


def is_bomb(page: str) -> bool:
    """Whether parsing would take seconds: too many tags, too deep, too many attributes."""
    if len(page) > MAX_HTML_BYTES or page.count("<") > MAX_TAGS:
        return True
    depth = 0
    for tag in TAG.finditer(page):
        if tag[1]:
            depth = max(0, depth - (tag[2].lower() not in NO_END_TAG))
        elif tag[2].lower() not in NO_END_TAG:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        # An attribute has two characters at least, so most tags need no closer look.
        if len(tag[3]) > 2 * MAX_ATTRIBUTES and len(QUOTED.sub("", tag[3]).split()) > MAX_ATTRIBUTES:
            return True
    return False


def main_text(page: str, language: Language) -> str:
    """The running text of a page with its headings, a block a line; may be empty.

    The page must not be a bomb (`is_bomb`).
    """
    reduced = extract_plain_text(
        page, preserve_formatting="minimal_html", main_content=True, links=True, alt_texts=False,
        list_bullets=False, comments=False, skip_elements=SKIPPED,
    )  # fmt: skip
    blocks = [block for block in _blocks(reduced) if not _is_navigation(block)]
    long = [
        index
        for index, block in enumerate(blocks)
        if len(block.text) >= language.min_long_block and block.link_density < MAX_LONG_LINK_DENSITY
    ]
    first, last = (long[0], long[-1]) if long else (len(blocks), -1)
    kept = [
        block.text
        for index, block in enumerate(blocks)
        if first <= index <= last
        or (block.is_heading and index < first)
        or (len(block.text) >= MIN_EDGE_CHARS and block.text[-1] in language.sentence_ends)
    ]
    return "\n".join(kept)


def _blocks(reduced: str) -> list[Block]:
    blocks = []
    for match in BLOCK.finditer(reduced):
        code, _, heading, line = match.groups()
        marked = next(part for part in (code, heading, line) if part is not None)
        text = _plain(marked)
        if text:
            linked = sum(len(_plain(link)) for link in LINK.findall(marked))
            blocks.append(Block(text=text, is_heading=heading is not None, link_density=linked / len(text)))
    return blocks


def _plain(marked: str) -> str:
    return html.unescape(MARKUP.sub("", BREAK.sub("\n", marked))).strip()


def _is_navigation(block: Block) -> bool:
    return block.link_density >= MAX_LINK_DENSITY and len(block.text) < MAX_LINK_BLOCK
