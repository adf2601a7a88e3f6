"""Noise made of good text, to try limits on where the user has no bad text to show."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

MAX_TEXTS = 300
"""Most texts of a kind."""
PIECE_LETTERS = (2, 6)
"""Least and most of what stands for a word where nothing parts words. Our choice: most words of such languages."""
SIGNS = "01589|!~^*$"
"""Signs that stand for letters in a bad scan."""
NUM_KEYWORDS = 60
NUM_FREQUENT = 8
"""Letters, of which one is lost or stands alone."""


def _torn(text: str, draw: random.Random) -> str:
    """Every other word falls apart into letters, as in text of damaged PDF files."""
    return " ".join(" ".join(word) if draw.random() < 0.5 else word for word in text.split())


def _scrambled(text: str, draw: random.Random) -> str:
    """The letters of each word in another order, as of a wrong code page or a bad scan."""
    return " ".join("".join(draw.sample(word, len(word))) for word in text.split())


def _repeated(text: str, draw: random.Random) -> str:
    """Two lines again and again, as of a template."""
    lines = [text[:60], text[60:120]]
    return "\n".join(draw.choice(lines) for _ in range(30))


def _numbers(text: str, draw: random.Random) -> str:
    """Half of the words are figures, as of tables."""
    return " ".join(str(draw.randrange(100_000)) if draw.random() < 0.5 else word for word in text.split())


def _frequent_letter(text: str, draw: random.Random) -> str:
    """One of the most frequent letters; the blank of a text without any."""
    letters = [letter for letter, _ in Counter(filter(str.isalpha, text)).most_common(NUM_FREQUENT)]
    return draw.choice(letters) if letters else " "


def _lost(text: str, draw: random.Random) -> str:
    """One letter of the alphabet did not survive a wrong decoding."""
    return text.replace(_frequent_letter(text, draw), "\ufffd")


def _torn_letters(text: str, draw: random.Random) -> str:
    """One letter of the alphabet stands alone in a third of the words that have it, as a damaged font of a PDF file does."""
    letter = _frequent_letter(text.lower(), draw)
    return " ".join(
        word.replace(letter, f" {letter} ") if draw.random() < 0.3 else word for word in text.split()
    )


def _halved(text: str, draw: random.Random) -> str:
    """Half of the longer words are in two, as where a line was too narrow for them."""
    return " ".join(
        f"{word[: len(word) // 2]} {word[len(word) // 2 :]}"
        if len(word) > 3 and draw.random() < 0.5
        else word
        for word in text.split()
    )


def _misread(text: str, draw: random.Random) -> str:
    """One letter in twelve is another one of the text, as of a bad scan."""
    letters = [*filter(str.isalpha, text)]
    return "".join(draw.choice(letters) if each.isalpha() and draw.random() < 0.08 else each for each in text)


def _misread_as_signs(text: str, draw: random.Random) -> str:
    """One letter in twelve is a figure or a sign."""
    return "".join(draw.choice(SIGNS) if each.isalpha() and draw.random() < 0.08 else each for each in text)


def _joined(text: str, draw: random.Random) -> str:
    """Half of the blanks are lost, as in text of damaged PDF files."""
    return "".join(each for each in text if each != " " or draw.random() < 0.5)


def _keywords(text: str, draw: random.Random) -> str:
    """Sixty of its words, twice, as below pages that are made for search engines."""
    words = text.split()
    some = draw.sample(words, min(NUM_KEYWORDS, len(words)))
    return ", ".join(draw.sample(some, len(some)) + draw.sample(some, len(some)))


def _shuffled(text: str, draw: random.Random) -> str:
    """Its words in another order, as pages that are made for search engines."""
    words = text.split()
    return " ".join(draw.sample(words, len(words)))


KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "torn words": _torn,
    "scrambled letters": _scrambled,
    "torn letters": _torn_letters,
    "halved words": _halved,
    "misread letters": _misread,
    "letters read as signs": _misread_as_signs,
    "lost letters": _lost,
    "joined words": _joined,
    "shuffled words": _shuffled,
    "keywords": _keywords,
    "repeated lines": _repeated,
    "figures": _numbers,
}
NEED_SPACES = frozenset({"torn letters", "halved words", "joined words"})
"""Kinds that are no damage, or the same as another, where nothing parts words."""


def _pieces(text: str, draw: random.Random) -> str:
    """The text with a blank after each few letters."""
    pieces, start = [], 0
    while start < len(text):
        stop = start + draw.randint(*PIECE_LETTERS)
        pieces.append(text[start:stop])
        start = stop
    return " ".join(pieces)


def _without_spaces(kind: str, text: str, draw: random.Random) -> str:
    """Noise of a text whose words nothing parts: pieces of it stand for words while it is made."""
    if kind in ("repeated lines", "lost letters"):
        return KINDS[kind](text, draw)
    made = KINDS[kind](_pieces("".join(text.split()), draw), draw)
    return made if kind == "torn words" else made.replace(" ", "")


def noise_of_kind(kind: str, texts: Sequence[str]) -> list[str]:
    """Noise of one of `KINDS`, made of some of the texts; the same of equal texts."""
    draw = random.Random(0)  # noqa: S311  no secret
    return [KINDS[kind](text, draw) for text in texts[:MAX_TEXTS]]


def made_noise(texts: Sequence[str], *, spaces: bool) -> dict[str, list[str]]:
    """Kind -> noise; the same of equal texts.

    Args:
        texts: Good text.
        spaces: There are spaces between its words.
    """
    draw = random.Random(0)  # noqa: S311  no secret
    some = texts[:MAX_TEXTS]
    if spaces:
        return {kind: [make(text, draw) for text in some] for kind, make in KINDS.items()}
    kinds = [kind for kind in KINDS if kind not in NEED_SPACES]
    return {kind: [_without_spaces(kind, text, draw) for text in some] for kind in kinds}
