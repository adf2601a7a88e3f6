"""Tokens that documents cost a tokenizer which was made without them, over those that it was made of.

    ANADIL_DATA=... python benchmarks/retrain/tokens_a_word.py

A byte-level BPE of 8,000 tokens is trained on half of the documents of a language. Samples of a fifth of the other half stand
for weeks. Japanese is counted by bytes, since blanks part no words there.
"""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCABULARY, SAMPLES, PARTS = 8_000, 40, 5
MISREAD = ("udhr", "creativecommons")
"""Files of the data that hold misread text."""


def texts_of(language: str) -> dict[str, list[str]]:
    """Texts of each file."""
    files = sorted((Path(os.environ["ANADIL_DATA"]) / language).glob("*.jsonl"))
    return {
        file.stem: [json.loads(line)["text"] for line in file.read_text("utf-8").split("\n") if line]
        for file in files
        if not any(name in file.stem for name in MISREAD)
    }


def trained(texts: Sequence[str]) -> Tokenizer:
    """Train the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def cost(tokenizer: Tokenizer, texts: Sequence[str], language: str) -> float:
    """Tokens for each word, or for each byte."""
    tokens = sum(len(each.ids) for each in tokenizer.encode_batch(list(texts)))
    return tokens / sum(len(text.encode()) if language == "ja" else len(text.split()) for text in texts)


@dataclass(frozen=True)
class Drift:
    """Tokens that texts cost over those of the texts that a tokenizer was made of."""

    tokenizer: Tokenizer
    before: float
    language: str

    def of(self, texts: Sequence[str]) -> int:
        """Return the difference in per cent."""
        return round(100 * (cost(self.tokenizer, texts, self.language) / self.before - 1))


def main() -> None:
    """Print a line for each language."""
    foreign = {code: [text for texts in texts_of(code).values() for text in texts] for code in ("tr", "en")}
    for language in ("az", "ja"):
        files = texts_of(language)
        everything = [text for texts in files.values() for text in texts]
        random.Random(0).shuffle(everything)  # noqa: S311  no secret
        half = len(everything) // 2
        tokenizer, rest = trained(everything[:half]), everything[half:]
        drift = Drift(tokenizer, cost(tokenizer, everything[:half], language), language)
        weeks = [random.Random(seed).sample(rest, len(rest) // PARTS) for seed in range(SAMPLES)]  # noqa: S311
        kinds = ", ".join(f"{name} {drift.of(texts):+} %" for name, texts in files.items())
        others = ", ".join(f"{code} {drift.of(texts):+} %" for code, texts in foreign.items())
        most = max(map(drift.of, weeks))
        print(
            f"{language}: weeks at most {most:+} %; kinds: {kinds}; other languages: {others}",
            flush=True,
        )


if __name__ == "__main__":
    main()
