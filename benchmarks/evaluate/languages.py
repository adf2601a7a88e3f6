"""Languages that the identifier sees in real lines of 20 to 60 characters: does Turkish output pass as Azerbaijani?

python benchmarks/evaluate/languages.py --data DIR [--languages az tr en] [--lines 1500]

DIR holds a folder for each language with .jsonl files that have a key `text`. A line counts if 88 % of it is letters and
spaces; files whose text is misread (legalcode, udhr) are left out. For each pair of languages the table says how many
lines in the one are taken for which language by an evaluation of the other.
"""

import argparse
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anadil.evaluate.generate import language_of
from anadil.text.language import load_language

MISREAD = ("legalcode", "udhr")
LENGTHS = range(20, 61)
MIN_LETTERS = 0.88


def main() -> None:
    """Print a row for each expected language and each language of the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--languages", nargs="+", default=["az", "tr", "en"])
    parser.add_argument("--lines", type=int, default=1_500, help="of each file")
    options = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f}\n\n| expected | lines in | file | lines | taken for |\n|---|---|---|---:|---|"
    )
    for expected in options.languages:
        language = load_language(expected)
        for code in options.languages:
            total: Counter[str] = Counter()
            for name, lines in lines_of(options.data / code, options.lines).items():
                counts = Counter(str(language_of(line, language)) for line in lines)
                total += counts
                print(f"| {expected} | {code} | {name[:40]} | {len(lines)} | {told(counts)} |", flush=True)
            print(f"| {expected} | {code} | **all** | {total.total()} | {told(total)} |", flush=True)


def lines_of(folder: Path, count: int) -> dict[str, Sequence[str]]:
    """Lines by file."""
    by_language = {}
    for file in sorted(folder.glob("*.jsonl")):
        if any(word in file.name for word in MISREAD):
            continue
        texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
        lines = sorted(
            {line.strip() for text in texts for line in text.split("\n") if is_prose(line.strip())}
        )
        random.Random(0).shuffle(lines)  # noqa: S311  no secret
        by_language[file.stem] = lines[:count]
    return by_language


def is_prose(line: str) -> bool:
    """True for a line of the right length that is no code."""
    return len(line) in LENGTHS and sum(c.isalpha() or c.isspace() for c in line) >= MIN_LETTERS * len(line)


def told(counts: Counter[str]) -> str:
    """Shares of the most frequent codes."""
    return ", ".join(f"{code} {count / counts.total():.2%}" for code, count in counts.most_common(5))


if __name__ == "__main__":
    main()
