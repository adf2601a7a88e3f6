"""What a learnt language keeps, and what may become of text without spaces."""

import random

from anadil.clean.filters.judge import Judge
from anadil.text.language_data import Language
from anadil.text.language_id import identify_language


def kept(texts: list[str], language: Language) -> float:
    """Share of texts that identification and limits keep."""
    normal = [language.normalize(text) for text in texts]
    found = [identify_language(text, language) for text in normal]
    return Judge(language).judge(normal, found).reasons.count(None) / len(texts)


def damaged(texts: list[str]) -> dict[str, list[str]]:
    """What may become of text without spaces: kind -> texts."""
    draw = random.Random(4)
    pieces = [[text[at : at + 4] for at in range(0, len(text), 4)] for text in texts]
    return {
        "misread": [
            "".join(draw.choice(text) if draw.random() < 0.15 else a for a in text) for text in texts
        ],
        "scrambled": ["".join("".join(draw.sample(each, len(each))) for each in text) for text in pieces],
        "shuffled": ["".join(draw.sample(text, len(text))) for text in pieces],
        "lost": [text.replace(draw.choice(text), "\ufffd") for text in texts],
    }
