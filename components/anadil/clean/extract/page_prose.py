"""Find the prose of a page that an extractor has discarded, and put it back at its place or count it.

Programs, menus, footers and forms never are a part of an article and are taken out of its tree. Prose that goes with
them is counted: a name may be wrong.
"""

import html
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from resiliparse.parse.html import ElementNode, HTMLTree

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
MAX_RUN_LINKS = 0.15
"""Share of a discarded run that is links from which on it is a list of other pages with the beginning of each."""
MIN_RUN_PROSE = 0.5
"""Share of a discarded run that is sentences."""
END_CHARS = 20
"""Letters at the beginning or the end of a block by which it is known where an extractor has shortened it."""
MIN_ITEMS = 2
"""Items of a list below a heading that are put back; one alone may be anything."""
MAX_SHORTENED = 2
"""A block of the page that is so many times as long as what is left of it is another block."""
MAX_COMPARED = 200_000_000
"""Characters that are looked through for what an extractor has joined, 0.1 s; the prose of larger pages is not compared."""
PROGRAMS = ("script", "style", "rt", "rp")
STRUCTURE_TAGS = (
    "nav", "footer", "form", "button", "dialog", "template", "noscript", "figcaption", "textarea", "select", "object", "video",
    "audio", "iframe",
)  # fmt: skip
CARDS = ("button", "figcaption")
"""Those of these that readers see in the article; one stays if it holds paragraphs."""
STRUCTURE_NAMES = [
    "[role=navigation]", "[role=contentinfo]", "[role=search]", "[role=dialog]",
    "[class*=cookie]", "[id*=cookie]",
]  # fmt: skip
"""Attributes of elements that hold no article. A banner of cookies is prose, so that only its name tells."""
BAKED = "article [class*=cookie], article [id*=cookie]"
BANNER = re.compile(r"consent|banner|notice|law|wall|policy|popup|modal|accept|gdpr|overlay", re.IGNORECASE)
"""In the name of a banner of cookies in an article; other cookies there are eaten, or explained."""
NAMED = ["aside", "[aria-hidden=true]", "[class*=breadcrumb]", "[class*=share-]", "[class*=social]"]
"""Elements that hold no article by their name; what is lost for that is counted."""
WRAPPERS = (
    "form, [class*=breadcrumb], [class*=share-], [class*=social], main[class*=cookie], main[id*=cookie]"
)
"""Elements that are skipped by name, unless one holds most of the text: ASP.NET wraps pages in a form, themes say
`has-breadcrumbs` of the whole page. A cookie banner or a menu may hold most of the text of a poor page."""
ROOTS = ("html", "body")
"""They hold all of it, whatever they are called."""
MAX_WRAPPERS = 20
"""Elements that are checked: the first ones are the outer ones."""
MOST = 0.5
WRAPPER = "data-anadil-wrapper"
SKIPPED = [f"{selector}:not([{WRAPPER}])" for selector in NAMED]
"""For an extractor of the tree that is left."""
TEMPLATE = re.compile(r"(?<=<)template\b|(?<=</)template\b")
TAG = re.compile(r"<[^<>]{0,1000}>")


class Block(NamedTuple):
    """A heading, paragraph, list item or piece of code."""

    text: str
    is_heading: bool = False
    is_code: bool = False
    is_item: bool = False
    num_linked: int = 0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Blocks of an extractor with the prose that it had discarded."""

    blocks: list[Block]
    restored: int = 0
    """Characters of prose that came back."""
    lost: int = 0
    """Characters of prose that stay away: they stand outside of the article."""


def misses_prose(extracted: Sequence[Block], page: str, language: Language) -> bool:
    """Return whether an extractor may have discarded prose of a page's text with its marks: a cheap check before `restore`."""
    missing = set(map(str.strip, page.split("\n"))).difference(block.text for block in extracted)
    lines = [line for line in missing if _may_be_prose(line, language)]
    if not lines:
        return False
    text = "".join(block.key for block in extracted)
    if len(lines) * len(text) > MAX_COMPARED:
        return False
    num_letters = 0
    for line in lines:
        key = "".join(without_marks(line).split())
        if key in text:
            continue
        if QUESTION.search(line, len(line) - 6):
            return True
        num_letters += len(key)
    return 2 * num_letters >= language.min_long_block


