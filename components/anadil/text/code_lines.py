"""Lines of code within a text: the white space before them belongs to the program."""

import re
from collections.abc import Sequence

CODE = re.compile(
    r"""
      ^(?:\#|//|/\*|--\s|;;|<!--|<[/?]?[A-Za-z][\w:-]*[\s/>]|[$%>]\s|>>>|\.\.\.\s|@\w|"[^"]*"\s*[:,]|'[^']*'\s*[:,])  # comments, tags, prompts
    | ^[\s{}()\[\];,<>/]+$
    | ^-\s\S+$ | ^(?:-\s+)?[^\W\d][\w./-]*:(?:\s+[^\s]+){0,4}$                                         # keys of settings
    | ^(?:def|class|elif|else|try|except|finally|return|import|raise|yield|pass|break|continue|print|echo|puts|func|function|fn|
        var|let|const|public|private|static|void|int|end|fi|done|then|do|esac|begin|module|package|include|use|where|case|switch|
        SELECT|FROM|WHERE|INSERT|INTO|VALUES|JOIN|CREATE|UPDATE|DELETE|SET|AND|OR|ORDER|GROUP|RUN|COPY|ENV)\b(?!,)
    | (?:==|!=|<=|>=|:=|=>|->|<-|::|\+=|-=|\*=|/=|&&|\|\||\+\+|\$\w|\$\{|\\$|</\w|/>)
    | \w\s*=\s*[\w"'(\[{<$-]
    | \b[^\W\d][\w.]*\([^()]*\)?
    | \b[a-z]+_[a-z]\w*|\b[a-z]+[A-Z]\w*|\b[a-z]\w*\.[a-z_]\w*[.(]
    | \s[<>+*/|&%]\s | \s--?[a-z]\w*(?:[\s=]|$) | ^\\[a-z]+
    | [{(\[]$|^[})\]]|\};?$
    """,
    re.VERBOSE,
)
"""Marks of programs, settings and markup that sentences seldom have."""
DEFINITION = re.compile(
    r"^(?:(?:async|export|default|pub|public|private|protected|static|final|abstract|inline)\s+)*"
    r"(?:def|class|function|func|fun|fn|sub|proc|struct|enum|interface|trait|impl|module|namespace)\s.*[:{(=]$"
)
"""Beginning of a definition. All that is indented below it belongs to it, a description too."""
OPENING, CLOSING = "([{", ")]}"
HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
"""Head of a piece of a diff, in which a line that did not change begins with a space."""
MAX_LINE = 400  # Characters of a line that are looked at
MIN_CODE = 0.5  # Share of a run of indented lines that is code, at least


def indents_of(lines: Sequence[str]) -> list[str]:
    """White space before each line that belongs to code; empty before prose.

    Indented lines that follow each other are judged together with the line above them: one line of a program may look like
    a word.
    """
    indents = [""] * len(lines)
    head, run, is_hunk = "", list[int](), False
    for number, line in enumerate([*lines, "end"]):
        is_hunk = bool(HUNK.match(line)) or (is_hunk and line[:1] in {" ", "+", "-", "\\"})
        if line[:1].isspace() and line.strip():
            run.append(number)
            if is_hunk:
                indents[number] = _indent(line)
        elif line.strip():
            if run and _is_code(head, [lines[each] for each in run], line):
                for each in run:
                    indents[each] = _indent(lines[each])
            head, run = line, []
    return indents


def _is_code(head: str, run: Sequence[str], after: str) -> bool:
    """True if indented lines between two others are code: by what holds them, by their shape, or by most of themselves."""
    if DEFINITION.search(head.strip()[:MAX_LINE]):
        return True
    # Brackets of the first line are closed at the end of the lines below it, or right behind them.
    depth = _depth(head)
    is_closed = run[-1].rstrip(";, \t").endswith((*CLOSING,)) and depth + sum(map(_depth, run)) == 0
    if depth > 0 and (is_closed or after[:1] in CLOSING):
        return True
    # Names below names, some deeper than others or in a folder, are files or keys.
    if all(len(line.split()) == 1 for line in (head, *run)) and (
        len({len(line) - len(line.lstrip()) for line in run}) > 1 or head.rstrip().endswith("/")
    ):
        return True
    texts = [" ".join(line[:MAX_LINE].split()) for line in (head, *run) if line.strip()]
    return sum(CODE.search(text) is not None for text in texts) >= MIN_CODE * len(texts)


def _depth(line: str) -> int:
    return sum(map(line.count, OPENING)) - sum(map(line.count, CLOSING))


def _indent(line: str) -> str:
    """Tabs, and one space for each other one."""
    white = line[: len(line) - len(line.lstrip())]
    return "".join(each if each == "\t" else " " for each in white)
