r"""Take the text out of RTF, TeX and the links of Markdown."""

import codecs
import re
import unicodedata

RTF_TOKEN = re.compile(
    r"((?:\\'[0-9a-fA-F]{2})+)|\\u(-?\d{1,6}) ?|\\([a-z]{1,32})(-?\d{1,9}|) ?|\\([^a-z])|([{}])|([^\\{}\r\n]+)"
)
"""Bytes, a character, a word with its number, a sign, a bracket, text. Source: RTF specification 1.9.1."""
RTF_SKIPPED = re.compile(
    r"fonttbl|colortbl|stylesheet|info|pict|object|(?:header|footer)[lrf]?|footnote|fldinst|list(?:override)?table|revtbl|rsidtbl|themedata"
    r"|datastore|xmlnstbl|nonshppict"
)
"""Words that begin a group which no page shows."""
RTF_FONT = re.compile(r"\\f(\d{1,5})(?:\\[a-z]{1,32}-?\d{0,9} ?|\{[^{}]{0,200}\}){0,12}?\\fcharset(\d{1,3})")
RTF_CHARSETS = {
    "128": "cp932", "129": "cp949", "134": "cp936", "136": "cp950", "161": "cp1253", "162": "cp1254", "163": "cp1258", "177": "cp1255",
    "178": "cp1256", "186": "cp1257", "204": "cp1251", "222": "cp874", "238": "cp1250",
}  # fmt: skip
"""Code page of a font's bytes, where it is not the document's."""
RTF_SIGNS = {
    "par": "\n", "line": "\n", "row": "\n", "sect": "\n", "page": "\n", "tab": "\t", "cell": "\t", "emdash": "—", "endash": "–",
    "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "bullet": "•", "~": "\u00a0", "_": "-", "\n": "\n",
    "{": "{", "}": "}", "\\": "\\",
}  # fmt: skip

TEX_SIGN = re.compile(
    r"^[^\S\n]*\\(?:documentclass|usepackage|beginsection|centerline|noindent|magnification|proclaim|chapter|(?:sub){0,2}section|paragraph|title|author|maketitle|item|(?:begin|end)\{"
    r"(?!equation|align|gather|multline|eqnarray|displaymath|array|cases|split|[a-zA-Z]?matrix|[CD]?code|lstlisting|verbatim))\b[^\n]",
    re.MULTILINE,
)
TEX_WORDS = re.compile(r"\\(?:emph|text(?:bf|it|sc)|footnote|[Cc]ite[a-z]*|ref|label|href|url)\b[{\[]")
MIN_TEX_SIGNS = 3
"""A text on TeX shows one, or has them in a line of prose."""
TEX_DOCUMENT = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.DOTALL)
TEX_DROPPED = re.compile(
    r"(?m:^[^\S\n]*\\(?:magnification|[hv](?:size|offset)|par(?:indent|skip)|baselineskip|font\\\w+|input|nopagenumbers|(?:head|foot)line|[gex]?def\\\w+)\b[^\n]*$)"
    r"|\\begin\{(equation|align|gather|multline|eqnarray|displaymath|figure|table|tabular[xy]?|longtable|verbatim|lstlisting|tikzpicture|"
    r"thebibliography|filecontents)(\*?)\}.*?\\end\{\1\2\}|\$\$.{0,5000}?\$\$|\\\[.{0,5000}?\\\]"
    r"|\\href\{[^{}\n]{0,500}\}|(?<=\\item)<[^<>\n]{1,20}>|(?:[^\S\n]?\\(?:footnote(?:text|mark)?|[Cc]ite[a-z]*)(?![a-z])"
    r"|\\(?:label|(?:page|eq|auto|c)?ref|includegraphics|usepackage|documentclass|input|include|bibliography|bibliographystyle|pagestyle"
    r"|thispagestyle|[vh]space|index|url|setlength|setcounter|(?:re)?newcommand|begin|end)(?![A-Za-z]))"
    r"\*?(?:\[[^\[\]\n]{0,200}\]|\{(?:[^{}\n]|\{[^{}\n]{0,200}\}){0,500}\}){0,4}",
    re.DOTALL,
)
TEX_FORMULA = re.compile(r"(?<!\\)\$[^$\n]{1,500}\$|\\\([^\n]{1,500}?\\\)")
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
TEX_COMMAND = re.compile(
    r"\\(?:(\\|par\b)|([ ,;:~])|[A-Za-z@]+\*?|[-/!()])(?:\[[^\[\]\n]{0,200}\])?(?(2)|[^\S\n]?)"
)
TEX_SIGNS = str.maketrans({"~": " ", "{": None, "}": None, "$": None})

