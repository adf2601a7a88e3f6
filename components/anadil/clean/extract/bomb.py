"""Find pages whose parsing or extraction would take seconds or gigabytes."""

import re
from collections import Counter
from typing import NamedTuple

from resiliparse.parse.html import HTMLTree

MAX_HTML_BYTES = 2_000_000
"""Without programs and data. Source: our choice; Common Crawl cuts pages at 1 MiB."""
DATA = re.compile(
    rb"<!--.*?(?:-->|\Z)|<(script|style|svg|template|noscript|object)\b.*?(?:</\1\s*>|\Z)"
    rb"|<(select|textarea|datalist|nav)\b(?:[^<]++|<(?!/?\2\b))*+</\2\s*>|(?<!\s)\s{40,}+|(?:(?:&nbsp;|\xc2\xa0)\s*+){40,}+"
    rb"|(?<==)\s*+(?:\"[^\"]{2000,}\"|'[^']{2000,}')",
    re.DOTALL | re.IGNORECASE,
)
"""Comments, programs, styles, drawings, what forms offer, menus, blanks, and attributes such as `data:` addresses and states of
applications."""
PARAGRAPH = re.compile(rb"<p\b[^<>]*>[^<>]+</p\s*>", re.IGNORECASE)
"""Elements that a menu may hold beside its links."""
MAX_TAGS = 100_000
"""About 0.3 s of parsing, measured; a comment counts as one."""
MAX_NESTING = 1_000
"""Open elements, as far as the page closes them itself, from which on the parser is asked how many there are."""
MAX_TREE_DEPTH = 3_000
"""The extraction's time grows with the square: 0.2 s here, 1.4 s at 8,000, measured."""
MAX_ATTRIBUTES = 1_000
"""In one tag; 10,000 different ones take the parser 0.2 s, 100,000 take 46 s, measured."""
MAX_COPIES = 300_000
"""Most elements of style that were left open, and that the parser opens again in each later block."""

TAG = re.compile(
    r"<(?:!--(?:-?>|.*?(?:--!?>|\Z))|(/?)([a-zA-Z][^\s/>]*+)"
    r"((?:[^>=]++|=\s*+(?:\"[^\"]*+(?:\"|\Z)|'[^']*+(?:'|\Z)|[^\s>\"'][^\s>]*+)?+)*+)>?)",
    re.DOTALL,
)
"""A comment or a tag. A quote opens a text after `=` only. Source: HTML standard, section 13.2.5."""
QUOTED = re.compile(r"=\s*+(?:\"[^\"]*+\"?|'[^']*+'?)")
RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
}
"""Elements whose content is text and no tag, but inside of `FOREIGN_ELEMENTS`."""
FOREIGN_ELEMENTS = ("svg", "math")
STYLE = frozenset(re.findall(r"\w+", "b big code em font i s small strike strong tt u"))
"""Elements that the parser opens again; not `a` and `nobr`, whose next one closes the one before."""
VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
NO_END_TAG = VOID | frozenset(
    re.findall(r"\w+", "p li dt dd tr td th thead tbody tfoot option optgroup colgroup rt rp html head body")
)
"""Void elements, and those whose end tag authors leave out: they do not nest without it."""


class Excess(NamedTuple):
    """A limit that a page exceeds."""

    statistic: str
    value: int
    """At least: counting ends where the limit is passed."""
    limit: int


def without_data(page: bytes) -> bytes:
    """Take what is no text out of a page that is too large: an article of 15 kB may have pictures of 3 MB in it."""

    def rest(data: re.Match[bytes]) -> bytes:
        # A menu keeps its paragraphs, so that they are counted.
        return b"<nav>%b</nav>" % b"".join(PARAGRAPH.findall(data[0])) if data[2] else b" "

    return DATA.sub(rest, page) if len(page) > MAX_HTML_BYTES else page


def excess(page: str) -> Excess | None:
    """Return the limit that a page exceeds: it is too large, or has too many tags, too deep ones, or too many attributes."""
    if len(page) > MAX_HTML_BYTES:
        return Excess("characters", len(page), MAX_HTML_BYTES)
    depth = _depth(page, NO_END_TAG, MAX_TAGS)
    if isinstance(depth, Excess):
        return depth
    if depth <= MAX_NESTING:
        return None
    # Authors leave elements open that a parser closes. It writes every end tag, and takes no time.
    depth = _depth(str(HTMLTree.parse(page)), VOID, MAX_TAGS + MAX_COPIES)
    if isinstance(depth, Excess):
        return depth
    return Excess("depth", depth, MAX_TREE_DEPTH) if depth > MAX_TREE_DEPTH else None


def _depth(page: str, unclosed: frozenset[str], max_tags: int) -> int | Excess:
    """Count most elements open at one time, but for the unclosed ones; or return another excess, as of tags and comments."""
    depth = deepest = num_tags = copies = position = num_style = 0
    opened: Counter[str] = Counter()
    while tag := TAG.search(page, position):
        position = tag.end()
        num_tags += 1
        name = (tag[2] or "").lower()
        if num_tags > max_tags:
            return Excess("tags", num_tags, max_tags)
        if copies > MAX_COPIES:
            return Excess("copies_of_style", copies, MAX_COPIES)
        # An attribute has two characters at least, so most tags need no closer look.
        if len(attributes := tag[3] or "") > 2 * MAX_ATTRIBUTES:
            count = len(re.findall(r"[^\s/]+", QUOTED.sub(" ", attributes)))
            if count > MAX_ATTRIBUTES:
                return Excess("attributes", count, MAX_ATTRIBUTES)
        if not name or name in unclosed:
            copies += num_style
        elif tag[1]:
            # An end tag without its beginning closes nothing, so it may hide no depth.
            if opened[name]:
                opened[name] -= 1
                depth -= 1
                num_style -= name in STYLE
        elif name in RAW and not (opened["svg"] or opened["math"]):
            end = RAW[name].search(page, position)
            position = end.start() if end else len(page)
            opened[name] += 1
            depth += 1
        elif not (tag[3].endswith("/") and (name in FOREIGN_ELEMENTS or opened["svg"] or opened["math"])):
            opened[name] += 1
            depth += 1
            num_style += name in STYLE
            copies += num_style
            deepest = max(deepest, depth)
    return deepest
