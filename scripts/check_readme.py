"""Compare the figures of README.md with those of a whole run of recipe `smoke`.

    python scripts/check_readme.py WORK

WORK is the run's work directory. Figures that the run does not show are printed, and the exit code is 1.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
SHOWN = {
    "bits per byte (lower is better)": ("{base[bits_per_byte]:.2f}", "{adapted[bits_per_byte]:.2f}"),
    "tokens per word (lower is better)": ("{base[fertility]:.2f}", "{adapted[fertility]:.2f}"),
    "words in a context of 128 tokens": ("{base[words_in_context]}", "{adapted[words_in_context]}"),
    "corpus after cleaning, words": ("{words:,}",),
    "English": ("{base[retained][en]:.2f}", "", "{adapted[retained][en]:.2f}"),
    "Azerbaijani": ("{base[bits_per_byte]:.2f}", "", "{adapted[bits_per_byte]:.2f}"),
}
"""Row of a table -> figures of its first cells; those of the other run, without replay, are empty."""
SENTENCES = (
    "{seen[exact]:.1%} of trained questions",
    "{own[0]} of {own[1]} of `questions`",
    "{replay[0]} of {replay[1]} of `chats`",
    "{right} of {unseen[asked]}.",
    "{finetuned[bits_per_byte]:.2f} bits per byte",
)


def missing_figures(text: str, scores: dict[str, Any], words: int) -> list[str]:
    """Rows and sentences of the README that the scores do not show."""
    candidates = scores["candidates"]
    finetuned = candidates["finetuned"]
    unseen, seen = finetuned["questions"], finetuned["seen_questions"]
    files = seen["exact_by_file"]
    facts = {
        **candidates, "words": words, "unseen": unseen, "seen": seen, "own": files["questions"], "replay": files["chats"],
        "right": round(unseen["exact"] * unseen["asked"]),
    }  # fmt: skip
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in text.splitlines()]
    missing = []
    for label, forms in SHOWN.items():
        expected = [form.format(**facts) for form in forms]
        cells = next((row[1:] for row in rows if row[0] == label), [])
        if any(figure and figure != cell for figure, cell in zip(expected, cells, strict=False)) or not cells:
            missing.append(f"{label}: the run shows {', '.join(filter(None, expected))}")
    flat = " ".join(text.split())
    sentences = [form.format(**facts).replace("%", " %") for form in SENTENCES]
    return missing + [each for each in sentences if not re.search(rf"(?<!\d){re.escape(each)}", flat)]


def main(work: Path) -> int:
    """Compare, and print what differs."""
    newest = max(work.glob("scores/*/scores.json"), key=lambda path: path.stat().st_mtime)
    corpora = [json.loads(path.read_text("utf-8")) for path in work.glob("corpus/*/stats.json")]
    words = max(int(each["words_out"]) for each in corpora)
    missing = missing_figures(README.read_text("utf-8"), json.loads(newest.read_text("utf-8")), words)
    print(*(f"README.md: not so: {each}" for each in missing), sep="\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
