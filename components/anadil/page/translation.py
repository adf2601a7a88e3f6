"""Pages, cards and words of the chat in the language of the reader.

A page is translated once, when it is rendered. Each text between two tags, or in a line or a cell of Markdown, is looked up
whole in `messages.tsv`, whose English may have placeholders. Views and templates stay English and know nothing of it:
they build sentences in a hundred places, in stages too, and gettext would need a mark at each. Elements with a `lang` or `dir` of their own, code, and texts between two `MARK` are what a model or a person wrote, and are
skipped. A sentence is translated only if each of its parts is known, so no sentence is half English. The page counts the
texts that stay English.
"""

import functools
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from anadil.core.table import HTML_SIGNS, markdown_cell

log = logging.getLogger(__name__)

MESSAGES = Path(__file__).parent / "messages.tsv"
ENGLISH = "en"
MARK = "\ue000"
"""Stands on both sides of a text of others in Markdown, which has no elements."""
PLACE = re.compile(r"\{([=%]?)\}")
KINDS = {"": "part", "=": "name", "%": "number"}
"""Sign within a placeholder -> what may stand there: a text that is translated too, a name or quotation, a number."""
HOLE = re.compile(r"\{(\d)\}")
TAG = re.compile(r"(<[^>]*>)")
ELEMENT = re.compile(r"</?([\w-]+)")
NAME = re.compile(r"\S*[^\s:;,.]")
"""A word without a message is a name, such as of a file."""
WORD = re.compile(r"[^\W\d_]+")
FEW_WORDS = 3
LABEL = re.compile(r'(aria-label|data-name)="([^"]*)"')
VOID = ("", "meta", "br", "img", "link", "input", "hr")
CODE = ("style", "pre", "code")
HEAD = re.compile(r"#+ |- |\*\*")
END = re.compile(r"\*\*$")
CELL = re.compile(r"(?<!\\)\|")
NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![.\d])|(?<![\w.,])\d+\.\d+(?![.\d])")
QUANTITY = re.compile(
    r"(?:[\W\d_]|e(?=[-\d])|(?<![^\W\d_])(?:s|ms|min|h|B|kB|MB|GB|TB|KiB|MiB|GiB|TiB|k|M|G|T|USD|x)(?![^\W\d_]))*"
)
"""Text of numbers, signs and units alone."""
SENTENCE = re.compile(r"(?<=[.?!]) ")
CLAUSE = "; "
SEPARATORS = ((SENTENCE, " "), *((re.compile(each), each) for each in (CLAUSE, ": ", ", ")))
"""Pattern and text of what English writes between sentences and items."""
ENGLISH_JOINED = tuple(text for _, text in SEPARATORS)
JOINED = {"ja": ("", "、", ": ", "、")}
"""Signs between sentences and items, of a language that has other signs than English."""
STOP = {"ja": "。"}
CELLS = "td, th { word-break: keep-all; }\n"
"""Style of a translated page. Otherwise narrow cells break Japanese behind each character."""
WIDE = 1.75
"""Width of a Japanese character, in Latin letters of the charts."""
MAX_PARTS = 24
"""Most parts of a text that are looked up together."""


def languages() -> list[str]:
    """Codes of the languages of the table, English first."""
    return _rows()[0]


def messages() -> Iterator[dict[str, str]]:
    """Yield each message: language -> text."""
    codes, *rows = _rows()
    return (dict(zip(codes, row, strict=True)) for row in rows)


def _rows() -> list[list[str]]:
    lines = MESSAGES.read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def html(page: str, reader: str) -> str:
    """Return a page for its reader, with a note on what stays English."""
    texts, skipped = Translation(reader, lambda text: text.translate(HTML_SIGNS)), [False]
    parts = []
    for part in TAG.split(page.replace(f'<html lang="{ENGLISH}">', "<html>", 1)):
        if not part.startswith("<"):
            parts.append(part if skipped[-1] else texts.node(part))
            continue
        name = match[1].lower() if (match := ELEMENT.match(part)) else ""
        if part.startswith("</"):
            skipped.pop()
        elif name not in VOID and not part.endswith("/>"):
            skipped.append(skipped[-1] or name in CODE or " lang=" in part or " dir=" in part)
        parts.append(LABEL.sub(lambda each: f'{each[1]}="{texts.node(each[2])}"', part))
    notes = "".join(f'<p lang="{code}">{note}</p>' for code, note in texts.notes())
    text = "".join(parts).replace("<html>", f'<html lang="{reader}">', 1)
    return text.replace("</style>", f"{CELLS}</style>", 1).replace("</footer>", f"{notes}</footer>")


