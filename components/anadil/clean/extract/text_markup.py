r"""Take the text out of RTF, TeX and the links of Markdown."""

import codecs
import re
import unicodedata

RTF_TOKEN = re.compile(
    r"\\'([0-9a-fA-F]{2})|\\u(-?\d{1,6}) ?(?:\\'[0-9a-fA-F]{2}|[^\\{}])?|\\([a-z]{1,32})-?\d{0,9} ?|\\([^a-z])|([{}])|([^\\{}\r\n]+)"
)
"""A byte, a character with its substitute for older readers, a word, a sign, a bracket, text. Source: RTF specification 1.9.1."""
RTF_SKIPPED = frozenset(
    [
        "fonttbl",
        "colortbl",
        "stylesheet",
        "info",
        "pict",
        "object",
        "header",
        "headerl",
        "headerr",
        "footer",
        "footerl",
        "footerr",
        "fldinst",
        "listtable",
        "listoverridetable",
        "revtbl",
        "rsidtbl",
        "themedata",
        "datastore",
        "xmlnstbl",
    ]
)
RTF_SIGNS = {
    "par": "\n", "line": "\n", "row": "\n", "sect": "\n", "page": "\n", "tab": "\t", "cell": "\t", "emdash": "—", "endash": "–",
    "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "bullet": "•", "~": "\u00a0", "_": "-", "\n": "\n",
    "{": "{", "}": "}", "\\": "\\",
}  # fmt: skip

TEX_SIGN = re.compile(
    r"^[^\S\n]*\\(?:documentclass|usepackage|chapter|(?:sub){0,2}section|paragraph|title|author|maketitle|begin|end|item)\b[^\n]",
    re.MULTILINE,
)
MIN_TEX_SIGNS = 3
"""A text on TeX shows one, or has them in a line of prose."""
TEX_DOCUMENT = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.DOTALL)
TEX_DROPPED = re.compile(
    r"(?<!\\)%.*|\\begin\{(equation|align|gather|multline|eqnarray|displaymath|figure|table|tabular|verbatim|lstlisting|tikzpicture|"
    r"thebibliography|filecontents)(\*?)\}.*?\\end\{\1\2\}|\$\$.{0,5000}?\$\$|\\\[.{0,5000}?\\\]"
    r"|\\(?:label|(?:page|eq|auto|c)?ref|[Cc]ite[a-z]*|includegraphics|usepackage|documentclass|input|include|bibliography|"
    r"bibliographystyle|pagestyle|thispagestyle|[vh]space|index|url|setlength|setcounter|(?:re)?newcommand|begin|end)"
    r"\*?(?:\[[^\[\]\n]{0,200}\]|\{[^{}\n]{0,500}\}){0,4}",
    re.DOTALL,
)
TEX_COMMENT = re.compile(r"(?<!\\)%.*\n?")
TEX_MARKS = dict(
    zip("\"'`^~=.uvHckdbr", "\u0308\u0301\u0300\u0302\u0303\u0304\u0307\u0306\u030c\u030b\u0327\u0328\u0323\u0331\u030a", strict=True)
)  # fmt: skip
TEX_ACCENT = re.compile(
    r"\\(?:([\"'`^~=.])|([uvHckdbr])(?=[ {]))\s*(?:\{\\?([A-Za-z])\}|\\?([A-Za-z])(?![a-z]*\{))"
)
TEX_LETTER = re.compile(r"\\(i|j|ss|o|O|l|L|ae|AE|oe|OE|aa|AA)(?:\{\}|(?![A-Za-z])[^\S\n]?)")
TEX_LETTERS = {
    "i": "ı", "j": "ȷ", "ss": "ß", "o": "ø", "O": "Ø", "l": "ł", "L": "Ł", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "aa": "å", "AA": "Å",
}  # fmt: skip
TEX_COMMAND = re.compile(r"\\(?:(\\|par\b)|[A-Za-z@]+\*?)(?:\[[^\[\]\n]{0,200}\])?[^\S\n]?")
TEX_SIGNS = str.maketrans({"~": " ", "{": None, "}": None, "$": None})

