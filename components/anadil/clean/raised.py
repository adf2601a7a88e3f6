"""Raised and lowered text of a page as characters: 10<sup>5</sup> is 10⁵, not 105; marks of footnotes go."""

import html
import re

RAISED = re.compile(
    r"<(su[pb])\b([^<>]{0,500})>((?:(?!</?su[pb]\b).){0,300}?)</\1\s*>", re.IGNORECASE | re.DOTALL
)
TAG = re.compile(r"<[^<>]{0,500}>")
FRACTION = re.compile(
    r"(\d?)\s*<sup\b[^<>]{0,200}>\s*(\d{1,9})\s*</sup>\s*(?:[/⁄∕]|&frasl;|&#8260;)\s*<sub\b[^<>]{0,200}>\s*(\d{1,9})\s*</sub>",
    re.IGNORECASE,
)
VULGAR = {
    "1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "2/5": "⅖", "3/5": "⅗", "4/5": "⅘",
    "1/6": "⅙", "5/6": "⅚", "1/8": "⅛", "3/8": "⅜", "5/8": "⅝", "7/8": "⅞",
}  # fmt: skip
_LEAF = r"<m[a-z]+\b[^<>]{0,200}>[^<>]{0,50}</m[a-z]+>\s*"
_PART = rf"({_LEAF}|<mrow\b[^<>]{{0,200}}>\s*(?:{_LEAF}){{1,8}}</mrow>\s*)"
MATH = re.compile(rf"<m(sup|sub|frac)\b[^<>]{{0,200}}>\s*{_PART}{_PART}</m\1>", re.IGNORECASE)
SOURCE_OF_MATH = re.compile(r"<annotation\b[^<>]{0,200}>[^<>]{0,2000}</annotation>", re.IGNORECASE)

SUPERSCRIPTS = str.maketrans("0123456789+-−=()nix", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱˣ")
SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
RAISABLE = re.compile(r"[0-9+\-−=()nix]+")
LOWERABLE = re.compile(r"[0-9+\-−=()]+")
BRACKETED = re.compile(r"\[[^\[\]]{1,40}\]|\((?:\d{1,3}|[a-z])\)")
SIGNS = re.compile(r"[*†‡§¶‖#\s]+")
NUMBERS = re.compile(r"\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*")
"""Numbers of footnotes."""
NOTE = re.compile(r"\b(?:reference|footnote|noteref|fnref|endnote|cite)", re.IGNORECASE)
"""In the class, the id or the address of what leads to a footnote."""
ORDINALS = frozenset("aoerdº")
"""What is raised behind a number in Romance languages: 1o, 2a, 3e."""
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
RAISED_TAG = re.compile(r"<(?:[sS][uU][pPbB]|[mM](?:[sS][uU][pPbB]|[fF][rR][aA][cC]))\b")


def raised_as_text(page: str) -> str:
    """The page without `sup`, `sub` and their like of MathML: what they say is in the characters."""
    if not RAISED_TAG.search(page):
        return page
    page = MATH.sub(_from_math, SOURCE_OF_MATH.sub("", page))
    page = FRACTION.sub(_fraction, page)
    has_notes = any(
        match[1].lower() == "sup" and _text(match[3]) == "1" and _is_noted(_before(match))
        for match in RAISED.finditer(page)
    )
    return RAISED.sub(lambda match: _as_text(match, has_notes=has_notes), page)


def _from_math(match: re.Match[str]) -> str:
    kind, base, other = match[1].lower(), _text(match[2]), _text(match[3])
    if kind == "frac":
        return f"{_in_brackets(base)}/{_in_brackets(other)}"
    return f"{base}<{kind}>{other}</{kind}>"


def _in_brackets(term: str) -> str:
    return term if term.isalnum() else f"({term})"


def _fraction(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    vulgar = VULGAR.get(f"{above}/{below}")
    return f"{whole}{vulgar}" if vulgar else f"{whole} {above}/{below}".lstrip()


def _as_text(match: re.Match[str], *, has_notes: bool) -> str:
    """Raised or lowered text as characters; nothing of the mark of a footnote."""
    text, before = _text(match[3]), _before(match)
    if _is_mark(match, text, before, has_notes=has_notes):
        return ""
    if match[1].lower() == "sub":
        is_by_digit = before[-1:].isdigit() or match.string[match.end() : match.end() + 1].isdigit()
        return text.translate(SUBSCRIPTS) if is_by_digit and LOWERABLE.fullmatch(text) else text
    if text in ("o", "O") and before[-1:].isdigit() and DEGREES.match(match.string, match.end()):
        return "°"
    is_letter = len(text) == 1 and text.isalpha() and text not in ORDINALS
    is_power = (
        any(map(str.isdigit, text)) or (is_letter and _ends_in_quantity(before)) or text in ("+", "-", "−")
    )
    if not is_power:
        return text
    if RAISABLE.fullmatch(text):
        return text.translate(SUPERSCRIPTS)
    return f"^{text}" if text.isalnum() else f"^({text})"


def _is_mark(match: re.Match[str], text: str, before: str, *, has_notes: bool) -> bool:
    """Whether raised text leads to a footnote."""
    attributes, inner = match[2], match[3]
    if text.startswith("(") and before[-1:].isalpha() and not before[-2:].isalpha():
        return False  # the derivative of a function
    if not text or BRACKETED.fullmatch(text) or SIGNS.fullmatch(text) or NOTE.search(attributes):
        return True
    if "href" in inner.lower():
        return True
    if match[1].lower() == "sub" or not NUMBERS.fullmatch(text):
        return False
    is_list = not text.isdigit() and before[-2:].isalpha()
    return is_list or bool(BEHIND_SENTENCE.search(before)) or (has_notes and _is_noted(before))


def _is_noted(before: str) -> bool:
    """Whether what stands before raised text may have a footnote, and no exponent."""
    return bool(NOTED.search(before) or BEHIND_SENTENCE.search(before))


def _ends_in_quantity(before: str) -> bool:
    """Whether a number or a variable stands before."""
    return (
        before[-1:].isdigit() or before[-1:] == ")" or (before[-1:].isalpha() and not before[-2:-1].isalpha())
    )


def _before(match: re.Match[str]) -> str:
    """The text that stands directly before; a tag may be cut off where the reach begins."""
    reach = match.string[max(0, match.start() - REACH) : match.start()]
    return html.unescape(TAG.sub("", CUT_TAG.sub("", reach)))


def _text(marked: str) -> str:
    return html.unescape(TAG.sub("", marked)).strip()
