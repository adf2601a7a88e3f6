"""HTML rewritten before extractors read it, so that elements inside a sentence stay there.

Extractors leave out elements by name: `<time>`, `<label>`, `<button>`, lists near the top.
"""

import re

from anadil.clean.raised import raised_as_text

ITEM_MARK, LINKED_ITEM = "\u2063\u2063", "\u2063\u2064"
"""Stand at the beginning of list items, which Resiliparse writes like other lines, and of those that begin with a link. Two
signs each: a single invisible one it drops, three change what it takes for the article, and so does a mark in each link."""
RENAMED = {"time": "span", "label": "span", "summary": "div", "figure": "div", "ul": "ol"}
"""Resiliparse drops the first two and the fourth, joins the third with what follows, and takes a `ul` near the top for a menu;
the fourth holds tables, code and quotes too."""
TAGS = re.compile(
    r"<(?:(?P<anchor>[aA](?:\s+(?!(?i:href)\b)[^\s<>\"'=/]++(?:\s*=\s*(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>]++))?+)*+\s*+/?>)"
    r"|(?P<item>[lL][iI](?=[\s>])[^<>]*>\s*)|/?(?P<name>"
    + "|".join("".join(f"[{letter}{letter.upper()}]" for letter in name) for name in RENAMED)
    + r")(?=[\s/>]))"
)
"""The tags that are rewritten, in one pass over the page. An anchor without an address is a mark, no link: of `<a id="x"/>`,
which XHTML of DocBook is full of, HTML knows no end, so that all text up to the next anchor would be a link's; and so would
headings that are marks."""
BUTTON = re.compile(r"<button\b([^<>]{0,1000})>(.{0,600}?)</button\s*>", re.IGNORECASE | re.DOTALL)
TAG = re.compile(r"<[^<>]{0,1000}>")
OPENS_TEXT = re.compile(r"aria-(?:expanded|controls)|accordion|collaps", re.IGNORECASE)
"""Attributes of a button that shows and hides the text below it: its label is the heading of that text."""
HEADING = r"</?(?:h[1-6]|dt|summary|legend)\b"
IN_HEADING = re.compile(rf"(?!</){HEADING}(?:(?!{HEADING}).)*\Z", re.IGNORECASE | re.DOTALL)
HEADING_REACH = 300
"""Characters before a button in which its heading begins."""
MIN_LABEL_CHARS = 8
"""A shorter label of a button outside of a heading is `Menu` or `Close`."""


def rewrite_page(page: str) -> str:
    """The page with elements that extractors keep, marks of list items, and raised and lowered text as characters."""
    page = raised_as_text(page)
    if "<button" in page or "<BUTTON" in page:
        page = BUTTON.sub(_button, page)
    return TAGS.sub(_rewritten, page.replace("aria-expanded", "data-expanded"))


def without_marks(text: str) -> str:
    """Text of a rewritten page as it was."""
    return text.replace(ITEM_MARK, "").replace(LINKED_ITEM, "")


def _rewritten(match: re.Match[str]) -> str:
    kind = match.lastgroup
    if kind == "item":
        is_linked = match.string.startswith(("<a ", "<A "), match.end())
        return match[0] + (LINKED_ITEM if is_linked else ITEM_MARK)
    if kind == "name":
        name = match["name"]
        return match[0].removesuffix(name) + RENAMED[name.lower()]
    return ""


def _button(match: re.Match[str]) -> str:
    """The label of a button as text, where it is a heading."""
    start, label = match.start(), match[2]
    if IN_HEADING.search(match.string, max(0, start - HEADING_REACH), start):
        return f"<span>{label}</span>"
    if OPENS_TEXT.search(match[1]) and len(TAG.sub("", label).strip()) >= MIN_LABEL_CHARS:
        return f"<h4>{label}</h4>"
    return match[0]