def markdown(text: str, reader: str) -> str:
    """Return a text in Markdown for its reader, with a note on what stays English."""
    texts = Translation(reader, markdown_cell)
    fences, lines = ("---", "```"), []
    fence = ""
    for place, line in enumerate(text.split("\n")):
        opens = line[:3] in fences and (place == 0 or line.startswith("```"))
        if fence or opens:
            fence = "" if fence and line.startswith(fence) else fence or line[:3]
            lines.append(line)
        elif line.startswith("|"):
            lines.append("|".join(map(texts.node, CELL.split(line))))
        else:
            head, end = HEAD.match(line), END.search(line)
            begin, stop = head.end() if head else 0, end.start() if end else len(line)
            lines.append(line[:begin] + texts.node(line[begin:stop]) + line[stop:])
    notes = "".join(f"\n{note}\n" for _, note in texts.notes())
    return "\n".join(lines).replace(MARK, "") + notes


@functools.cache
def _patterns(english: str) -> list[re.Pattern[str]]:
    """Patterns of a message with placeholders. Their ends are the first or the last place of the words behind."""
    first, *rest = PLACE.split(english)
    # A message of few words would match by accident a quotation that holds a list or a sentence.
    any_sign = {
        "=": "." if len(WORD.findall(english)) >= FEW_WORDS else r"(?![.?!;:,]( |$)).",
        "": ".",
        "%": ".",
    }
    regex = re.escape(first) + "".join(
        f"(?P<{KINDS[kind]}{number}>(?:{any_sign[kind]})+?){re.escape(literal)}"
        for number, (kind, literal) in enumerate(zip(rest[::2], rest[1::2], strict=True))
    )
    return [re.compile(each, re.DOTALL) for each in dict.fromkeys([regex, regex.replace("+?)", "+)")])]


def _holds_clauses(english: str, parts: list[str]) -> bool:
    """True if a part at an end of a message of one clause holds further clauses."""
    ends = [*(parts[:1] if english.startswith("{") else []), *(parts[-1:] if english.endswith("}") else [])]
    return CLAUSE not in english and any(CLAUSE in part for part in ends)


