"""The tree of a page without what never is a part of its article: programs, menus, footers, forms."""

from resiliparse.parse.html import ElementNode, HTMLTree

PROGRAMS = ("script", "style", "template", "noscript")
STRUCTURE_TAGS = ("rt", "rp", "nav", "footer", "form", "button", "dialog")
STRUCTURE_NAMES = [
    "[role=navigation]", "[role=contentinfo]", "[role=search]", "[role=dialog]",
    "[class*=cookie]", "[id*=cookie]",
]  # fmt: skip
"""Attributes of elements that hold no article. A banner of cookies is prose, so that only its name tells."""
NAMED = ["aside", "[aria-hidden=true]", "[class*=breadcrumb]", "[class*=share-]", "[class*=social]"]
"""Elements that hold no article by their name; what is lost for that is counted."""
WRAPPERS = (
    "form, [class*=breadcrumb], [class*=share-], [class*=social], main[class*=cookie], main[id*=cookie]"
)
"""What is skipped by its name, unless it holds most of the text: ASP.NET wraps pages in a form, themes say
`has-breadcrumbs` of the whole page. A cookie banner or a menu may hold most of the text of a poor page."""
ROOTS = ("html", "body")
"""They hold all of it, whatever they are called."""
MAX_WRAPPERS = 20
"""Elements that are checked: the first ones are the outer ones."""
MOST = 0.5
WRAPPER = "data-anadil-wrapper"
SKIPPED = [f"{selector}:not([{WRAPPER}])" for selector in NAMED]
"""For an extractor of the tree that is left."""


def elements_of(tree: HTMLTree, selector: str) -> list[ElementNode]:
    """The elements that a selector finds.

    By a slice, because a collection looks for its elements again each time that it is asked for one: a page of two
    thousand takes a minute.
    """
    return list(tree.document.query_selector_all(selector)[:]) if tree.document else []


def letters_of(element: ElementNode) -> str:
    """All text of an element without its blanks."""
    return "".join((element.text or "").split())


def drop_structure(tree: HTMLTree) -> None:
    """Take programs and structure out of a tree, and mark elements of the names above that hold most of its text."""
    if tree.body is None:
        return
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
    for element in elements:
        if not element.has_attribute(WRAPPER) and (element.tag in STRUCTURE_TAGS or element.matches(names)):
            element.remove()
