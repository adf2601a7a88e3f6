"""What an extractor gives of a page, block by block."""

import html
import re
from dataclasses import dataclass

from anadil.text.language import Language

BLOCK = re.compile(r"<pre>(.*?)</pre>|<(h[1-6])>(.*?)</h[1-6]>|([^\n]+)", re.DOTALL)
LINK = re.compile(r"<a\b[^>]*>(.*?)</a>", re.DOTALL)
MARKUP = re.compile(r"</?(?:a|p|br|ul|ol|li|h[1-6]|pre|dl|dt|dd|blockquote|table|tr|td|th|div|span)\b[^>]*>")
BREAK = re.compile(r"<br\s*/?>")
MAX_LONG_LINK_DENSITY = 0.35
"""A block of running text has fewer links."""
MIN_EDGE_CHARS = 25
"""A line before or after the running text that is kept needs this length and a full stop."""

ITEM = re.compile(r"<[lL][iI](?=[\s>])[^<>]*>")
ITEM_MARK = 2 * "\u2063"
"""Stands at the beginning of list items, which Resiliparse writes like other lines; it drops a single invisible sign."""
QUESTION_MARKS = "?？؟՞"
MIN_QUESTION_CHARS = 8
"""A shorter question is `Why?` of a menu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading, paragraph, list item or piece of code."""

    text: str
    is_heading: bool = False
    is_code: bool = False
    is_item: bool = False
    """Whether it begins an item of a list."""
    num_linked: int = 0
    """Characters of its text that are links."""

    @property
    def key(self) -> str:
        """Its letters, for comparison."""
        return "".join(self.text.split())

    @property
    def is_row(self) -> bool:
        """Whether it is a row of a table."""
        return "\t" in self.text and not self.is_code

    @property
    def link_density(self) -> float:
        """Share of its text that is links."""
        return self.num_linked / len(self.text)

    @property
    def is_question(self) -> bool:
        """Whether it may be a question that stands above its answer."""
        return (
            self.text[-1] in QUESTION_MARKS and len(self.text) >= MIN_QUESTION_CHARS and not self.num_linked
        )

    def is_long(self, language: Language) -> bool:
        """Whether it is running text."""
        return len(self.text) >= language.min_long_block and self.link_density < MAX_LONG_LINK_DENSITY

    def is_sentence(self, language: Language) -> bool:
        """Whether it has the length of a sentence and ends like one."""
        return len(self.text) >= MIN_EDGE_CHARS and self.text[-1] in language.sentence_ends

    def is_prose(self, language: Language) -> bool:
        """Whether it is a sentence, or an item of a list as long as one."""
        is_long_item = self.is_item and len(self.text) >= MIN_EDGE_CHARS and not self.num_linked
        return is_long_item or self.is_sentence(language)


def mark_items(page: str) -> str:
    """The page with a mark in each item of a list, for `blocks_of`."""
    return ITEM.sub(rf"\g<0>{ITEM_MARK}", page)


def blocks_of(reduced: str) -> list[Block]:
    """The blocks of Resiliparse's `minimal_html`."""
    blocks = []
    is_item = False
    for match in BLOCK.finditer(reduced):
        code, _, heading, line = match.groups()
        marked = next(part for part in (code, heading, line) if part is not None)
        text = plain_text(marked) if code is None else _code(marked)
        is_item = is_item or ITEM_MARK in marked
        if text:
            linked = sum(len(plain_text(link)) for link in LINK.findall(marked)) if "<a" in marked else 0
            block = Block(
                text=text,
                is_heading=heading is not None,
                is_code=code is not None,
                is_item=is_item,
                num_linked=linked,
            )
            blocks.append(block)
            is_item = False
    return blocks


def plain_text(marked: str) -> str:
    """Reduced HTML without its marks."""
    if "<" in marked:
        marked = MARKUP.sub("", BREAK.sub("\n", marked))
    return html.unescape(marked.replace(ITEM_MARK, "")).strip()


def _code(marked: str) -> str:
    """Lines of code with the spaces before them."""
    return html.unescape(MARKUP.sub("", BREAK.sub("\n", marked))).strip("\n").rstrip()
