"""HTML rewritten before extractors read it, so that elements inside a sentence stay there.

Extractors leave out elements by name: `<time>`, `<label>`, `<button>`, lists near the top.
"""

import re

from anadil.clean.raised import raised_as_text

RENAMED = {"time": "span", "label": "span", "summary": "div", "ul": "ol"}
"""Resiliparse drops the first two, joins the third with what follows, and takes a `ul` near the top for a menu."""
REPLACEMENTS = [
    (f"{begin}{case(name)}", f"{begin}{other}")
    for name, other in RENAMED.items()
    for begin in ("<", "</")
    for case in (str.lower, str.upper)
]
"""In either case; sixteen of these take a third of the time of one expression."""
NO_LINK = re.compile(
    r"<[aA](?:\s+(?!(?i:href)\b)[^\s<>\"'=/]++(?:\s*=\s*(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>]++))?+)*+\s*+/?>"
)
"""The beginning of an anchor without an address: a mark, no link. Of `<a id="x"/>`, which XHTML of DocBook is full of, HTML
knows no end, so that all text up to the next anchor would be a link's; and so would headings that are marks."""
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
    """The page with elements that extractors keep, and with raised and lowered text as characters."""
    page = raised_as_text(NO_LINK.sub("", page))
    page = BUTTON.sub(_button, page).replace("aria-expanded", "data-expanded")
    for name, other in REPLACEMENTS:
        page = page.replace(name, other)
    return page


def _button(match: re.Match[str]) -> str:
    """The label of a button as text, where it is a heading."""
    start, label = match.start(), match[2]
    if IN_HEADING.search(match.string, max(0, start - HEADING_REACH), start):
        return f"<span>{label}</span>"
    if OPENS_TEXT.search(match[1]) and len(TAG.sub("", label).strip()) >= MIN_LABEL_CHARS:
        return f"<h4>{label}</h4>"
    return match[0]
