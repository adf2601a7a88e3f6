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
"""What lines of programs, settings and markup have, and sentences seldom."""
MAX_LINE = 400
"""Characters of a line that are looked at."""
MIN_CODE = 0.5
"""Share of a run of indented lines that is code, at least."""


def indents_of(lines: Sequence[str]) -> list[str]:
    """The white space before each line, where it belongs to code; empty before prose.

    Indented lines that follow each other are judged together with the line above them, since a line of a program may
    look like a word.
    """
    indents = [""] * len(lines)
    head, run = "", list[int]()
    for number, line in enumerate([*lines, "end"]):
        if line[:1].isspace() and line.strip():
            run.append(number)
        elif line.strip():
            if run and _is_code([head, *(lines[each] for each in run)]):
                for each in run:
                    indents[each] = _indent(lines[each])
            head, run = line, []
    return indents


def _is_code(lines: Sequence[str]) -> bool:
    texts = [" ".join(line[:MAX_LINE].split()) for line in lines if line.strip()]
    return sum(CODE.search(text) is not None for text in texts) >= MIN_CODE * len(texts)


def _indent(line: str) -> str:
    """Tabs, and one space for each other one."""
    white = line[: len(line) - len(line.lstrip())]
    return "".join(each if each == "\t" else " " for each in white)
