"""Corpora of any size from real text: what is repeated is perturbed, so that new words keep coming.

Of real text each sentence comes in another order, and of every hundred words three have two letters exchanged.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

LANGUAGES = ("az", "en", "ja", "ru", "tr")
PERTURBED = 0.03
"""Share of the words that are changed in a repetition."""
DOCUMENT_CHARS = 4_000


def real_texts(data: Path, languages: tuple[str, ...] = LANGUAGES) -> list[str]:
    """The texts of some languages."""
    files = [file for language in languages for file in sorted((data / language).glob("*.jsonl"))]
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [json.loads(line)["text"] for line in lines]


def documents(texts: list[str], num_bytes: int) -> Iterator[str]:
    """The texts in pieces, then again and again with changes, until there are so many bytes."""
    rng = random.Random(16)  # noqa: S311  no secrets
    pieces = [text[at : at + DOCUMENT_CHARS] for text in texts for at in range(0, len(text), DOCUMENT_CHARS)]
    size = turn = 0
    while True:
        rng.shuffle(pieces)
        for piece in pieces:
            text = _perturbed(piece, rng) if turn else piece
            size += len(text.encode())
            yield text
            if size >= num_bytes:
                return
        turn += 1


def _perturbed(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    for _ in range(int(PERTURBED * len(words)) + 1):
        at = rng.randrange(len(words))
        word = words[at]
        if len(word) > 3:
            left, right = sorted(rng.sample(range(len(word)), 2))
            words[at] = word[:left] + word[right] + word[left + 1 : right] + word[left] + word[right + 1 :]
    return " ".join(words)
