"""A language that is in no list, and a sibling of it: text of made-up words, the same every time."""

import json
import random
from functools import cache
from pathlib import Path

VOWELS, CONSONANTS = "aeiouëö", "ptkbdgmnlrszfvjh"
ENDINGS = ("om", "ete", "ul", "isk", "", "")
SHIFT = str.maketrans("ptkaeiouëömnlr", "bdgeioaëuönmrl")
"""What the sibling made of the sounds."""


@cache
def lexicon() -> tuple[list[str], list[str]]:
    """Short words, and stems in the order of their frequency."""
    words = random.Random(7)

    def made(syllables: int) -> str:
        return "".join(words.choice(CONSONANTS) + words.choice(VOWELS) for _ in range(syllables))

    return [made(1) + words.choice("nst") for _ in range(40)], [
        made(words.choice((2, 2, 3))) for _ in range(1_500)
    ]


def documents(num: int, *, sibling: bool = False, seed: int = 0) -> list[str]:
    """Documents of 60 to 120 words with capitals, commas, stops and questions."""
    draw = random.Random(seed)
    little, stems = lexicon()
    weights = [1 / (place + 5) for place in range(len(stems))]

    def sentence() -> str:
        chosen = draw.choices(stems, weights, k=draw.randrange(4, 9))
        parts = [part for stem in chosen for part in (draw.choice(little), stem + draw.choice(ENDINGS))]
        text = " ".join(parts)
        text = text.translate(SHIFT) if sibling else text
        return text.capitalize() + draw.choice(".....?")

    def document() -> str:
        return "\n".join(" ".join(sentence() for _ in range(3)) for _ in range(draw.randrange(2, 4)))

    return [document() for _ in range(num)]


def write_documents_of(path: Path, texts: list[str]) -> Path:
    """The texts as a `.jsonl` file."""
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
    return path
