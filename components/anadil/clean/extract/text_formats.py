"""Find out what a field of text is written in, and take the text out of it: pages, wikitext, BBCode, subtitles, lyrics, pages of PDF.

Most texts are prose. They pay for a few searches for a sign that each format has.
"""

import functools
import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anadil.clean.extract import light_markup
from anadil.clean.extract.escapes import BREAK
from anadil.clean.extract.text_markup import is_tex, of_rtf, of_tex, without_links
from anadil.clean.kernels.characters import ENDED

PAGE, INLINE_TAGS, PDF_PAGES = "page", "inline_tags", "pdf_pages"
PAGE_TAG = re.compile(
    r"<(?:!doctype\s+html|html|head|body|meta|title|script|style|nav|header|footer|article|main|aside|section|iframe|noscript|form)\b",
    re.IGNORECASE,
)
"""Elements of pages, not of a fragment whose tags `escapes` removes."""
BEFORE_PAGE = re.compile(r"\s*(?:HTTP/[\d.]+ \d{3}[^<]{0,20000}?\r?\n\r?\n\s*)?<")

BASE64 = ("iVBORw0K", "/9j/4", "R0lGODlh", "JVBERi0", "UEsDB")
"""With what pictures, PDF and archives begin in base64."""
DATA_ADDRESS = r"data:(?:image|audio|video|application|font)/[\w.+-]{1,60}[^\s)\"'<>\]]{40,}(?:\n[A-Za-z0-9+/]{40,}={0,2}(?=[\s)\"']|\Z))*"
PICTURE = re.compile(
    rf"!?\[[^\[\]\n]{{0,500}}\]\(\s*<?{DATA_ADDRESS}>?[^)\n]{{0,300}}\)|<img\b[^<>]*?{DATA_ADDRESS}[^<>]*>"
    rf"|^(?:{'|'.join(BASE64)})[A-Za-z0-9+/]{{52,}}(?:\n[A-Za-z0-9+/]{{60,}})*(?:\n[A-Za-z0-9+/]{{1,120}}={{0,2}}(?=\s|\Z))?={{0,2}}$"
    rf"|^\[[^\[\]\n]{{1,100}}\]:[^\S\n]*<?{DATA_ADDRESS}.*$|(?:url\(\s*[\"']?)?{DATA_ADDRESS}(?:[\"']?\))?",
    re.MULTILINE | re.IGNORECASE,
)
"""A file that is written out where its address should be: in Markdown, in a tag, by itself."""

TIME = r"(?:\d{1,3}:)?\d{1,3}:\d{2}(?:[.,:]\d{1,3})?"
CUE = re.compile(
    rf"^[^\S\n]*(?:(\[)?{TIME}[^\S\n]*-->[^\S\n]*{TIME}(?(1)\])|{TIME}[.,]\d+,{TIME}$|\{{\d+\}}\{{\d+\}}|Dialogue:(?:[^,\n]*,){{9}}"
    r"|(?:\d+:)?\d{1,2}:\d\d$)",
    re.MULTILINE,
)
"""Beginning of a cue: SubRip, WebVTT, Whisper's output in brackets, SBV, MicroDVD, Sub Station Alpha, and the times of a film page."""
ARROW = re.compile(rf"^[^\S\n]*{TIME}.*$")
CUE_BLOCK = re.compile(
    r"^(?:WEBVTT|NOTE|STYLE|REGION)\b.*(?:\n.+)*|^\[(?:Script Info|V4\+? Styles|Events|Fonts|Graphics)\]$|^Format:.*$|^Style:.*$",
    re.MULTILINE,
)
CUE_TAG = re.compile(
    r"</?(?:[ibus]|em|strong|font|ruby|rt|[cv]|lang)\b[^<>\n]{0,200}>|<\d[\d:.]{3,15}>|\{\\[^{}\n]{1,200}\}",
    re.IGNORECASE,
)
"""Beside the tags of SubRip and WebVTT, what Sub Station Alpha writes for them."""
LYRIC = re.compile(rf"^[^\S\n]*(?:\[{TIME}\][^\S\n]*)+", re.MULTILINE)
LYRIC_HEAD = re.compile(
    r"^\[(?:ar|ti|al|au|by|re|ve|length|offset|la|id|#):?[^\]\n]*\]$", re.MULTILINE | re.IGNORECASE
)
MIN_CUES, MAX_CUE_LINES = 2, 8
"""Least cues of a text, and most lines for each: an article on subtitles shows one."""

