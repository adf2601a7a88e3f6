"""Take out of the tree of a page what never is a part of its article: programs, menus, footers, forms.

Prose that goes with them is counted: a name may be wrong.
"""

import re

from resiliparse.parse.html import ElementNode, HTMLTree

from anadil.clean.extract.page_markup import without_marks
from anadil.clean.extract.page_prose import MIN_EDGE_CHARS
from anadil.text.language_data import Language

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