def misses_list(extracted: Sequence[Block], page: str) -> bool:
    """Return whether an extractor may have discarded items of a list, by a page's text with its marks."""
    texts = {block.text for block in extracted}
    missing = (line for line in map(str.strip, page.split("\n")) if line.startswith(ITEM_MARK))
    return sum(without_marks(line) not in texts for line in missing) >= MIN_ITEMS


def _may_be_prose(line: str, language: Language) -> bool:
    """Return whether a line with marks is a question, a sentence, or a list item as long as one; none that begins with a link."""
    if len(line) < MIN_QUESTION_CHARS or line.startswith(LINKED_ITEM):
        return False
    return bool(QUESTION.search(line, len(line) - 6)) or (
        len(line) >= MIN_EDGE_CHARS and (line[-1] in language.sentence_ends or ITEM_MARK in line)
    )


def restore(
    extracted: Sequence[Block],
    page: Sequence[Block],
    language: Language,
    is_in_article: Callable[[Block, Block, Block], bool],
) -> Restored:
    """Put prose that an extractor discarded back at its place.

    Args:
        is_in_article: Tells whether the third block stands in the element that holds the first and the last long block of
            the article; for discarded prose before or behind those.
    """
    keys, kept_keys = [block.key for block in page], [block.key for block in extracted]
    places = _places(kept_keys, keys)
    lost = _lost_runs(kept_keys, places, keys, page, language)
    long = [
        place
        for place, block in zip(places, extracted, strict=True)
        if place >= 0 and block.is_long(language)
    ]
    back: list[int] = []
    for run in lost:
        is_inside = bool(long) and _is_inside(run, long, page)
        text = next((page[index] for index in run if page[index].is_long(language)), None)
        if is_inside or (long and text and is_in_article(page[long[0]], page[long[-1]], text)):
            back += run
    back += (
        [index for index in _listed(page, places, long, is_in_article) if index not in back] if long else []
    )
    # A question above its answer is shorter than prose.
    at = {
        place for place, block in zip(places, extracted, strict=True) if place >= 0 and not block.is_heading
    }
    back += [
        index
        for index, block in enumerate(page[:-1])
        if index + 1 in at and block.is_question and keys[index] not in kept_keys
    ]
    missing = sum(_num_prose([page[index] for index in run], language) for run in lost)
    restored = _num_prose([page[index] for index in back], language)
    whole = [
        page[place] if place >= 0 and _is_shortened(block, page[place], language) else block
        for place, block in zip(places, extracted, strict=True)
    ]
    inside = sum(len(each.text) - len(block.text) for each, block in zip(whole, extracted, strict=True))
    return Restored(
        blocks=_merged(whole, places, page, back), restored=restored + inside, lost=missing - restored
    )


def _listed(
    page: Sequence[Block],
    places: Sequence[int],
    long: Sequence[int],
    is_in_article: Callable[[Block, Block, Block], bool],
) -> list[int]:
    """Find headings with the lists below them, of which items are missing, in the article or beside what was kept of it."""
    at, missing = set(places), list[int]()
    for index, heading in enumerate(page):
        items = (
            list(itertools.takewhile(lambda block: block.is_item, page[index + 1 :]))
            if heading.is_heading
            else []
        )
        end = index + 1 + len(items)
        run = [each for each in range(index, end) if each not in at]
        num_linked = sum(item.num_linked for item in items)
        if (
            len(items) < MIN_ITEMS
            or not run
            or num_linked >= MAX_LONG_LINK_DENSITY * sum(len(item.text) for item in items)
        ):
            continue
        behind = end + (end < len(page) and page[end].is_heading)
        is_near = index - 1 in at or behind in at or (end < len(page) and end in at)
        if long[0] < index < long[-1] or is_near or is_in_article(page[long[0]], page[long[-1]], items[0]):
            missing += run
    return missing