LINK_TARGET = (
    r"(?:<[^<>\n]{1,2000}>|(?:https?://|www\.|mailto:|tel:|\.{0,2}/|#|[\w./%-]{1,200}\.(?:html?|php|aspx?|md|pdf|png|jpe?g|gif|svg|webp)\b)"
    r"(?:[^()\s<>]|\([^()\s]{0,200}\)){0,2000})(?:\s+(?:\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'|\([^()\n]{0,300}\)))?"
)
LINK = re.compile(
    r"(?P<code>```.*?(?:```|\Z)|`[^`\n]{1,300}`)|(?P<picture>!)?\[(?P<words>[^\[\]\n]{0,500})\]"
    r"(?P<target>(?(picture)\((?:[^()\n]|\([^()\n]{0,300}\)){1,2000}\)"
    rf"|\(\s*{LINK_TARGET}\s*\)(?:\{{[:.#\w][^{{}}\n]{{0,200}}\}})?))?(?P<name>\[[^\[\]\n]{{0,200}}\])?",
    re.DOTALL,
)
"""In code Markdown shows links, and has none."""
LINK_NAME = re.compile(
    rf"^ {{0,3}}\[([^\[\]\n^][^\[\]\n]{{0,200}})\]:[^\S\n]*{LINK_TARGET}[^\S\n]*$\n?", re.MULTILINE
)
"""Where the target of links stands that are written `[words][name]` or `[name]`."""
MAX_NESTED = 3


def of_rtf(text: str) -> str:
    """Return what a document in RTF shows, a paragraph a line."""
    page = re.search(r"\\ansicpg(\d{3,5})", text)
    try:
        codec = codecs.lookup(f"cp{page[1]}" if page else "cp1252").name
    except LookupError:
        codec = "cp1252"
    fonts = {font: RTF_CHARSETS.get(charset, codec) for font, charset in RTF_FONT.findall(text)}
    # A character has substitutes behind it, for programs that do not know it.
    shown, outer, num_left = list[str](), list[tuple[bool, str, int, int]](), 0
    is_skipped, font_codec, num_substitutes = False, codec, 1
    for match in RTF_TOKEN.finditer(text):
        coded, code, word, number, sign, bracket, plain = match.groups()
        if bracket == "{":
            outer.append((is_skipped, font_codec, num_substitutes, 0))
        elif bracket:
            is_skipped, font_codec, num_substitutes, num_left = outer.pop() if outer else (False, codec, 1, 0)
        elif (word and RTF_SKIPPED.fullmatch(word)) or sign == "*":
            is_skipped = True
        elif word == "f":
            font_codec = fonts.get(number, codec)
        elif word == "uc":
            num_substitutes = max(0, int(number or 1))
        elif is_skipped:
            continue
        elif code:
            shown.append(chr(int(code) % 0x10000))
            num_left = num_substitutes
        else:
            signs: bytes | str = (
                bytes.fromhex(coded.replace("\\'", "")) if coded else plain or RTF_SIGNS.get(word or sign, "")
            )
            num_left, signs = max(0, num_left - len(signs)), signs[num_left:]
            shown.append(signs if isinstance(signs, str) else signs.decode(font_codec, "replace"))
    # Characters beyond the first 65,536 are written as two surrogates.
    return "".join(shown).encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def is_tex(text: str) -> bool:
    """Return whether a text is the source of a document in TeX."""
    if "\\" not in text or not (num_signs := len(TEX_SIGN.findall(text))):
        return False
    # Who asks or tells of TeX shows a document behind his words, or fenced.
    before = text.partition("\\documentclass")[0].split("\n") if "\\documentclass" in text else ()
    is_fenced = "\n```" in f"\n{text}"
    is_shown = is_fenced or any(line.strip() and line.lstrip()[0] not in "%\\{}]" for line in before)
    return num_signs + len(TEX_WORDS.findall(text)) >= MIN_TEX_SIGNS and not is_shown


def of_tex(text: str) -> str:
    """Return the prose of a document in TeX, without its notes, figures, tables, and formulas that stand alone."""
    formulas = list[str]()

    def formula(match: re.Match[str]) -> str:
        inner = match[0][2:-2] if match[0][0] == "\\" else match[0][1:-1]
        if "\\" not in inner:
            return inner
        formulas.append(match[0])
        return f"\x01{len(formulas) - 1}\x01"

    if document := TEX_DOCUMENT.search(text):
        text = document[1]
    text = TEX_FORMULA.sub(formula, TEX_DROPPED.sub("", TEX_COMMENT.sub("", text.replace("\x01", ""))))
    text = TEX_ACCENT.sub(
        lambda match: unicodedata.normalize("NFC", (match[3] or match[4]) + TEX_MARKS[match[1] or match[2]]),
        text,
    )
    text = re.sub(r"\\([%&#_])", r"\1", TEX_LETTER.sub(lambda match: TEX_LETTERS[match[1]], text))
    text = TEX_COMMAND.sub(lambda match: "\n" if match[1] else " " if match[2] else "", text)
    text = text.replace("\\$", "\x00").translate(TEX_SIGNS).replace("\x00", "$")
    for signs, sign in (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”")):
        text = text.replace(signs, sign)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(map(str.strip, text.split("\n")))).strip()
    return re.sub(r"\x01(\d+)\x01", lambda match: formulas[int(match[1])], text)


def without_links(text: str) -> str:
    """Return a text with the words of its links alone, and without its pictures."""
    names = {f"[{name.lower()}]" for name in LINK_NAME.findall(text)}

    def shown(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        words, name = f"[{match['words']}]", match["name"] or ""
        is_named = (name if len(name) > len("[]") else words).lower() in names
        if not match["target"] and not is_named:
            return match[0]
        return ("" if match["picture"] else match["words"]) + (name if match["target"] else "")

    text = LINK_NAME.sub("", text)
    for _ in range(MAX_NESTED):
        text = LINK.sub(shown, text)
    return text
