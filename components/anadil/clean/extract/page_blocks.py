"""Blocks of the text that an extractor gives of a page."""

import html
import re
from typing import NamedTuple

from anadil.clean.extract.page_markup import (
    ITEM_MARK,
    LINKED_ITEM,
    MIN_QUESTION_CHARS,
    QUESTION,
    without_marks,
)
from anadil.text.language_data import Language

BLOCK = re.compile(
    rf"\t*<pre>(?P<code>.*?)</pre>|<(?P<level>h[1-6])>(?P<heading>.*?)</h[1-6]>"
    rf"|[{ITEM_MARK}{LINKED_ITEM} ]*<a [^<>\n]*>(?P<link>[^<>\n]*)</a> *(?=\n|\Z)|(?P<line>[^\n]+)",
    re.DOTALL,
)
"""A line that is a single link, as in a menu, is read at once: they are most of a page's lines."""
LINK = re.compile(r"<a\b[^>]*>(.*?)</a>", re.DOTALL)
MARKUP = re.compile(r"</?(?:a|p|br|ul|ol|li|h[1-6]|pre|dl|dt|dd|blockquote|table|tr|td|th|div|span)\b[^>]*>")
BREAK = re.compile(r"<br\s*/?>")
MAX_LONG_LINK_DENSITY = 0.35
"""A block of running text has fewer links."""
MIN_EDGE_CHARS = 25
"""A line before or after the running text that is kept needs this length and a full stop."""


class Block(NamedTuple):
    """A heading, paragraph, list item or piece of code."""

    text: str
    is_heading: bool = False
    is_code: bool = False
    is_item: bool = False
    """It begins an item of a list."""
    num_linked: int = 0
    """Characters of its text that are links."""

    @property
    def key(self) -> str:
        """Its letters, for comparison."""
        return "".join(self.text.split())

    @property
    def is_row(self) -> bool:
        """True for a row of a table."""
        return "\t" in self.text and not self.is_code

    @property
    def link_density(self) -> float:
        """Share of its text that is links."""
        return self.num_linked / len(self.text)

    @property
    def is_question(self) -> bool:
        """True for a question that may stand above its answer."""
        is_text = len(self.text) >= MIN_QUESTION_CHARS and not self.num_linked
        return is_text and bool(QUESTION.search(self.text))

    def is_long(self, language: Language) -> bool:
        """Return whether it is running text."""
        return len(self.text) >= language.min_long_block and self.link_density < MAX_LONG_LINK_DENSITY

    def is_sentence(self, language: Language) -> bool:
        """Return whether it has the length of a sentence and ends like one."""
        return len(self.text) >= MIN_EDGE_CHARS and self.text[-1] in language.sentence_ends

    def is_prose(self, language: Language) -> bool:
        """Return whether it is a sentence, or an item of a list as long as one."""
        is_long_item = self.is_item and len(self.text) >= MIN_EDGE_CHARS and not self.num_linked
        return is_long_item or self.is_sentence(language)


def blocks_of(reduced: str) -> list[Block]:
    """Cut Resiliparse's `minimal_html` into blocks."""
    blocks = []
    is_item = False
    for match in BLOCK.finditer(reduced):
        kind = match.lastgroup or ""
        marked = match[kind]
        is_item = is_item or ITEM_MARK[0] in match[0]
        if kind == "link":
            text = html.unescape(marked).strip()
            linked = len(text)
        else:
            if kind == "code":  # with the spaces before its lines
                text = (
                    html.unescape(without_marks(MARKUP.sub("", BREAK.sub("\n", marked)))).strip("\n").rstrip()
                )
            else:
                text = _plain_text(marked)
            linked = sum(len(_plain_text(link)) for link in LINK.findall(marked)) if "<a" in marked else 0
        if text:
            blocks.append(Block(text, kind == "heading", kind == "code", is_item, linked))
            is_item = False
    return blocks


def _plain_text(marked: str) -> str:
    if "<" in marked:
        marked = MARKUP.sub("", BREAK.sub("\n", marked))
    return html.unescape(without_marks(marked)).strip()
