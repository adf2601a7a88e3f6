"""Write raised and lowered text of a page as characters: 10<sup>5</sup> is 10⁵, not 105; marks of footnotes go."""

import html
import re

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
"""Elements that are raised by class or style."""
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
"""Numbers of footnotes."""
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
RAISED_TAG = re.compile(
    r"<(?:[sS][uU][pPbB]|[mM](?:[sS][uU][pPbB]|[fF][rR][aA][cC]|[sS][qQ][rR][tT]|[rR][oO][oO][tT]))"
)
RAISED_NAME = re.compile(r"su[pb](?:(?:er)?script)?[\"' ]")
RAISED_STYLE = re.compile(r"vertical-align\s*:\s*(?:text-)?su")
"""Cheap questions before the search for what is raised: most pages have none of it."""


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
    """Return an exponent as characters."""
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
