r"""Undo line feeds, letters and tags that a program has written out: `\n`, `&uuml;`, `<br>`.

They are undone where nothing else explains them. A text on programming mentions them too: between spaces, quotation
marks or brackets, or once.
"""

import html
import re
from collections.abc import Callable
from html.entities import name2codepoint
from typing import NamedTuple

from anadil.text.sentences import CLOSERS, TERMINALS

MIN_CLEAR = 2
"""Signs that stand where no text on programming has them; one alone may be chance."""
MIN_CLEAR_SHARE = 0.5
"""Least share of these among all escapes of a text."""
MIN_LETTERS = 3
"""Escaped letters of a text that is ASCII otherwise."""
MAX_ROUNDS = 3
"""Times that a text is escaped at most; what is left then is counted."""
FEED = re.compile(r"\\+r\\+n|\\+n|\\+[rt](?![a-z])|/(?<![\w/]/)n(?![a-z])|_x000[9AD]_|\[br ?/?\]")
"""A written line feed or tab: of JSON, escaped once or more, with the wrong slash, of Office Open XML, of forums.

All ways begin with a character, which `re` looks for five times as fast.
"""
QUOTED = re.compile(r'"(?<!\\")(?:[^"\\\n]|\\.){0,300}"|`[^`\n]{0,300}`|\'(?<=[(\[=, ]\')[^\'\n]{0,80}\'')
"""Strings of programs."""
QUOTE = re.compile(r"\\+\"")
CLEAR_QUOTE = re.compile(r"(?:(?<=[\s(])|\A)\\+\"(?=\w)|(?<=[\w.!?,…])\\+\"(?=[\s.,;:!?)…]|\Z)")
LETTER = re.compile(r"\\u[0-9a-fA-F]{4}")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([nrtbf\"/\\]))")
MEANINGS = {"n": "\n", "r": "\r", "t": "\t", "b": "", "f": "\n", '"': '"', "/": "/", "\\": "\\"}
BLOCKS = (
    "address|article|aside|blockquote|body|br|caption|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|"
    "head|header|hr|html|li|main|nav|ol|p|pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
"""Elements that end a line. Source: HTML Standard, "Rendering", flow content and tables."""
MARKER = r"<(?:!--.{0,500}?-->|\|\w{1,30}\|>|/?s>|(?:bos|eos|pad|unk)>)"
"""Comments, and tokens with which tokenizers begin and end a text."""
TAG = re.compile(
    rf"<(?i:/?(?:{BLOCKS}|a|abbr|b|big|center|cite|code|del|dfn|em|font|i|img|ins|kbd|mark|q|small|span|strike|strong|sub|sup|"
    r"td|th|time|tt|u|var|wbr)"
    r"(?:\s+[a-z-]{1,30}\s*=\s*(?:\"[^\"<>]{0,500}\"|'[^'<>]{0,500}'|[^\s\"'<>]{1,500})){0,20}\s*/?>"
    rf"|{MARKER[1:]})"
)
BREAK = re.compile(rf"</?(?:{BLOCKS})\b[^<>]*>|{MARKER}", re.IGNORECASE)
ENTITY = re.compile(
    rf"&(?:{'|'.join([*name2codepoint, 'apos', 'inodot'])}|[a-z]caron|#\d{{2,5}}|#x[0-9a-f]{{2,5}});",
    re.IGNORECASE,
)
CLEAR_ENTITY = re.compile(
    rf"(?<=[\w.!?,»]){ENTITY.pattern}|{ENTITY.pattern}(?=[\w&])|(?<=[\w.!?,»] )&(?:amp|[nm]dash|minus|bull|middot|hellip);(?= \w)",
    re.IGNORECASE,
)
HINTS = {"\\": "\\", "&": "&", "<": "<", "/": "/n", "_": "_x000", "[": "[br"}
"""One stands in each escape, and its first character in few texts: a search for one letter takes a third of that for two."""
FEED_HINTS = ("\\", "/n", "_x000", "[br")


def _between_sentences(sign: str, blank: str = r"[^\S\n]") -> str:
    """Return a pattern of signs behind the end of a sentence and before the next one, with or without blanks."""
    end = f"[{re.escape(TERMINALS + CLOSERS)}]"
    return rf"(?<={end}){blank}*(?:{sign})(?:{blank}*(?:{sign}))*{blank}*(?=[^\W\d_a-z]|[«“„¿¡]|[—–-]\s)"


BETWEEN = re.compile(_between_sentences(FEED.pattern) + "|_x000[9AD]_")
"""Where nobody writes about line feeds: one such is certain."""
CLEAR_FEED = re.compile(
    r"(?<=[^\s\\\"'`(\[{<=,+/:])(?<!\\r)(?:(?:\\+r)?\\+n)+(?:\\[t\"])?(?=[^\sa-z\\\"'`)\]}>=.,:;!?+%$])"
    rf"|(?<=[.!?…»”।۔。])(?:(?:\\r)?\\n)+(?=\w)|{BETWEEN.pattern}"
)
"""Between a word or the end of a sentence and the next one, without a space. `\\new` and `\\nabla` are paths and formulas."""
CLEAR_TAG = re.compile(
    rf"(?<=[\w.!?…,:;»”])(?:{TAG.pattern})+(?=[\w«“—–-])|\A\s*(?:{TAG.pattern})|(?:{TAG.pattern})\s*\Z"
    rf"|{_between_sentences(TAG.pattern)}|" + _between_sentences(MARKER, r"\s")
)


class _Kind(NamedTuple):
    """A kind of escapes; each pattern costs ten times as much as the one before, and most texts pass the first."""

    hints: tuple[str, ...]
    every: re.Pattern[str]
    clear: re.Pattern[str]
    """Where a text on programming has none."""

    def is_in(self, text: str) -> bool:
        """Return whether one stands where a text on programming has none."""
        has_hint = any(map(text.__contains__, self.hints))
        return bool(has_hint and self.every.search(text) and self.clear.search(text))

    def is_clear(self, text: str, least: int = MIN_CLEAR) -> bool:
        """Return whether enough of those in a text stand there."""
        has_hint = any(map(text.__contains__, self.hints))
        num_all = sum(1 for _ in self.every.finditer(text)) if has_hint else 0
        if num_all < least:
            return False
        num_clear = sum(len(self.every.findall(match[0])) for match in self.clear.finditer(text))
        return num_clear >= max(least, MIN_CLEAR_SHARE * num_all)


FEEDS, BETWEEN_SENTENCES = _Kind(FEED_HINTS, FEED, CLEAR_FEED), _Kind(FEED_HINTS, FEED, BETWEEN)
QUOTES = _Kind(("\\",), QUOTE, CLEAR_QUOTE)
TAGS = _Kind(("<",), TAG, CLEAR_TAG)
ENTITIES = _Kind(("&",), ENTITY, CLEAR_ENTITY)


class Unescaped(NamedTuple):
    """A text, and the state of its escapes."""

    text: str
    is_changed: bool
    is_doubtful: bool
    """Some are left that stand where nobody writes them."""


def undo_escapes(text: str) -> Unescaped:
    """Restore line feeds, letters and tags, where it is clear that a program has written them out."""
    if not any(first in text and hint in text for first, hint in HINTS.items()):
        return Unescaped(text, is_changed=False, is_doubtful=False)
    plain, without_strings = text, QUOTED.sub("", text)
    for _ in range(MAX_ROUNDS):
        before, plain = plain, _undone(plain, without_strings)
        if plain == before:
            break
        without_strings = QUOTED.sub("", plain)
    is_doubtful = any(kind.is_in(without_strings) for kind in (FEEDS, QUOTES, TAGS, ENTITIES))
    return Unescaped(plain, is_changed=plain != text, is_doubtful=is_doubtful)


def _undone(text: str, without_strings: str) -> str:
    # All of a text is as it stands in a file of JSON.
    if "\n" not in text and (
        FEEDS.is_clear(without_strings) or (text.isascii() and len(LETTER.findall(text)) >= MIN_LETTERS)
    ):
        text = ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else MEANINGS[match[2]], text)
        without_strings = QUOTED.sub("", text)
    if BETWEEN_SENTENCES.is_clear(without_strings, 1):
        text = _outside_strings(BETWEEN, lambda sign: "\t" if sign.rstrip().endswith("t") else "\n", text)
    if QUOTES.is_clear(without_strings):
        text = _outside_strings(QUOTE, lambda _: '"', text)
    if TAGS.is_clear(text):
        text = TAG.sub("", BREAK.sub("\n", text))
    if ENTITIES.is_clear(text):
        text = html.unescape(text)
    return text


def _outside_strings(pattern: re.Pattern[str], meaning: Callable[[str], str], text: str) -> str:
    either = re.compile(f"(?P<string>{QUOTED.pattern})|{pattern.pattern}")
    return either.sub(lambda match: match[0] if match["string"] else meaning(match[0]), text)
