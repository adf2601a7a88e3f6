"""Rewrite HTML before extractors read it, so that elements inside a sentence stay there.

Extractors leave out elements by name: `<time>`, `<label>`, `<button>`, lists near the top.
"""

import re

from anadil.clean.extract.raised import raised_as_text

QUESTION_MARKS = "?？؟՞"
QUESTION = re.compile(rf"[{QUESTION_MARKS}][^<\w]{{0,5}}\Z")
MIN_QUESTION_CHARS = 8
"""A shorter question is `Why?` of a menu."""
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
BUTTON = re.compile(
    r"<button\b((?:[^<>\"']|\"[^\"<]{0,20000}\"|'[^'<]{0,20000}'|[\"'])*+)>((?:[^<]++|<(?!/?button\b))*+)</button\s*>",
    re.IGNORECASE,
)
LOCAL_LINK = re.compile(
    r"<a\b(?=[^<>]*?\bhref\s*=\s*[\"']?(?:#|javascript:))[^<>]*+>((?:[^<]++|<(?!/?a\b))*+)</a\s*>",
    re.IGNORECASE,
)
"""A link that leaves no page: a button of older accordions, or a line of contents."""
_SIGNS = rf"[^<\w{QUESTION_MARKS}]{{0,5}}+"
ASKED = re.compile(rf"[{QUESTION_MARKS}]{_SIGNS}(?:<(?!/?a\b)[^<>]*+>{_SIGNS})*+</a", re.IGNORECASE)
"""A question as a link; most pages have none."""
LISTED = re.compile(r"(?:\s|<(?!(?:h[1-6]|a)\b)[^<>]*+>)*+<(?:a|h[1-6])\b", re.IGNORECASE)
LISTED_BEHIND = re.compile(r"</a\s*>\s*(?:</li\s*>\s*<li\b[^<>]*>\s*|<br\s*/?>\s*)\Z", re.IGNORECASE)
"""Another link or a heading: what stands beside is a line of contents, not above an answer."""
TAG = re.compile(r"<[^<>]*+>")
OPENS_TEXT = re.compile(r"aria-(?:expanded|controls)|accordion|collaps|faq|question", re.IGNORECASE)
"""Attributes of a button that shows and hides the text below it: its label is the heading of that text."""
HEADING = r"</?(?:h[1-6]|dt|summary|legend)\b"
IN_HEADING = re.compile(rf"(?!</){HEADING}(?:(?!{HEADING}).)*\Z", re.IGNORECASE | re.DOTALL)
HEADING_REACH = 300
"""Characters before a button in which its heading begins."""
MIN_LABEL_CHARS = 8
"""A shorter label of a button outside of a heading is `Menu` or `Close`."""
MAX_LABEL_CHARS = 300
"""A longer one is a paragraph."""


def rewrite_page(page: str) -> str:
    """Rewrite a page with elements that extractors keep, marks of list items, and raised and lowered text as characters."""
    page = raised_as_text(page)
    if "<button" in page or "<BUTTON" in page:
        page = BUTTON.sub(_button, page)
    if ASKED.search(page):
        page = LOCAL_LINK.sub(_local_link, page)
    return TAGS.sub(_rewritten, page.replace("aria-expanded", "data-expanded"))


def without_marks(text: str) -> str:
    """Return text of a rewritten page as it was."""
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
    """Return the label of a button as text, where it is a heading."""
    start, label = match.start(), match[2]
    if IN_HEADING.search(match.string, max(0, start - HEADING_REACH), start):
        return f"<span>{label}</span>"
    if OPENS_TEXT.search(match[1]) and MIN_LABEL_CHARS <= len(_text(label)) <= MAX_LABEL_CHARS:
        return f"<h4>{label}</h4>"
    return f"<div>{label}</div>" if _asks(label) else match[0]


def _local_link(match: re.Match[str]) -> str:
    """Return the label of a link to the same page as text, where it is a question above its answer."""
    page, start = match.string, match.start()
    if not _asks(match[1]) or LISTED.match(page, match.end()):
        return match[0]
    is_listed = LISTED_BEHIND.search(page, max(0, start - HEADING_REACH), start)
    return match[0] if is_listed else f"<span>{match[1]}</span>"


def _asks(label: str) -> bool:
    # Behind a question may stand a sign such as `+`.
    text = _text(label)
    return MIN_QUESTION_CHARS <= len(text) <= MAX_LABEL_CHARS and bool(QUESTION.search(text))


def _text(label: str) -> str:
    return TAG.sub("", label).strip()