def _is_inside(run: Sequence[int], long: Sequence[int], page: Sequence[Block]) -> bool:
    """Return whether a run stands between the long blocks of an article, or is a list directly beside them."""
    if long[0] < run[0] < long[-1]:
        return True
    is_beside = run[-1] + 1 == long[0] or run[0] == long[-1] + 1
    return is_beside and all(page[index].is_item or page[index].is_heading for index in run)


def _is_shortened(extracted: Block, block: Block, language: Language) -> bool:
    """Return whether an extractor has taken an element out of a sentence."""
    return (
        extracted.text != block.text
        and len(extracted.key) < len(block.key) < MAX_SHORTENED * len(extracted.key)
        and block.is_sentence(language)
        and block.link_density < MAX_LONG_LINK_DENSITY
    )


def _lost_runs(
    extracted: Sequence[str], places: Sequence[int], keys: Sequence[str], page: Sequence[Block],
    language: Language,
) -> list[list[int]]:  # fmt: skip
    """Find runs of neighbouring blocks that are mostly prose and that the extractor has discarded."""
    covered = set(places)
    text = "".join(extracted)
    missing = [index for index, block in enumerate(page) if index not in covered and block.is_prose(language)]
    if len(missing) * len(text) > MAX_COMPARED:
        return []
    covered.update(index for index in missing if keys[index] in text)
    runs: list[list[int]] = []
    for index, block in enumerate(page):
        if index in covered:
            continue
        if runs and runs[-1][-1] == index - 1 and not block.is_heading:
            runs[-1].append(index)
        else:
            runs.append([index])
    return [run for run in runs if _is_prose([page[index] for index in run], language)]


def _num_prose(blocks: Sequence[Block], language: Language) -> int:
    return sum(len(block.text) for block in blocks if block.is_prose(language))


def _is_prose(run: Sequence[Block], language: Language) -> bool:
    total = sum(len(block.text) for block in run)
    prose = _num_prose(run, language)
    linked = sum(block.num_linked for block in run)
    return (
        2 * prose >= language.min_long_block
        and prose >= MIN_RUN_PROSE * total
        and linked <= MAX_RUN_LINKS * total
    )