class Translation:
    """The messages of one language, and a count of the texts that have none."""

    def __init__(self, reader: str, escape: Callable[[str], str] = str) -> None:
        """Read the messages.

        Args:
            reader: Code of the language, a column of the table.
            escape: How values are written in the text. Templates hold their words as they are.
        """
        self.reader, self.num_texts, self.missing = reader, 0, list[str]()
        pairs = [(each[ENGLISH], each[reader]) for each in messages()]
        pairs = list(dict.fromkeys([*pairs, *((escape(one), escape(other)) for one, other in pairs)]))
        self._exact = {english: text for english, text in pairs if not PLACE.search(english)}
        rest = sorted(pairs, key=lambda each: -len(PLACE.sub("", each[0])))
        self._patterns = [
            (max(PLACE.split(one)[::2], key=len), one, text) for one, text in rest if PLACE.search(one)
        ]
        self.known = functools.cache(self._known)

    def node(self, text: str) -> str:
        """Translate a whole text, which stays as it is if it is not known; blanks round it stay."""
        core = text.strip()
        if not core:
            return text
        translated = self.known(core)
        # A single word without a message is a name.
        if " " in core and not QUANTITY.fullmatch(core):
            self.num_texts += 1
            if translated is None:
                self.missing.append(core)
        return text if translated is None else text.replace(core, translated)

    def letters(self, label: str) -> float:
        """Width of the translated label, in letters."""
        text = self.known(label) or label
        return sum(WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)

    def notes(self) -> list[tuple[str, str]]:
        """(language, sentences) on the translation, for the end of a page: the reader's, then English."""
        english = "No native speaker has read this translation."
        if self.missing:
            log.info("%d texts have no translation, the first: %s", len(self.missing), self.missing[0])
            english += f" {len(self.missing):,} of {self.num_texts:,} texts have none and stay English."
        return [(self.reader, self.known(english) or english), (ENGLISH, english)]

    def _known(self, text: str) -> str | None:
        if text in self._exact:
            return self._exact[text]
        if text.endswith(".") and text[:-1] in self._exact:
            return self._exact[text[:-1]] + STOP.get(self.reader, ".")
        if text.startswith(MARK) and text.find(MARK, 1) == len(text) - 1:
            return text
        if QUANTITY.fullmatch(text):
            return self._number(text)
        return (
            self._matched(text)
            or self._recased(text)
            or self._joined(text)
            or (text if NAME.fullmatch(text) else None)
        )

    def _number(self, text: str) -> str:
        if self.reader != "az":
            return text
        return NUMBER.sub(lambda each: each[0].replace(",", "\xa0").replace(".", ","), text)

    def _matched(self, text: str, *, like: str = "") -> str | None:
        """Fill the longest message whose placeholders hold known texts. Its first letter has the case of `like`."""
        for longest, english, translation in self._patterns:
            for pattern in _patterns(english) if longest in text else ():
                match = pattern.fullmatch(text)
                if not match or _holds_clauses(english, [*match.groupdict().values()]):
                    continue
                parts = [self._part(*each) for each in match.groupdict().items()]
                if None in parts:
                    continue
                filled = HOLE.sub(lambda hole, parts=parts: parts[int(hole[1]) - 1], translation)  # type: ignore[misc]
                first = HOLE.match(translation)
                if first and [*match.groupdict()][int(first[1]) - 1].startswith("name"):
                    return filled
                return self._cased(filled, like or (text if first and text[0].isupper() else filled))
        return None

    def _part(self, kind: str, text: str) -> str | None:
        if kind.startswith("name"):
            return text
        if kind.startswith("number"):
            return self._number(text) if QUANTITY.fullmatch(text) and not text.endswith(".") else None
        # A sentence within a part is a match by accident.
        return None if SENTENCE.search(f"{text} ") else self.known(text)

    def _recased(self, text: str) -> str | None:
        """Translate a text by the message with another case of its first letter."""
        other = (text[0].lower() if text[0].isupper() else text[0].upper()) + text[1:]
        if other in self._exact:
            return self._cased(self._exact[other], text)
        return self._matched(other, like=text)

    def _cased(self, text: str, like: str) -> str:
        """Give a text the case of another's first letter."""
        if not like[0].isalpha() or text[0].isupper() == like[0].isupper():
            return text
        if self.reader == "az" and text[0] in "iİ":
            return ("İ" if text[0] == "i" else "i") + text[1:]
        return (text[0].upper() if like[0].isupper() else text[0].lower()) + text[1:]

    def _joined(self, text: str) -> str | None:
        """Translate sentences, or items of a list, as many together as one message has."""
        for (separator, between), mark in zip(
            SEPARATORS, JOINED.get(self.reader, ENGLISH_JOINED), strict=True
        ):
            parts = separator.split(text)
            if 1 < len(parts) <= MAX_PARTS and (items := self._items(parts, between)):
                return mark.join(items)
        if text.endswith(".") and (sentence := self.known(text[:-1])):
            return sentence + STOP.get(self.reader, ".")
        return None

    def _items(self, parts: list[str], between: str) -> list[str]:
        """Translations of all parts, or nothing."""
        items, begin = [], 0
        while begin < len(parts):
            for end in range(len(parts) - (begin == 0), begin, -1):
                text = between.join(parts[begin:end])
                item = self.known(text) if end == begin + 1 else self._exact.get(text) or self._matched(text)
                if item is not None:
                    items.append(item)
                    begin = end
                    break
            else:
                return []
        return items
