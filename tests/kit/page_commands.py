"""The shell blocks of a page of documentation, as commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
"""Kind and content of a block; it may stand in a list."""
ENDS = ("|", "||", "&&", ";", "&")
"""What stands between two commands of a line."""


def lines(page: Path) -> Iterator[str]:
    """Each line of the shell blocks of a page; one that is continued is one."""
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        if kind in ("bash", "sh", "shell", "console"):
            yield from filter(None, map(str.strip, block.splitlines()))


def commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without comments, variables before it and where it reads and writes."""
    split = shlex.shlex(line, posix=True, punctuation_chars=True)
    split.commenters, split.whitespace_split = "#", True
    words: list[str] = []
    for word in [*split, ";"]:
        if word not in ENDS:
            words.append(word)
            continue
        kept = [
            each
            for place, each in enumerate(words)
            if each not in ("<", ">") and not (place and words[place - 1] in ("<", ">"))
        ]
        while kept and re.match(r"[A-Z_]+=", kept[0]):
            del kept[0]
        if kept:
            yield kept
        words = []
