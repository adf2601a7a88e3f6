"""Four steps of scoring a short answer in Azerbaijani, in the order of their lenience.

A model that knows an answer may inflect it, leave out its diacritics, or write it in Cyrillic. The step that first accepts
the answer says which.
Source: Garibli 2026, "AZ-Eval", github.com/nihatgaribli/AZ-Eval-benchmark, section "Four nested normalisations".
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STEPS = ("exact_match", "without_suffixes", "without_diacritics", "transliterated")
LOWER = str.maketrans("Iİ", "ıi")
PLAIN = str.maketrans("əğıöşüç", "egiosuc")
CYRILLIC = dict(
    zip("абвгдежзийклмнопрстуфхчшыэәғқөұүһіј", "abvqdejziyklmnoprstufxçşıeəğqöuühiy", strict=True),
    ё="yo", ц="ts", щ="şç", ъ="", ь="", ю="yu", я="ya", ң="ng", ҹ="c", ҝ="g",
)  # fmt: skip
"""Letters of Russian, Kazakh and Azerbaijani as Azerbaijani in Latin script writes their sounds."""
SUFFIXES = (
    "dan", "dən", "lar", "lər", "ıla", "ilə", "ula", "ülə", "da", "də", "la", "lə", "ın", "in", "un", "ün", "sı", "si", "su", "sü",
    "ya", "yə", "a", "ə", "ı", "i", "u", "ü",
)  # fmt: skip
"""Cases, plural and possessive, longest first."""
MOST_SUFFIXES, SHORTEST_STEM = 3, 3
VOWELS = frozenset("aeəıioöuü")


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return 1 for each step that accepts the answer."""
    right = [doc["answer"], *(doc.get("answer_aliases") or ())]
    forms = zip(_forms(results[0]), *map(_forms, right), strict=True)
    return {step: float(said in accepted) for step, (said, *accepted) in zip(STEPS, forms, strict=True)}


def _forms(text: str) -> Iterator[str]:
    """Yield the text as each step compares it."""
    plain = unicodedata.normalize("NFKC", text).translate(LOWER).lower()
    words = "".join(" " if unicodedata.category(each)[0] in "PS" else each for each in plain).split()
    yield " ".join(words)
    yield " ".join(_stem(word, SUFFIXES) for word in words)
    without = list(dict.fromkeys(each.translate(PLAIN) for each in SUFFIXES))
    yield " ".join(_stem(word.translate(PLAIN), without) for word in words)
    latin = ("".join(CYRILLIC.get(letter, letter) for letter in word) for word in words)
    yield " ".join(_stem(word.translate(PLAIN), without) for word in latin)


def _stem(word: str, suffixes: Sequence[str]) -> str:
    for _ in range(MOST_SUFFIXES):
        stems = (word.removesuffix(each) for each in suffixes if word.endswith(each))
        word = next((each for each in stems if len(each) >= SHORTEST_STEM and VOWELS & set(each)), word)
    return word
