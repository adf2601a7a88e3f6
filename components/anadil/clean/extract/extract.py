"""Extract the text of web pages: which pages are worth it, what is content.

Two extractors in a cascade: Resiliparse with the rules below is fast and right on most pages; where its
result is doubtful, Trafilatura, ten times as slow, gives a second one.
"""

import functools
import itertools
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pycld2
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from anadil.clean.extract import page_prose
from anadil.clean.extract.page_markup import rewrite_page, without_marks
from anadil.clean.read.charset import decode_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language_data import Language
from anadil.text.letters import UNKNOWN, Letters

MIN_PREFILTER_PERCENT = 5
MIN_OWN_LETTERS = 100
"""Rule measured on 929 real pages: finds 552 of 552 az and ja ones, passes 5 % of the others."""
MAX_FOREIGN_CHARS = 16_384
"""Characters that CLD2 reads of a page without a letter of the language, from its middle: `spelling` drops its text, unless the letters
are entities or misread. Our choice: 803 real pages cost a third, and the same of them pass; of 270 with entities for
letters 268, of which all did."""

HTML_LANG = re.compile(r"<html\b[^>]{0,500}?\blang\s*=\s*[\"']?([a-zA-Z]+)", re.IGNORECASE)
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
NO_ARTICLE = ", ".join(
    f"[{attribute}*={word}]"
    for attribute in ("class", "id")
    for word in ("comment", "copyright", "footer", "newsletter", "subscri", "consent")
)
"""Names of what stands in an article's element, before or behind the article, and is none of it."""
MAX_DESCENT = 40
"""Elements within each other in which the article is looked for."""
MAX_LINK_DENSITY = 0.5
MAX_LINK_BLOCK = 200
"""Characters below which a block of mostly links is navigation.

These two, and those of `page_blocks`, were tuned on trafilatura's evaluation pages: F1 .886 there against .859 without,
.934 against .927 on article-extraction-benchmark.
"""
MIN_ITEM_CHARS = 15
"""Mean length of the items of a list beside the running text that belongs to it; names of tags are shorter."""
MAX_LIST_LINKS = 0.15
"""Share of such a list that is links, at most."""
MIN_SURE_BLOCKS = 3.5
"""A shorter result is doubtful; in lengths of a block of running text, so 500 characters where letters are Latin."""
MAX_SURE_LOSS = 0.08
"""Share of the extracted text but for its menus that the rules above may discard before the result is doubtful. Of .06 to .1 on
the pages of `benchmarks/clean/extraction.py`: F1 .956 to .952, and of 66 pages 20 to 11 for the second extractor."""
MAX_SURE_PROSE_LOSS = 0.1
"""The same of prose that an extractor may discard."""
MIN_PRECISE_SHARE = 0.8
"""Length of the second result over the first from which it counts: of some pages it holds a single paragraph."""

TABLE_RULE = re.compile(r"\|?(?:\s*:?-{3,}:?\s*\|)+\s*")
CELL_BORDER = re.compile(r"\s*\|\s*")
BULLET = re.compile(r"^\s*- ")

