r"""Texts whose line feeds, letters or tags were written out by a program: `\n`, `&uuml;`, `<br>`.

They are undone where nothing else explains them. A text on programming mentions them too: between spaces, quotation
marks or brackets, or once.
"""

import html
import re
from typing import NamedTuple

MIN_CLEAR = 2
"""Signs that stand where no text on programming has them; one alone may be chance."""
MIN_CLEAR_SHARE = 0.5
"""Of all such signs of a text."""
MIN_LETTERS = 3
"""Escaped letters of a text that is ASCII otherwise."""
FEED = re.compile(r"(?:\\r)?\\n")
CLEAR_FEED = re.compile(
    r"(?<=[^\s\\\"'`(\[{<=,+/:])(?<!\\r)(?:(?:\\r)?\\n)+(?:\\[t\"])?(?=[^\sa-z\\\"'`)\]}>=.,:;!?+%$])"
    r"|(?<=[.!?…»”।۔。])(?:(?:\\r)?\\n)+(?=\w)"
)
"""Between a word or the end of a sentence and the next one, without a space. `\\new` and `\\nabla` are paths and formulas."""
QUOTED = re.compile(r'(?<!\\)"[^"\n]{0,300}(?<!\\)"|`[^`\n]{0,300}`|(?<=[(\[=, ])\'[^\'\n]{0,80}\'')
"""Strings of programs."""
LETTER = re.compile(r"\\u[0-9a-fA-F]{4}")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([nrtbf\"/\\]))")
MEANINGS = {"n": "\n", "r": "\r", "t": "\t", "b": "", "f": "\n", '"': '"', "/": "/", "\\": "\\"}
TAG = re.compile(
    r"</?(?:a|b|blockquote|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|small|span|strong|sub|sup|table|tbody|td|th|tr|u|ul)"
    r"(?:\s+[a-z-]{1,30}\s*=\s*(?:\"[^\"<>]{0,500}\"|'[^'<>]{0,500}'|[^\s\"'<>]{1,500})){0,20}\s*/?>",
    re.IGNORECASE,
)
BREAK = re.compile(r"</?(?:blockquote|br|div|h[1-6]|hr|li|ol|p|table|tr|ul)\b[^<>]*>", re.IGNORECASE)
CLEAR_TAG = re.compile(
    rf"(?<=[\w.!?…,:;»”])(?:{TAG.pattern})+(?=[\w«“—–-])|\A\s*{TAG.pattern}|{TAG.pattern}\s*\Z", re.IGNORECASE
)
ENTITY = re.compile(
    r"&(?:nbsp|amp|quot|apos|lt|gt|laquo|raquo|[lr][sd]quo|[nm]dash|hellip|shy|#\d{2,5}|#x[0-9a-f]{2,5}"
    r"|[a-z]{1,2}(?:uml|acute|grave|circ|tilde|cedil|caron|ring|slash|lig)|inodot|ntilde);",
    re.IGNORECASE,
)
CLEAR_ENTITY = re.compile(rf"(?<=[\w.!?,»]){ENTITY.pattern}|{ENTITY.pattern}(?=[\w&])", re.IGNORECASE)


class Unescaped(NamedTuple):
    """A text, and what became of its escapes."""

    text: str
    is_changed: bool
    """They were undone."""
    is_doubtful: bool
    """Some are left that stand where nobody writes them."""


def undo_escapes(text: str) -> Unescaped:
    """A text with its line feeds, letters and tags, where it is clear that a program has written them out."""
    if "\\" not in text and "&" not in text and "<" not in text:
        return Unescaped(text, is_changed=False, is_doubtful=False)
    plain = text
    if _is_escaped(plain):
        plain = ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else MEANINGS[match[2]], plain)
    if _is_clear(CLEAR_TAG, TAG, plain):
        plain = TAG.sub("", BREAK.sub("\n", plain))
    if _is_clear(CLEAR_ENTITY, ENTITY, plain):
        plain = html.unescape(plain)
    without_strings = QUOTED.sub("", plain)
    is_doubtful = any(pattern.search(without_strings) for pattern in (CLEAR_FEED, CLEAR_TAG, CLEAR_ENTITY))
    return Unescaped(plain, is_changed=plain != text, is_doubtful=is_doubtful)


def _is_escaped(text: str) -> bool:
    """Whether all of a text is as it stands in a file of JSON."""
    if "\n" in text or "\\" not in text:
        return False
    return _is_clear(CLEAR_FEED, FEED, QUOTED.sub("", text)) or (
        text.isascii() and len(LETTER.findall(text)) >= MIN_LETTERS
    )


def _is_clear(clear: re.Pattern[str], every: re.Pattern[str], text: str) -> bool:
    num_clear = sum(1 for _ in clear.finditer(text))
    return num_clear >= MIN_CLEAR and num_clear >= MIN_CLEAR_SHARE * sum(1 for _ in every.finditer(text))