LINK_TARGET = (
    r"<?(?:https?://|www\.|mailto:|tel:|\.{0,2}/|#|[\w./%-]{1,200}\.(?:html?|php|aspx?|md|pdf|png|jpe?g|gif|svg|webp)\b)"
    r"(?:[^()\s<>]|\([^()\s]{0,200}\)){0,2000}>?(?:\s+(?:\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'))?"
)
LINK = re.compile(
    rf"(?P<code>```.*?(?:```|\Z)|`[^`\n]{{1,300}}`)|(?P<picture>!?)\[(?P<words>[^\[\]\n]{{0,500}})\](?:\(\s*{LINK_TARGET}\s*\))",
    re.DOTALL,
)
"""In code Markdown shows links, and has none."""
MAX_NESTED = 3


def is_rtf(text: str) -> bool:
    """Return whether a text is a document of a word processor as it stands in its file."""
    return text.lstrip("\ufeff \r\n").startswith("{\\rtf")


def of_rtf(text: str) -> str:
    """Return what a document in RTF shows, a paragraph a line."""
    page = re.search(r"\\ansicpg(\d{3,5})", text)
    try:
        codec = codecs.lookup(f"cp{page[1]}" if page else "cp1252").name
    except LookupError:
        codec = "cp1252"
    has_fallback, shown, is_skipped, outer = "\\uc0" not in text, list[str](), False, list[bool]()
    for match in RTF_TOKEN.finditer(text):
        byte, code, word, sign, bracket, plain = match.groups()
        if bracket == "{":
            outer.append(is_skipped)
        elif bracket:
            is_skipped = bool(outer) and outer.pop()
        elif word in RTF_SKIPPED or sign == "*":
            is_skipped = True
        elif is_skipped:
            continue
        elif byte:
            shown.append(bytes.fromhex(byte).decode(codec, "replace"))
        elif code:
            rest = "" if has_fallback else match[0].partition(code)[2].removeprefix(" ")
            shown.append(chr(int(code) % 0x10000) + rest)
        else:
            shown.append(plain or RTF_SIGNS.get(word or sign, ""))
    # Characters beyond the first 65,536 are written as two surrogates.
    return "".join(shown).encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def is_tex(text: str) -> bool:
    """Return whether a text is the source of a document in TeX."""
    return (
        "\\" in text
        and sum(1 for _ in zip(TEX_SIGN.finditer(text), range(MIN_TEX_SIGNS), strict=False)) == MIN_TEX_SIGNS
    )


def of_tex(text: str) -> str:
    """Return the prose of a document in TeX, without its formulas that stand alone, figures and tables."""
    if document := TEX_DOCUMENT.search(text):
        text = document[1]
    text = TEX_DROPPED.sub("", TEX_COMMENT.sub("", text))
    text = TEX_ACCENT.sub(
        lambda match: unicodedata.normalize("NFC", (match[3] or match[4]) + TEX_MARKS[match[1] or match[2]]),
        text,
    )
    text = TEX_LETTER.sub(lambda match: TEX_LETTERS[match[1]], text)
    text = re.sub(r"\\([%&#_])", r"\1", text)
    text = TEX_COMMAND.sub(lambda match: "\n" if match[1] else "", text)
    text = text.replace("\\$", "\x00").translate(TEX_SIGNS).replace("\x00", "$")
    for signs, sign in (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”")):
        text = text.replace(signs, sign)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^[^\S\n]+|[^\S\n]+$", "", text, flags=re.MULTILINE)).strip()


def has_links(text: str) -> bool:
    """Return whether a text has links of Markdown."""
    return "](" in text and any(match["words"] is not None for match in LINK.finditer(text))


def without_links(text: str) -> str:
    """Return a text with the words of its links alone, and without its pictures."""
    for _ in range(MAX_NESTED):
        before, text = (
            text,
            LINK.sub(lambda match: match["code"] or ("" if match["picture"] else match["words"]), text),
        )
        if text == before:
            break
    return text
