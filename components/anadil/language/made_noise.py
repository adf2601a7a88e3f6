"""Noise made of good text, to try limits on where the user has no bad text to show."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

MAX_TEXTS = 300
"""Most texts of a kind."""
PIECE_LETTERS = (2, 6)
"""Least and most of what stands for a word where nothing parts words. Our choice: most words of such languages."""
SIGNS = "01589|!~^*$"
"""Signs that stand for letters in a bad scan."""
NUM_KEYWORDS = 60
NUM_FREQUENT = 8
"""Letters, of which one is lost or stands alone."""


Draw = random.Random


def _of_words(change: Callable[[str, Draw], str], share: float = 1.0) -> Callable[[str, Draw], str]:
    """Make noise by changing this share of a text's words."""

    def make(text: str, draw: Draw) -> str:
        return " ".join(
            change(word, draw) if share == 1 or draw.random() < share else word for word in text.split()
        )

    return make


def _misread(text: str, draw: Draw, signs: Sequence[str] = ()) -> str:
    """Replace one letter in twelve by a sign, or by another letter of the text."""
    others = signs or [*filter(str.isalpha, text)]
    return "".join(draw.choice(others) if each.isalpha() and draw.random() < 0.08 else each for each in text)


def _frequent_letter(text: str, draw: Draw) -> str:
    """Draw one of the most frequent letters; the blank of a text without any."""
    letters = [letter for letter, _ in Counter(text).most_common() if letter.isalpha()][:NUM_FREQUENT]
    return draw.choice(letters) if letters else " "


def _torn_letters(text: str, draw: Draw) -> str:
    letter = _frequent_letter(text.lower(), draw)
    return " ".join(
        word.replace(letter, f" {letter} ") if draw.random() < 0.3 else word for word in text.split()
    )


def _halved(text: str, draw: Draw) -> str:
    return " ".join(
        f"{word[: len(word) // 2]} {word[len(word) // 2 :]}"
        if len(word) > 3 and draw.random() < 0.5
        else word
        for word in text.split()
    )


def _keywords(text: str, draw: Draw) -> str:
    words = text.split()
    some = draw.sample(words, min(NUM_KEYWORDS, len(words)))
    return ", ".join(draw.sample(some, len(some)) + draw.sample(some, len(some)))


KINDS: dict[str, Callable[[str, Draw], str]] = {
    # Every other word falls apart into letters, as in text of damaged PDF files.
    "torn words": _of_words(lambda word, _: " ".join(word), 0.5),
    # The letters of each word in another order, as of a wrong code page or a bad scan.
    "scrambled letters": _of_words(lambda word, draw: "".join(draw.sample(word, len(word)))),
    # One letter of the alphabet stands alone in a third of the words that have it, as a damaged font of a PDF file does.
    "torn letters": _torn_letters,
    # Half of the longer words are in two, as where a line was too narrow for them.
    "halved words": _halved,
    # One letter in twelve is another one of the text, as of a bad scan, or a figure or a sign.
    "misread letters": _misread,
    "letters read as signs": partial(_misread, signs=SIGNS),
    # One letter of the alphabet did not survive a wrong decoding.
    "lost letters": lambda text, draw: text.replace(_frequent_letter(text, draw), "\ufffd"),
    # Half of the blanks are lost, as in text of damaged PDF files.
    "joined words": lambda text, draw: "".join(each for each in text if each != " " or draw.random() < 0.5),
    # The words in another order, and sixty of them twice, as pages that are made for search engines.
    "shuffled words": lambda text, draw: " ".join(draw.sample(text.split(), len(text.split()))),
    "keywords": _keywords,
    # Two lines again and again, as of a template.
    "repeated lines": lambda text, draw: "\n".join(draw.choice([text[:60], text[60:120]]) for _ in range(30)),
    # Half of the words are figures, as of tables.
    "figures": _of_words(lambda _, draw: str(draw.randrange(100_000)), 0.5),
}
NEED_SPACES = frozenset({"torn letters", "halved words", "joined words"})
"""Kinds that are no damage, or the same as another, where nothing parts words."""


def _without_spaces(kind: str, text: str, draw: Draw) -> str:
    """Make noise of a text whose words nothing parts: pieces of it stand for words while it is made."""
    if kind in ("repeated lines", "lost letters"):
        return KINDS[kind](text, draw)
    text, pieces, start = "".join(text.split()), [], 0
    while start < len(text):
        stop = start + draw.randint(*PIECE_LETTERS)
        pieces.append(text[start:stop])
        start = stop
    made = KINDS[kind](" ".join(pieces), draw)
    return made if kind == "torn words" else made.replace(" ", "")


def noise_of_kind(kind: str, texts: Sequence[str]) -> list[str]:
    """Make noise of one of `KINDS` of some of the texts; the same of equal texts."""
    draw = random.Random(0)  # noqa: S311  no secret
    return [KINDS[kind](text, draw) for text in texts[:MAX_TEXTS]]


def made_noise(texts: Sequence[str], *, spaces: bool) -> dict[str, list[str]]:
    """Make noise of each kind of good texts, with or without spaces between their words; the same of equal texts."""
    draw = random.Random(0)  # noqa: S311  no secret
    some = texts[:MAX_TEXTS]
    if spaces:
        return {kind: [make(text, draw) for text in some] for kind, make in KINDS.items()}
    kinds = [kind for kind in KINDS if kind not in NEED_SPACES]
    return {kind: [_without_spaces(kind, text, draw) for text in some] for kind in kinds}
