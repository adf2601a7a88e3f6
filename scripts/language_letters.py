"""Write components/anadil/text/languages/letters.tsv: the letters that CLDR gives a language, beyond ASCII.

`python scripts/language_letters.py MAIN` writes it, where MAIN is the folder `main` of the npm package cldr-misc-full
(Unicode License v3), version 48.2.0. Run by hand, when CLDR knows more languages.
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

TARGET = Path(__file__).parents[1] / "components/anadil/text/languages/letters.tsv"
CODES = TARGET.with_name("codes.tsv")
SCRIPTS = {"Latn", "Cyrl", "Grek", "Arab", "Hebr", "Thai"}
"""Languages with code pages of one byte a character."""
ESCAPE = re.compile(r"\\u([0-9A-F]{4})|\\(.)")
HEAD = "id\tletters\tothers\n"


def main(folder: Path) -> None:
    """Write one line for each language with letters beyond ASCII."""
    rows = [line.split("\t") for line in CODES.read_text(encoding="utf-8").splitlines()[1:]]
    usual = {row[0]: row[2] for row in rows}
    lines = []
    for path in sorted(folder.iterdir()):
        code, _, script = path.name.partition("-")
        if code not in usual or (script and len(script) != 4) or (script or usual[code]) not in SCRIPTS:
            continue
        table = json.loads((path / "characters.json").read_text(encoding="utf-8"))
        sets = table["main"][path.name]["characters"]
        own = letters_of(sets.get("exemplarCharacters", "[]"))
        others = letters_of(sets.get("auxiliary", "[]")) - own
        if own | others:
            lines.append("\t".join([path.name, "".join(sorted(own)), "".join(sorted(others))]))
    TARGET.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def letters_of(unicode_set: str) -> set[str]:
    """Letters and marks beyond ASCII of a set such as `[a-z ç {ch}]`."""
    plain = ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else "", unicode_set)
    spread = re.sub(
        "(.)-(.)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), plain
    )
    composed = unicodedata.normalize("NFC", spread)
    return {each for each in composed if each > "\x7f" and unicodedata.category(each)[0] in "LM"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
