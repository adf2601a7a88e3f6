"""Take the text out of light markup, Org, reStructuredText, AsciiDoc and Jira's, and out of quoted-printable."""

import quopri
import re

MIN_SIGNS = 2
"""Fewer may be chance, or of Markdown."""
BODY = r"(?:\n(?:[^\S\n]+[^\n]*)?(?=\n|\Z))*\n?"
MARKUPS = {
    "org": (
        ("#+",),
        (r"^#\+(?i:title|author|date|options|startup|begin_\w+|language|filetags|property|caption|name)\b", r"\[\[[^\[\]\n]+\]\[[^\[\]\n]+\]\]",
         r"^[^\S\n]*:END:$"),
        (r"^[^\S\n]*#\+(?i:begin_(?:src|example|export|comment)\b.*?^[^\S\n]*#\+end_)\w+$\n?", r"^[^\S\n]*(?:#\+[^\n]*|:[A-Z]+:\n.*?:END:)$\n?",
         r"^\*+ (?:(?:TO)?DO(?:NE)? )?(?:\[#\w\] )?([^\n]*?)(?:[^\S\n]+:[\w:]+:)?$", r"\[\[[^\[\]\n]+\]\[([^\[\]\n]+)\]\]|\[\[[^\[\]\n]+\]\]|\[fn:[^\[\]\n]+\]",
         r"(?<![\w*/=~])(?:\*([^\s*](?:[^*\n]{0,200}[^\s*])?)\*|/([^\s/](?:[^/\n]{0,200}[^\s/])?)/|[=~]([^\s=~](?:[^=~\n]{0,200}[^\s=~])?)[=~])(?![\w*/=~])"),
    ),
    "rst": (
        ("::", "`"),
        (r"^\.\. (?:[\w-]+(?::[\w-]+)?::|_[^:\n]+:|\|[^|\n]+\| )", r":[a-z]+(?::[a-z]+)?:`[^`\n]+`", r"`[^`<>\n]+ <[^<>\n]+>`__?(?!\w)"),
        (r"^\.\. (?:code|code-block|sourcecode|image|figure|toctree|math|[\w-]*table|raw|include|literalinclude|contents|index|meta|auto\w+|[\w-]+:\w+)::[^\n]*" + BODY,
         rf"^\.\. (?![\w-]+::)[^\n]*{BODY}", r"^\.\. [\w-]+::[^\S\n]*([^\n]*)(?:\n[^\S\n]+:[\w-]+:[^\n]*)*", r"[^\S\n]?\[[#*\w]+\]_|(?<=:):(?=$)",
         r"^(?:={3,}|~{3,}|-{3,}|\^{3,}|\"{3,}|\*{3,}|\+{3,}|#{3,})$\n?", r":[a-z]+(?::[a-z]+)?:`[~!]?([^`<>\n]+?)(?:\s*<[^<>\n]+>)?`",
         r"`([^`<>\n]+?)\s*(?:<[^<>\n]+>)?`__?(?!\w)|``([^`\n]+)``", r"(?<![\w*])\*\*?([^\s*](?:[^*\n]{0,200}[^\s*])?)\*\*?(?![\w*])"),
    ),
    "asciidoc": (
        ("::", "\n== "),
        (r"^={1,5} [^\W\d_][^\n=]*$", r"^\[(?:source|quote|NOTE|TIP|IMPORTANT|WARNING|cols|verse)\b[^\]\n]*\]$", r"^\|===$",
         r"(?:image|include|video)::\S+\[[^\]\n]*\]", r"(?:link|xref):\S+\[[^\]\n]+\]|https?://[^\s\[\]]+\[[^\]\n]+\]|<<[\w-]+,[^<>\n]+>>"),
        (r"^(?:\[source[^\]\n]*\]\n(?:\.[^\n]+\n)?)?(?:-{4,}\n.*?^-{4,}|\.{4,}\n.*?^\.{4,}|\|===\n.*?^\|===|/{4,}\n.*?^/{4,})$\n?",
         r"(?:image|include|video)::?[^\s\[]+\[[^\]\n]*\]|footnote:[\w-]*\[[^\]\n]*\]", r"(?:(?:link|xref|mailto):|https?://)[^\s\[\]]+\[([^\]\n]*)\]",
         r"<<[\w-]+(?:,([^<>\n]+))?>>", r"^=+ ([^\n]+)$", r"^(?::[\w-]+:[^\n]*|\[[^\]\n]*\]|={4,}|_{4,}|\*{4,}|--|//[^\n]*)$\n?",
         r"(?<![\w*_`])[*_`]{1,2}([^\s*_`](?:[^*_`\n]{0,200}[^\s*_`])?)[*_`]{1,2}(?![\w*_`])"),
    ),
    "jira": (
        ("h2. ", "{code", "|http"),
        (r"^h[1-6]\. \S", r"\{(?:code|noformat|quote|panel|color|info|note|tip|warning)(?::[^{}\n]*)?\}", r"\[[^\[\]|\n]+\|https?://[^\[\]\n]+\]",
         r"^\|\|[^\n]+\|\|$"),
        (r"\{(?:code(?::[^{}\n]*)?\}.*?\{code|noformat\}.*?\{noformat)\}", r"\{(?:quote|panel|color|info|note|tip|warning)(?::[^{}\n]*)?\}",
         r"\[([^\[\]|\n]+)\|[^\[\]\n]+\]|\[~[^\[\]\n]+\]", r"![\w./-]+\.(?:png|jpe?g|gif|svg)(?:\|[^!\n]*)?!", r"^h[1-6]\. |^[*#-]+ ",
         r"^\|[^\n]*\|[^\S\n]*$\n?", r"\{\{([^{}\n]+)\}\}", r"(?<![\w*_+])[*_+]([^\s*_+](?:[^*_+\n]{0,200}[^\s*_+])?)[*_+](?![\w*_+])"),
    ),
}  # fmt: skip
"""Hints, of which one stands in each text, signs, and what goes but for the groups."""
COMPILED = {
    name: [re.compile("|".join(each), re.MULTILINE | re.DOTALL) for each in (signs, dropped)]
    for name, (_, signs, dropped) in MARKUPS.items()
}
HINTS = tuple({hint: None for hints, *_ in MARKUPS.values() for hint in hints})
QUOTED = re.compile(r"=(?:[89A-F][0-9A-F]|\r?\n)")
NOT_QUOTED = re.compile(r"=(?![0-9A-F]{2}|\r?\n|\Z)")
"""Bytes and line ends in quoted-printable, in which no other equals sign stands. Source: RFC 2045, section 6.7."""