def _places(extracted: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Find the place of each block of an extractor in the page, ascending; -1 where the page has no such block.

    Long blocks show the way; short ones, which pages repeat, are looked for between them.
    """
    at, begins, ends = _positions(keys), dict[str, list[int]](), dict[str, list[int]]()
    places = [-1] * len(extracted)
    cursor = 0
    for number, key in enumerate(extracted):
        if len(key) >= END_CHARS:
            place = _next(at, key, cursor)
            if place < 0:  # shortened: known by its beginning or its end
                begins = begins or _positions([each[:END_CHARS] for each in keys])
                place = _next(begins, key[:END_CHARS], cursor)
            if place < 0:
                ends = ends or _positions([each[-END_CHARS:] for each in keys])
                place = _next(ends, key[-END_CHARS:], cursor)
            places[number] = place
            cursor = max(cursor, places[number] + 1)
    end = len(keys)
    bounds = []
    for place in reversed(places):
        end = place if place >= 0 else end
        bounds.append(end)
    cursor = 0
    for number, (key, end) in enumerate(zip(extracted, reversed(bounds), strict=True)):
        if places[number] < 0 and len(key) < END_CHARS:
            place = _next(at, key, cursor)
            places[number] = place if place < end else -1
        cursor = max(cursor, places[number] + 1)
    return places


def _positions(keys: Sequence[str]) -> dict[str, list[int]]:
    at: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        at.setdefault(key, []).append(index)
    return at


def _next(at: Mapping[str, list[int]], name: str, cursor: int) -> int:
    """Return the first place from a cursor on; -1 where there is none."""
    where = at.get(name, [])
    position = bisect_left(where, cursor)
    return where[position] if position < len(where) else -1


def _merged(
    extracted: Sequence[Block], places: Sequence[int], page: Sequence[Block], back: Sequence[int]
) -> list[Block]:
    """Put blocks back among those that were kept, in the order of the page."""
    blocks: list[Block] = []
    left = sorted(back, reverse=True)
    for block, place in zip(extracted, places, strict=True):
        while left and left[-1] < place:
            blocks.append(page[left.pop()])
        blocks.append(block)
    return [*blocks, *(page[index] for index in reversed(left))]


def elements_of(tree: HTMLTree, selector: str) -> list[ElementNode]:
    """Return the elements that a selector finds."""
    # By a slice: a collection looks for its elements again for each one, and a page of two thousand takes a minute.
    return list(tree.document.query_selector_all(selector)[:]) if tree.document else []


def letters_of(element: ElementNode) -> str:
    """Return all text of an element without its blanks."""
    return "".join((element.text or "").split())


def drop_structure(tree: HTMLTree, language: Language) -> list[str]:
    """Take programs and structure out of a tree, and mark wrappers of most of its text; return lines of prose that went."""
    if tree.body is None:
        return []
    for code in elements_of(tree, "td + td pre"):
        _take_out_of_numbers(code)
    elements = elements_of(tree, ", ".join([*PROGRAMS, *STRUCTURE_TAGS, *STRUCTURE_NAMES, WRAPPERS]))
    for element in elements:
        if element.tag in PROGRAMS:
            element.remove()
    elements = [element for element in elements if element.tag not in PROGRAMS]
    candidates = [element for element in elements if element.matches(WRAPPERS) or element.tag in ROOTS]
    most = MOST * len(letters_of(tree.body)) if candidates else 0
    for element in candidates[:MAX_WRAPPERS]:
        if element.tag in ROOTS or len(letters_of(element)) > most:
            element[WRAPPER] = ""
    names = ", ".join(STRUCTURE_NAMES)
    dropped: dict[str, None] = {}
    # The inner ones first, so that text is read once however deep they stand.
    for element in reversed(elements):
        is_structure = element.tag in STRUCTURE_TAGS or element.matches(names)
        if not is_structure or element.has_attribute(WRAPPER):
            continue
        # Cookies in the name of an element of the article are its subject, unless that is a banner's. Asked of few:
        # a match costs most of the loop.
        if not element.matches(BAKED) or BANNER.search(f"{element.class_name} {element.id}"):
            dropped.update(dict.fromkeys(_dropped(tree, element, language)))
    return list(dropped)


def _take_out_of_numbers(code: ElementNode) -> None:
    """Put code in the place of a table of two cells that numbers its lines."""
    row, table = _around(code, "tr"), _around(code, "table")
    if row is None or row.next_element or row.prev_element or table is None or table.parent is None:
        return
    numbers = row.first_element_child
    if numbers is not None and letters_of(numbers).isdigit():
        table.parent.replace_child(code, table)


def _around(element: ElementNode, tag: str) -> ElementNode | None:
    """Return the innermost element of a name around another."""
    parent = element.parent
    while isinstance(parent, ElementNode) and parent.tag != tag:
        parent = parent.parent
    return parent if isinstance(parent, ElementNode) else None


def _dropped(tree: HTMLTree, element: ElementNode, language: Language) -> list[str]:
    """Take an element out; return its prose, or none where that stays in the article."""
    lines = _lines_of(element)
    prose = [line for line in lines if len(line) >= MIN_EDGE_CHARS and line[-1] in language.sentence_ends]
    if 2 * sum(map(len, prose)) < language.min_long_block:
        prose = []
    links = element.query_selector_all("a")[:] if prose else ()
    linked = {line for link in links for line in _lines_of(link)}
    prose = [line for line in prose if line not in linked]
    div = tree.create_element("div") if element.tag in CARDS and len(prose) > 1 else None
    if div and element.parent:
        while element.first_child is not None:
            div.append_child(element.first_child)
        element.parent.replace_child(div, element)
        return []
    element.remove()
    return lines if element.tag == "figcaption" else prose


def _lines_of(element: ElementNode) -> list[str]:
    """Return all text of an element, a block a line."""
    text = element.inner_text or ""
    if element.tag == "template":  # another document
        inner = HTMLTree.parse(TEMPLATE.sub("div", element.html))
        text = inner.body.inner_text or "" if inner.body else ""
    if "<" in text:  # where browsers parse nothing
        text = TAG.sub("\n", text)
    return [line for line in map(str.strip, without_marks(text).split("\n")) if line]