# It warns of each page that it finds empty, which here is an answer like another.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
Extractor = Literal["resiliparse", "trafilatura"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """How pages become text."""

    mode: ExtractMode = "balanced"
    tables: bool = True
    """Keep rows of tables, cells apart by tabs."""
    code: bool = True


DEFAULT = Extraction()


def decode_page(data: bytes, charset: str, letters: Letters = UNKNOWN) -> tuple[str, bool]:
    """Decode a page, with the server's charset and the letters of the language; True if it was UTF-8."""
    meta = META_CHARSET.search(data, 0, 4_096)
    text, codec = decode_text(data, [charset, meta[1].decode(errors="replace") if meta else ""], letters)
    return text, codec == "utf-8"


def may_be_in_language(page: str, language: Language) -> bool:
    """Return whether a page may hold the language: a cheap check before the expensive extraction."""
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
        _, _, details = pycld2.detect(page, isPlainText=False)
    except (pycld2.error, UnicodeEncodeError):
        try:
            _, _, details = pycld2.detect(CONTROLS.sub(" ", page), isPlainText=False)
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
    # Units of UTF-16: all kana are found in the time that two letters take one by one.
    is_own = np.zeros(1 << 16, dtype=bool)
    is_own[_units("".join(letters))] = True
    return is_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The text of a page, and counts of the page's prose."""

    text: str
    extractor: Extractor
    restored: int = 0
    """Characters of prose outside of menus and footers that the extractor had discarded, and that were put back."""
    discarded: int = 0
    """Characters of these that are not in the text."""
    dropped: int = 0
    """Characters of prose in menus, footers and their like that are not in the text."""
    deleted: int = 0
    """Characters that the page shows crossed out (`del`, `s`, `strike`), which are not in the text."""

    @property
    def lost(self) -> int:
        """Characters of prose that are not in the text."""
        return self.discarded + self.dropped

    @property
    def counts(self) -> Counter[str]:
        """Characters of prose by cause, for sums over pages."""
        return Counter(
            {
                "pages": 1, "characters": len(self.text), f"pages_by_{self.extractor}": 1,
                f"restored_after_{self.extractor}": self.restored,
                f"lost_by_{self.extractor}": self.discarded, "lost_by_name": self.dropped,
                "deleted": self.deleted,
            }
        )  # fmt: skip


def main_text(page: str, language: Language, extraction: Extraction = DEFAULT) -> str:
    """Extract the running text of a page that is no bomb, with its headings, a block a line; may be empty."""
    return extract_page(page, language, extraction).text


def extract_page(page: str, language: Language, extraction: Extraction = DEFAULT) -> Extracted:
    """Extract the text of a page that is no bomb (`bomb.excess`), and count its prose."""
    rewritten, num_deleted = rewrite_page(page)
    return replace(
        _extracted(_Source(rewritten, language, extraction), language, extraction), deleted=num_deleted
    )


def _extracted(source: "_Source", language: Language, extraction: Extraction) -> Extracted:
    if extraction.mode == "precision":
        return source.second() or source.first()[0]
    first, discarded = source.first()
    is_sure = len(first.text) >= MIN_SURE_BLOCKS * language.min_long_block and discarded <= MAX_SURE_LOSS
    has_prose = first.discarded <= MAX_SURE_PROSE_LOSS * len(first.text)
    if (is_sure and has_prose) or extraction.mode == "fast":
        return first
    second = source.second()
    if second is None or len(second.text) <= MIN_PRECISE_SHARE * len(first.text):
        return first
    return second if second.discarded < first.discarded or not is_sure else first


class _Source:
    def __init__(self, page: str, language: Language, extraction: Extraction) -> None:
        self._language, self._extraction = language, extraction
        self._tree = HTMLTree.parse(page)
        self._dropped = page_prose.drop_structure(self._tree, language)
        self._article: str | None = None
        self._foreign = ""

    def _reduced(self, *, main_content: bool) -> str:
        return extract_plain_text(
            self._tree, preserve_formatting="minimal_html", main_content=main_content, links=True, alt_texts=False,
            list_bullets=False, comments=not main_content, hidden_elements=not main_content,
            skip_elements=page_prose.SKIPPED if main_content else None,
        )  # fmt: skip

    @functools.cached_property
    def _lines(self) -> str:
        # All text of the page with its marks, a block a line: an eighth of the time that `_blocks` takes.
        return self._tree.body.inner_text or "" if self._tree.body else ""

    @functools.cached_property
    def _blocks(self) -> list[page_prose.Block]:
        return page_prose.blocks_of(self._reduced(main_content=False))

    def first(self) -> tuple[Extracted, float]:
        """Extract by Resiliparse; return the share of its text that the rules discarded, too."""
        restored = self._restored(page_prose.blocks_of(self._reduced(main_content=True)))
        total = sum(len(block.text) for block in restored.blocks if not _is_navigation(block))
        blocks = [
            block for block in restored.blocks if not _is_navigation(block) and self._is_asked_for(block)
        ]
        blocks_left = _running_text(blocks, self._language)
        discarded = 1 - sum(map(len, blocks_left)) / total if total else 0.0
        # Blocks away from the text that are no lists of links.
        items = {block.text for block in blocks if block.is_item and not block.num_linked}.difference(
            blocks_left
        )
        restored = replace(restored, lost=restored.lost + sum(map(len, items)))
        return self._extracted("\n".join(blocks_left), "resiliparse", restored), discarded

    def _restored(
        self, blocks_left: list[page_prose.Block], *, with_lists: bool = False
    ) -> page_prose.Restored:
        is_listed = with_lists and page_prose.misses_list(blocks_left, self._lines)
        if not is_listed and not page_prose.misses_prose(blocks_left, self._lines, self._language):
            return page_prose.Restored(blocks=blocks_left)
        return page_prose.restore(blocks_left, self._blocks, self._language, self._is_in_article)

    def second(self) -> Extracted | None:
        """Extract by Trafilatura; None where it finds no text."""
        page = without_marks(self._tree.document.html) if self._tree.document else ""
        lines = _precise_text(page, self._extraction).split("\n")
        if lines == [""]:
            return None
        restored = self._restored([page_prose.Block(text=line) for line in lines], with_lists=True)
        text = "\n".join(block.text for block in restored.blocks if self._is_asked_for(block))
        return self._extracted(text, "trafilatura", restored)

    def _extracted(self, text: str, extractor: Extractor, restored: page_prose.Restored) -> Extracted:
        key = "".join(text.split()) if self._dropped else ""
        is_compared = len(self._dropped) * len(key) <= page_prose.MAX_COMPARED
        # Dropped prose that the text repeats is not lost.
        lost = [line for line in self._dropped if not (is_compared and "".join(line.split()) in key)]
        return Extracted(
            text=text, extractor=extractor, restored=restored.restored, discarded=restored.lost,
            dropped=sum(map(len, lost)),
        )  # fmt: skip

    def _is_asked_for(self, block: page_prose.Block) -> bool:
        return (self._extraction.tables or not block.is_row) and (self._extraction.code or not block.is_code)

    def _is_in_article(
        self, first: page_prose.Block, last: page_prose.Block, other: page_prose.Block
    ) -> bool:
        """Return whether a block stands in the element of the article, given its first and its last long block."""
        if self._article is None:
            self._article = _article_text(self._tree, first, last)
            foreign = page_prose.elements_of(self._tree, NO_ARTICLE) if self._article else ()
            self._foreign = "".join(map(page_prose.letters_of, foreign))
        return other.key in self._article and other.key not in self._foreign


def _article_text(tree: HTMLTree, first: page_prose.Block, last: page_prose.Block) -> str:
    """Return all letters of the innermost `article` that holds two blocks, or of the smallest element; none of the whole page."""
    main, is_article = "", False
    element = tree.body
    for _ in range(MAX_DESCENT):
        child = element.first_element_child if element else None
        while child is not None:
            text = page_prose.letters_of(child)
            if len(text) > len(first.key) and first.key in text and last.key in text:
                break
            child = child.next_element
        if child is None:
            break
        if child.tag == "article" or not is_article:
            main, is_article = text, child.tag == "article"
        element = child
    return main


def _running_text(blocks: list[page_prose.Block], language: Language) -> list[str]:
    """Return the texts from the first long block to the last one with its tables and code, and sentences outside."""
    long = [index for index, block in enumerate(blocks) if block.is_long(language)]
    first, last = (long[0], long[-1]) if long else (len(blocks), -1)
    if long and first and blocks[first - 1].is_question:
        first -= 1
    while long and first and (blocks[first - 1].is_row or blocks[first - 1].is_code):
        first -= 1
    # Lists with a heading of the text behind them.
    before = blocks[:first][::-1]
    heading = int(bool(before) and before[0].is_heading)
    num_items = _list_length(before[heading:])
    first -= heading + num_items if num_items else 0
    while 0 <= last < len(blocks) - 1 and (blocks[last + 1].is_row or blocks[last + 1].is_code):
        last += 1
    if long:
        behind = blocks[last + 1 :]
        heading = int(bool(behind) and behind[0].is_heading)
        num_items = _list_length(behind[heading:])
        last += heading + num_items if num_items else 0
    return [
        block.text
        for index, block in enumerate(blocks)
        if first <= index <= last or (block.is_heading and index < first) or block.is_sentence(language)
    ]


def _list_length(blocks: Sequence[page_prose.Block]) -> int:
    """Count the items of the list that blocks begin with; 0 where it is a menu or names of tags."""
    items = list(itertools.takewhile(lambda block: block.is_item, blocks))
    num_chars = sum(len(item.text) for item in items)
    num_linked = sum(item.num_linked for item in items)
    is_prose = num_chars >= MIN_ITEM_CHARS * len(items) and num_linked <= MAX_LIST_LINKS * num_chars
    return len(items) if is_prose or not num_linked else 0


def _is_navigation(block: page_prose.Block) -> bool:
    return block.link_density >= MAX_LINK_DENSITY and len(block.text) < MAX_LINK_BLOCK


def _precise_text(page: str, extraction: Extraction) -> str:
    """Extract the article of a page that is no bomb, a block a line; empty where there is none.

    Source of the options: Trafilatura's documentation, "favor_precision" and "fast".
    """
    # Here, because it takes .4 CPU seconds, and text and most pages do without.
    import trafilatura

    # Its own removal of repeated text remembers earlier pages, so that the result would depend on their order.
    text = trafilatura.extract(
        page, fast=True, favor_precision=True, include_comments=False, include_tables=extraction.tables,
        prune_xpath=None if extraction.code else "//pre", deduplicate=False,
    )  # fmt: skip
    # Lines as the fast extractor writes them: no bullets, tabs between cells, a title once.
    lines, last = [], ""
    for marked in (text or "").split("\n"):
        if TABLE_RULE.fullmatch(marked):
            continue
        is_row = marked.startswith("|")
        line = CELL_BORDER.sub("\t", marked).strip() if is_row else BULLET.sub("", marked)
        if line.strip() and line != last:
            lines.append(line)
        last = line
    return "\n".join(lines)