BB_TAG = re.compile(
    r"\[(/?)(b|i|u|s|url|img|quote|code|size|colou?r|font|center|left|right|justify|list|ul|ol|li|spoiler|hide|email|youtube|video|"
    r"media|attach(?:ment)?|table|tr|td|th|indent|sub|sup|h[1-6]|user|highlight|align)(?:[= ][^\[\]\n]{0,500})?\]",
    re.IGNORECASE,
)
BB_DROPPED = re.compile(
    r"\[(img|youtube|video|media|attach(?:ment)?)\b[^\[\]\n]{0,500}\][^\[\]]{0,2000}\[/\1\]|\[url\]\s*\S{1,2000}?\s*\[/url\]|\[/?\*\]",
    re.IGNORECASE,
)
BB_BLOCKS = ("quote", "code", "list", "ul", "ol", "li", "center", "table", "tr", "spoiler", "indent")

WIKI_LINK = re.compile(r"\[\[(?![\s'\"(])(?=[^\[\]{}$=]*[^\W\d_])[^\[\]\n{}$=]{2,300}\]\]")
WIKI_SIGNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"\{\{[^{}\W][^{}]{0,2000}\}\}", r"(?<!')'''?'?(?!')[^'\n\"]{1,200}(?<!')'''?'?(?!')", r"^(==+)[^=\n]{1,200}\1[^\S\n]*$",
        r"<ref\b", r"^\{\|", r"^#(?:REDIRECT|YÖNLƏNDİRMƏ)\b",
    )
)  # fmt: skip
"""Templates, quotes for bold, headings, notes, tables, redirects."""
MIN_SIGNS = 2
"""Links, or signs of another kind. One alone may be of another language of programs."""
FENCE = "```"
"""Begins code in Markdown, in which a text on a format shows it."""
WIKI_DROPPED = re.compile(
    r"<!--.*?(?:-->|\Z)|<(ref|math|chem|gallery|timeline|score|syntaxhighlight|source|imagemap|templatestyles|references)\b"
    r"(?:[^<>]*/>|[^<>]*(?<!/)>.*?(?:</\1\s*>|(?=\n\s*\n)|\Z))|__[A-Z]+__",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
WIKI_TEMPLATE = re.compile(r"\{\{\{[^{}]*\}\}\}|\{\{[^{}]*\}\}")
WIKI_TABLE = re.compile(r"^[: \t]*\{\|(?:(?!^[: \t]*\{\|).)*?^[ \t]*\|\}", re.DOTALL | re.MULTILINE)
WIKI_INNER_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
WIKI_ADDRESS = re.compile(r"\[(?:https?|ftp)?:?//[^\s\[\]]+[^\S\n]*([^\[\]\n]*)\]")
WIKI_NAMESPACE = re.compile(r"\s*[^\W\d_][^:|\[\]]{1,30}:(?=\S)")
WIKI_HEADING = re.compile(r"^(==+)[^\S\n]*(.*?)[^\S\n]*\1[^\S\n]*$", re.MULTILINE)
EMPTY_SECTION = re.compile(r"^\x00.*\n(?:\s*\n)*(?=\x00|\Z)", re.MULTILINE)
MAX_ROUNDS = 30
"""Templates, tables and links within each other that are undone; what is deeper stays."""

EDGE_LINES = 2
"""Lines at the head and the foot of a page that may be its running head, foot or number."""
MIN_REPEATED = 3
"""Pages that have it; all pages, where there are fewer."""
DIGITS = re.compile(r"\d+")
PAGE_NUMBER = re.compile(r"[-–—|\s]*(?:\d{1,5}|[ivxlc]{1,7})[-–—|\s]*", re.IGNORECASE)


SIGNS = "[<>{\f\\"
"""One of them stands in each format, but for light markup, subtitles that begin with a time, addresses of data, and lines of a page."""
MIN_LINES, LINE_CHARS = 40, (40, 120)
"""Lines of a text that may stand in the lines of its pages, and characters that these have on average."""
MAX_HEAD_CHARS, MIN_HEAD_BYTES, MIN_PAGE_LINES = 100, 6, 10
NO_HEAD = re.compile(r"^[-*•–—|]\s|://|[:：|]$")
MIN_PARTED = 0.5
"""Share of the places of a running head where it parts a sentence. Headings and refrains part none."""
PARTS = {
    "rtf": re.compile(r"\\(?:(?:header|footer)[lrf]?|footnote|pict|object)(?![a-z])"),
    "tex": re.compile(
        r"\\(?:footnote(?:text)?|[Cc]ite[a-z]*)(?![a-z])|\\begin\{(?:figure|table|equation|align|verbatim|lstlisting)"
    ),
}
"""Notes, citations, heads and pictures, which are dropped and counted."""
NO_FORMATS: Counter[str] = Counter()


class Plain(NamedTuple):
    """Text without the format that it was written in."""

    text: str
    formats: Counter[str]
    """Formats that were undone, once each, and parts that were dropped."""


def is_page(text: str) -> bool:
    """Return whether a text is the source of a web page, with or without the head of a server's answer."""
    if "<" not in text:
        return False
    if not BEFORE_PAGE.match(text):
        return text[-40:].lower().rstrip().endswith("</html>")
    return bool(PAGE_TAG.search(text))


def without_format(text: str) -> Plain:
    """Take the text out of every format that it is in; a page is `is_page`'s."""
    # Letter by letter is the fastest search: prose has none of these.
    is_light = any(map(text.__contains__, light_markup.HINTS))
    has_sign = is_light or any(map(text.__contains__, SIGNS)) or text[:1].isdigit()
    if not (
        has_sign or _has_pictures(text) or _is_hard_wrapped(text) or light_markup.is_quoted_printable(text)
    ):
        return Plain(text, NO_FORMATS)
    undone = Counter[str]()
    for name, is_in, plain in FORMATS:
        if (is_light or name not in light_markup.MARKUPS) and is_in(text):
            before, text = text, plain(text)
            undone[name] += text != before
            undone[f"{name}_parts"] += len(PARTS[name].findall(before)) if name in PARTS else 0
    return Plain(text, +undone)


def without_tags(text: str) -> str:
    r"""Take the tags of subtitles out of a sentence: `<i>`, `{\an8}`."""
    if "<" not in text and "{\\" not in text and "&lt;" not in text:
        return text
    return CUE_TAG.sub("", text.replace("&lt;", "<").replace("&gt;", ">") if "&lt;/" in text else text)


def _has_pictures(text: str) -> bool:
    has_address = "data:" in text and ("base64," in text or "data:image" in text)
    return has_address or any(map(text.__contains__, BASE64))


def _is_subtitles(text: str) -> bool:
    is_timed = text.startswith(("{", "0:0", "00:0")) or (":" in text[:12] and "," in text[:30])
    if not (is_timed or "-->" in text or "\nDialogue:" in text):
        return False
    num_cues = sum(1 for _ in CUE.finditer(text))
    return num_cues >= MIN_CUES and MAX_CUE_LINES * num_cues >= sum(map(bool, text.split("\n")))


def _spoken(text: str) -> str:
    """Join the lines of cues to sentences: a cue ends where the screen does."""
    if text.startswith("{"):
        text = text.replace("|", "\n")
    lines = CUE_BLOCK.sub("", text).split("\n")
    cues = [CUE.match(line) for line in lines]
    sentences, shown, is_begun = list[str](), ["", ""], False
    for at, (line, cue) in enumerate(zip(lines, cues, strict=True)):
        said = line if cue is None else "" if ARROW.match(line) else line[cue.end() :]
        is_begun = is_begun or cue is not None
        is_before_cue = cue is None and at + 1 < len(lines) and cues[at + 1] is not None
        is_name = is_before_cue and (line.strip().isdigit() or not at or not lines[at - 1].strip())
        said = CUE_TAG.sub("", said).replace("\\N", " ").strip()
        # Captions that roll show each line twice.
        if not said or is_name or not is_begun or said in shown:
            continue
        shown = [shown[1], said]
        if sentences and not ENDED.search(sentences[-1]) and not said.startswith(("-", "–", "—")):
            sentences[-1] += f" {said}"
        else:
            sentences.append(said)
    return "\n".join(sentences)


def _sung(text: str) -> str:
    return CUE_TAG.sub("", LYRIC.sub("", LYRIC_HEAD.sub("", text))).strip()


def _is_bbcode(text: str) -> bool:
    if "[/" not in text or FENCE in text:
        return False
    tags = Counter(f"{slash}{name.lower()}" for slash, name in BB_TAG.findall(text))
    return any(tags[name] and tags[f"/{name}"] for name in tags if not name.startswith("/"))


def _without_bbcode(text: str) -> str:
    text = BB_DROPPED.sub(lambda match: "\n" if "*" in match[0] else "", text)
    return BB_TAG.sub(lambda match: "\n" if match[2].lower() in BB_BLOCKS else "", text).strip()


def _is_wikitext(text: str) -> bool:
    if ("[[" not in text and "{{" not in text) or FENCE in text:
        return False
    links = WIKI_LINK.finditer(text)
    num_signs = sum(1 for _ in zip(links, range(MIN_SIGNS), strict=False))
    return num_signs + sum(bool(sign.search(text)) for sign in WIKI_SIGNS) >= MIN_SIGNS


def _without_wikitext(text: str) -> str:
    text = WIKI_DROPPED.sub("", text)
    text = _repeated(WIKI_TEMPLATE, "", text)
    text = _repeated(WIKI_TABLE, "", text)
    text = _repeated(WIKI_INNER_LINK, lambda link: _link_text(link[1]), text)
    text = WIKI_ADDRESS.sub(r"\1", text)
    text = re.sub("'''''|'''|''", "", text)
    text = html.unescape(re.sub(r"</?[a-zA-Z][^<>\n]{0,500}>", "", BREAK.sub("\n", text)))
    # Sections of notes and links are empty now.
    text = _repeated(EMPTY_SECTION, "", WIKI_HEADING.sub("\x00\\2", text) + "\n").replace("\x00", "")
    # Marks of lists; what begins with a bar is left of a table.
    text = re.sub(r"^(?:[*#:;]+[^\S\n]*|\|.*$)", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(map(str.rstrip, text.split("\n")))).strip()


def _repeated(pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(MAX_ROUNDS):
        text, count = pattern.subn(by, text)
        if not count:
            break
    return text


def _link_text(link: str) -> str:
    """Return the words of a link; none of a category, a picture or another language's page."""
    target, *words = link.split("|")
    if not target.startswith(":") and WIKI_NAMESPACE.match(target) and len(words) != 1:
        return ""
    return words[-1] if words else target.removeprefix(":").partition("#")[0] or target


def _without_heads(text: str) -> str:
    """Take running heads, feet and numbers of pages away, and join the sentences that they part."""
    pages = [page.strip("\n").split("\n") for page in text.split("\f") if page.strip()]
    edges = [_edges(page) for page in pages]
    counts = Counter(
        key for page, places in zip(pages, edges, strict=True) for key in {_folded(page[at]) for at in places}
    )
    least = max(2, min(MIN_REPEATED, len(pages)))
    joined = ""
    for page, places in zip(pages, edges, strict=True):
        gone = {
            at
            for at in places
            if counts[_folded(page[at])] >= least or PAGE_NUMBER.fullmatch(page[at].strip())
        }
        rest = "\n".join(line for at, line in enumerate(page) if at not in gone).strip("\n")
        joined += ("\n\n" if ENDED.search(joined.rstrip()) else "\n") + rest if joined and rest else rest
    return joined


def _is_hard_wrapped(text: str) -> bool:
    num_lines = text.count("\n")
    return num_lines >= MIN_LINES and LINE_CHARS[0] <= len(text) / num_lines <= LINE_CHARS[1]


def _running_heads(lines: Sequence[str]) -> set[int]:
    """Return the lines that stand on each page of a text without marks of pages: heads, feet and numbers."""
    places = defaultdict[str, list[int]](list)
    for at, line in enumerate(lines):
        if 0 < len(line.strip()) <= MAX_HEAD_CHARS:
            places[_folded(line)].append(at)
    repeated = {key: key_lines for key, key_lines in places.items() if len(key_lines) >= MIN_REPEATED}
    likely = {at for key, key_lines in repeated.items() if any(map(str.isalnum, key)) for at in key_lines}
    heads = set[int]()
    for key, key_lines in repeated.items():
        is_apart = key_lines[-1] - key_lines[0] >= MIN_PAGE_LINES * (len(key_lines) - 1)
        # Letters by themselves are of broken words, and items and addresses of lists.
        is_word = len(key.encode()) >= MIN_HEAD_BYTES and not NO_HEAD.search(key)
        if not is_apart or not (is_word or key.strip("-–—| ") == "0") or key_lines[0] not in likely:
            continue
        if sum(_parts_sentence(lines, likely, at) for at in key_lines) >= MIN_PARTED * len(key_lines):
            heads.update(key_lines)
    return heads


def _parts_sentence(lines: Sequence[str], likely: set[int], at: int) -> bool:
    """Return whether the text above a line goes on below it."""
    around = range(at - 1, max(-1, at - MIN_PAGE_LINES), -1), range(at, min(len(lines), at + MIN_PAGE_LINES))
    before, behind = (
        next((lines[each].strip() for each in places if lines[each].strip() and each not in likely), "")
        for places in around
    )
    is_begun = bool(before) and not ENDED.search(before)
    return is_begun and behind[:1].isalpha() and behind[0] == behind[0].lower()


def _without_running_heads(text: str) -> str:
    lines = text.split("\n")
    heads, shown, gap = _running_heads(lines), list[str](), list[int]()
    if not heads:
        return text
    for at, line in enumerate(lines):
        if at in heads or not line.strip():
            gap.append(at)
            continue
        if heads.isdisjoint(gap):
            shown.extend(lines[each] for each in gap)
        elif shown and ENDED.search(shown[-1].rstrip()):
            shown.append("")
        shown.append(line)
        gap.clear()
    return "\n".join(shown)


def _edges(page: Sequence[str]) -> list[int]:
    filled = [at for at, line in enumerate(page) if line.strip()]
    return list(dict.fromkeys([*filled[:EDGE_LINES], *filled[-EDGE_LINES:]]))


def _folded(line: str) -> str:
    return DIGITS.sub("0", " ".join(line.split()))


FORMATS: tuple[tuple[str, Callable[[str], bool], Callable[[str], str]], ...] = (
    ("quoted_printable", light_markup.is_quoted_printable, light_markup.of_quoted_printable),
    ("rtf", lambda text: text.lstrip("\ufeff \r\n").startswith("{\\rtf"), of_rtf),
    ("tex", is_tex, of_tex),
    ("embedded_pictures", _has_pictures, functools.partial(PICTURE.sub, "")),
    (PDF_PAGES, lambda text: "\f" in text.strip("\f \n"), _without_heads),
    (PDF_PAGES, _is_hard_wrapped, _without_running_heads),
    ("subtitles", _is_subtitles, _spoken),
    ("lyrics", lambda text: "[0" in text and 2 * len(LYRIC.findall(text)) > text.count("\n") > 0, _sung),
    *(
        (name, functools.partial(light_markup.is_light, name), functools.partial(light_markup.of_light, name))
        for name in light_markup.MARKUPS
    ),
    ("wikitext", _is_wikitext, _without_wikitext),
    ("bbcode", _is_bbcode, _without_bbcode),
    ("markdown_links", lambda text: "](" in text or "]:" in text, without_links),
)
"""Name, whether a text may be in it, and what takes the text out; pictures first, because they are long."""