def is_light(name: str, text: str) -> bool:
    """Return whether a text is in one of `MARKUPS`; one with fenced code is in Markdown, and may tell of another."""
    if not any(map(text.__contains__, MARKUPS[name][0])) or "```" in text:
        return False
    return sum(1 for _ in zip(COMPILED[name][0].finditer(text), range(MIN_SIGNS), strict=False)) == MIN_SIGNS


def of_light(name: str, text: str) -> str:
    """Return the words of a text in one of `MARKUPS`, without code, tables and pictures."""
    text = COMPILED[name][1].sub(lambda match: next(filter(None, match.groups()), ""), text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def is_quoted_printable(text: str) -> bool:
    """Return whether each equals sign behind the head of a message, or of a text without one, is of quoted-printable."""
    if "=" not in text or not text.isascii():
        return False
    body = _body(text)
    return len(QUOTED.findall(body)) > MIN_SIGNS and not NOT_QUOTED.search(body)


def of_quoted_printable(text: str) -> str:
    """Decode a text in quoted-printable, if its bytes are UTF-8."""
    try:
        return quopri.decodestring(_body(text).encode()).decode()
    except UnicodeDecodeError:
        return text


def _body(text: str) -> str:
    head, _, body = text.partition("\n\n")
    return body if "quoted-printable" in head else text
