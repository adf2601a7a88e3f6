"""Rewrite HTML before extractors read it, so that elements inside a sentence stay there.

Extractors leave out elements by name: `<time>`, `<label>`, `<button>`, lists near the top.

Raised and lowered text is written as characters: 10<sup>5</sup> is 10⁵, not 105. Marks of footnotes go.
"""

import html
import re

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
RAISED = re.compile(
    r"<(su[pb])\b([^<>]{0,500})>((?:(?!</?su[pb]\b).){0,300}?)</\1\s*>", re.IGNORECASE | re.DOTALL
)
SHORT_TAG = re.compile(r"<[^<>]{0,500}>")
FRACTION = re.compile(
    r"(\d?)\s*<sup\b[^<>]{0,200}>\s*(\d{1,9})\s*</sup>\s*(?:[/⁄∕]|&frasl;|&#8260;)\s*<sub\b[^<>]{0,200}>\s*(\d{1,9})\s*</sub>",
    re.IGNORECASE,
)
VULGAR = {
    "1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "2/5": "⅖", "3/5": "⅗", "4/5": "⅘",
    "1/6": "⅙", "5/6": "⅚", "1/8": "⅛", "3/8": "⅜", "5/8": "⅝", "7/8": "⅞",
}  # fmt: skip
_LEAF = r"<m[a-z]+\b[^<>]{0,200}>[^<>]{0,80}</m[a-z]+>\s*"
_PART = rf"({_LEAF}|<mrow\b[^<>]{{0,200}}>\s*(?:{_LEAF}){{1,12}}</mrow>\s*)"
MATH = re.compile(
    rf"<m(?:(?P<kind>sup|sub|frac|root|subsup)\b[^<>]{{0,200}}>\s*{_PART}{_PART}{_PART}?</m(?P=kind)>"
    rf"|sqrt\b[^<>]{{0,200}}>\s*(?P<root>(?:{_LEAF}|<mrow\b[^<>]{{0,200}}>\s*(?:{_LEAF}){{1,12}}</mrow>\s*){{1,12}})</msqrt>)",
    re.IGNORECASE,
)
DONE = re.compile(r"</?mdone>")
"""Around what was a formula, until the formula around it is written too."""
MAX_NESTED = 6
"""Raised text within raised text, and formulas within formulas."""
STYLED = re.compile(
    r"<(span|small|font|i|b|em)\b(?=[^<>]{0,500}?(?:class\s*=\s*[\"']?[^\"'<>]{0,200}?(?<![^\W_])su(?P<named>[pb])(?:erscript|script)?(?![\w-])"
    r"|vertical-align\s*:\s*(?:text-)?(?:su(?P<styled>per|b))))[^<>]{0,500}>([^<>]{1,20})</\1\s*>",
    re.IGNORECASE,
)
SOURCE_OF_MATH = re.compile(r"<annotation\b[^<>]{0,200}>[^<>]{0,2000}</annotation>", re.IGNORECASE)
SUPERSCRIPTS = str.maketrans("0123456789+-−–=()nixy", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿⁱˣʸ")
SUBSCRIPTS = str.maketrans("0123456789+-−–=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋₌₍₎")
RAISABLE = re.compile(r"[0-9+\-−–=()nixy]+")
LOWERABLE = re.compile(r"[0-9+\-−–=()]+")
TERM = re.compile(r"[+\-−–·×*/=()]")
"""A sign of a sum, product or derivative."""
BRACKETED = re.compile(r"\[[^\[\]]{1,40}\]|\((?:\d{1,3}|[a-z])\)")
SIGNS = re.compile(r"[*†‡§¶‖#\s]+")
NUMBERS = re.compile(r"\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*")
NOTE = re.compile(r"\b(?:reference|footnote|noteref|fnref|endnote|cite)", re.IGNORECASE)
"""In the class, the id or the address of what leads to a footnote."""
ORDINALS = frozenset("aoerdº")
"""Letters that are raised behind a number in Romance languages: 1o, 2a, 3e."""
CUT_TAG = re.compile(r"\A[^<>]*>")
REACH = 80
"""Characters of HTML before raised text in which the word stands that it belongs to."""
MIN_NOTED_WORD = 4
"""Letters of a word that has no exponent; units (`km`, `san`) and variables are shorter."""
NOTED = re.compile(rf"[^\W\d_]{{{MIN_NOTED_WORD}}}\Z")
BEHIND_SENTENCE = re.compile(
    r"(?:[^\W\d_][.,;:!?»”\"]|[\u0e00-\u0e7f\u1000-\u109f\u3001-\u30ff\u3400-\u9fff])\Z"
)
"""A sign behind a word, or a letter of a script without spaces: what is raised behind them is no exponent."""
DEGREES = re.compile(r"\s*[CFС]\b")
UNIT = re.compile(
    r"(?:met(?:er|re?|ro)s?|метр\w{0,3}|μέτρ\w{0,2}|متر|मीटर|feet|foot|fut|inch(?:es)?|дюйм\w{0,3}|miles?|yards?)\Z",
    re.IGNORECASE,
)
FUNCTION = re.compile(
    r"(?<![^\W\d_])(?:sin|cos|tan|cot|tg|ctg|sec|csc|sh|ch|th|log|lg|ln|exp)h?\Z", re.IGNORECASE
)
WORD = re.compile(r"[^\W\d_]{2,}\Z")
EXPONENTS = ("2", "3")
"""Exponents of units; any other number that stands behind a word is a footnote's."""
QUOTED, QUOTE_TAG = re.compile(r"<[qQ][ >]"), re.compile(r"<(/?)[qQ](?:\s[^<>]*)?>")
DELETING = ("<del", "<s>", "<strike", "<DEL", "<S>", "<STRIKE")
DELETED = re.compile(r"<(del|s|strike)\b[^<>]*+>((?:[^<]++|<(?!/?\1\b))*+)</\1\s*>", re.IGNORECASE)
"""Text that stands there crossed out, beside what replaces it."""
MAX_DELETED_CHARS = 2_000
"""A longer one is more likely a tag that is closed too late."""
RAISED_TAG = re.compile(
    r"<(?:[sS][uU][pPbB]|[mM](?:[sS][uU][pPbB]|[fF][rR][aA][cC]|[sS][qQ][rR][tT]|[rR][oO][oO][tT]))"
)
RAISED_NAME = re.compile(r"su[pb](?:(?:er)?script)?[\"' ]")
RAISED_STYLE = re.compile(r"vertical-align\s*:\s*(?:text-)?su")
"""Cheap questions before the search for what is raised: most pages have none of it."""


def rewrite_page(page: str) -> tuple[str, int]:
    """Rewrite a page with elements that extractors keep, marks of list items, and raised and lowered text as characters.

    Quoted text gets the marks that browsers draw, and deleted text goes: its characters are counted.
    """
    num_deleted = 0
    page = raised_as_text(page)
    if QUOTED.search(page):
        page = QUOTE_TAG.sub(lambda match: "”" if match[1] else "“", page)
    if any(map(page.__contains__, DELETING)):
        for match in DELETED.finditer(page):
            num_deleted += len(_text(match[2])) if _is_deleted(match) else 0
        page = DELETED.sub(lambda match: "" if _is_deleted(match) else match[0], page)
    if "<button" in page or "<BUTTON" in page:
        page = BUTTON.sub(_button, page)
    if ASKED.search(page):
        page = LOCAL_LINK.sub(_local_link, page)
    return TAGS.sub(_rewritten, page.replace("aria-expanded", "data-expanded")), num_deleted


def _is_deleted(match: re.Match[str]) -> bool:
    return len(match[2]) <= MAX_DELETED_CHARS


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


def raised_as_text(page: str) -> str:
    """Replace `sup`, `sub` and their like of MathML by characters."""
    if RAISED_NAME.search(page) or RAISED_STYLE.search(page):
        page = STYLED.sub(
            lambda match: "<{0}>{1}</{0}>".format(
                "sup" if (match["named"] or match["styled"]).lower() in ("p", "per") else "sub", match[4]
            ),
            page,
        )
    if not RAISED_TAG.search(page):
        return page
    page = SOURCE_OF_MATH.sub("", page)
    for _ in range(MAX_NESTED):
        page, num_replaced = MATH.subn(_from_math, page)
        if not num_replaced:
            break
    page = FRACTION.sub(_fraction, DONE.sub("", page))
    has_notes = any(
        match[1].lower() == "sup" and _plain_text(match[3]) == "1" and _is_noted(_before(match))
        for match in RAISED.finditer(page)
    )
    for _ in range(MAX_NESTED):
        page, num_replaced = RAISED.subn(lambda match: _as_text(match, has_notes=has_notes), page)
        if not num_replaced:
            break
    return page


def _from_math(match: re.Match[str]) -> str:
    kind = (match["kind"] or "sqrt").lower()
    parts = [_plain_text(DONE.sub("", part)) for part in match.groups()[1:4] if part]
    if kind == "sqrt":
        text = f"√{_in_brackets(_plain_text(match['root']))}"
    elif kind == "frac":
        text = "/".join(map(_in_brackets, parts))
    elif kind == "root":
        text = f"{_raised(parts[1]).removeprefix('^')}√{_in_brackets(parts[0])}"
    else:
        below = "" if kind == "sup" else parts[1]
        text = parts[0] + (below.translate(SUBSCRIPTS) if LOWERABLE.fullmatch(below) else below)
        text += _raised(parts[-1]) if kind != "sub" else ""
    return f"<mdone>{html.escape(text, quote=False)}</mdone>"


def _raised(text: str) -> str:
    if RAISABLE.fullmatch(text):
        return text.translate(SUPERSCRIPTS)
    return f"^{_in_brackets(text)}"


def _in_brackets(term: str) -> str:
    return term if all(sign.isalpha() or sign.isdecimal() for sign in term) else f"({term})"


def _fraction(match: re.Match[str]) -> str:
    whole, over, below = match.groups()
    vulgar = VULGAR.get(f"{over}/{below}")
    return f"{whole}{vulgar}" if vulgar else f"{whole} {over}/{below}".lstrip()


def _as_text(match: re.Match[str], *, has_notes: bool) -> str:
    """Return raised or lowered text as characters; nothing of the mark of a footnote."""
    text, before = _plain_text(match[3]), _before(match)
    if _is_mark(match, text, before, has_notes=has_notes):
        return ""
    if match[1].lower() == "sub":
        is_by_digit = before[-1:].isdigit() or match.string[match.end() : match.end() + 1].isdigit()
        return text.translate(SUBSCRIPTS) if is_by_digit and LOWERABLE.fullmatch(text) else text
    if text in ("o", "O") and before[-1:].isdigit() and DEGREES.match(match.string, match.end()):
        return "°"
    is_letter = len(text) == 1 and text.isalpha() and text not in ORDINALS
    is_variable = before[-1:].isalpha() and not before[-2:-1].isalpha()
    is_quantity = before[-1:].isdigit() or before[-1:] == ")" or is_variable
    is_power = (
        any(map(str.isdigit, text))
        or ((is_letter or TERM.search(text)) and is_quantity)
        or text in ("+", "-", "−", "–")
    )
    return _raised(text) if is_power else text


def _is_mark(match: re.Match[str], text: str, before: str, *, has_notes: bool) -> bool:
    """Return whether raised text leads to a footnote."""
    if text.startswith("(") and before[-1:].isalpha() and not before[-2:-1].isalpha():
        return False  # the derivative of a function
    if not text or BRACKETED.fullmatch(text) or SIGNS.fullmatch(text) or NOTE.search(match[2]):
        return True
    if "href" in match[3].lower():
        return True
    if match[1].lower() == "sub" or not NUMBERS.fullmatch(text):
        return False
    is_list = not text.isdigit() and before[-2:].isalpha()
    return (
        is_list
        or bool(BEHIND_SENTENCE.search(before))
        or (text not in EXPONENTS and _is_word(before, min_letters=2 if text == "1" else 3))
        or (has_notes and _is_noted(before) and not UNIT.search(before))
    )


def _is_word(before: str, *, min_letters: int) -> bool:
    """Return whether a word stands before raised text that has no exponent but 2 and 3."""
    word = WORD.search(before)
    return word is not None and len(word[0]) >= min_letters and not FUNCTION.search(before)


def _is_noted(before: str) -> bool:
    """Return whether what stands before raised text may have a footnote, and no exponent."""
    return bool(NOTED.search(before) or BEHIND_SENTENCE.search(before))


def _before(match: re.Match[str]) -> str:
    # A tag may be cut off where the reach begins.
    reach = match.string[max(0, match.start() - REACH) : match.start()]
    return html.unescape(SHORT_TAG.sub("", CUT_TAG.sub("", reach)))


def _plain_text(marked: str) -> str:
    return html.unescape(SHORT_TAG.sub("", marked)).strip()
