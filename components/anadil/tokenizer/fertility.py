"""What a tokenizer costs on held-out text, and whether it gives the text back."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tokenizers import Tokenizer

from anadil.core.errors import DataError
from anadil.core.progress import track
from anadil.text import metrics
from anadil.text.encoder import Encoder
from anadil.text.language import Language

BATCH = 64
"""Documents encoded at a time."""
NUM_SAMPLE_WORDS = 8
MIN_SAMPLE_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutSample:
    """The text that every candidate is measured on."""

    texts: tuple[str, ...]
    num_words: int
    """As the language defines words."""
    num_bytes: int
    """In UTF-8."""
    samples: tuple[str, ...]
    """Words to cut up, with the space before them where the text has one there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fertility:
    """What one tokenizer does to the held-out text; special tokens are left out everywhere."""

    num_tokens: int
    fertility: float
    """Tokens per word."""
    bytes_per_token: float
    unused_tokens: int
    """Tokens of the vocabulary that the text never uses."""
    changed_documents: tuple[int, ...]
    """Positions of the documents that decode to another text."""
    samples: dict[str, list[str]]
    """Word -> its pieces; a piece that is part of a letter shows as U+FFFD."""

    def as_json(self) -> dict[str, object]:
        """The fields as `fertility.json` holds them."""
        fields = asdict(self)
        fields["round_trip"] = not fields.pop("changed_documents")
        return fields


def sample_heldout(texts: Iterable[str], language: Language) -> HeldoutSample:
    """Count words and bytes once, and choose the words to show.

    Raises:
        DataError: There is no text, or no word in it.
    """
    kept = tuple(texts)
    counts: Counter[str] = Counter()
    for text in kept:
        counts.update(language.words(text))
    if not counts:
        raise DataError(
            "tokenizer: the corpus has no held-out text, so nothing can be compared; "
            "run clean with more inputs or a larger clean.heldout_fraction"
        )
    long = [word for word in counts if len(word) >= MIN_SAMPLE_CHARS and word.isalpha()]
    frequent = sorted(long or counts, key=lambda word: (-counts[word], word))
    words = dict.fromkeys([*language.sample_words, *frequent[:NUM_SAMPLE_WORDS]])
    spaced = any(f" {frequent[0]}" in text for text in kept)
    return HeldoutSample(
        texts=kept,
        num_words=counts.total(),
        num_bytes=sum(len(text.encode()) for text in kept),
        samples=tuple(f" {word}" if spaced else word for word in words),
    )


def measure_fertility(tokenizer: Tokenizer, heldout: HeldoutSample, name: str) -> Fertility:
    """Encode and decode the held-out text.

    Args:
        tokenizer: The candidate's.
        heldout: The text.
        name: The candidate, for the progress line.
    """
    used: set[int] = set()
    num_tokens = 0
    changed: list[int] = []
    encoder = Encoder(tokenizer)
    starts = range(0, len(heldout.texts), BATCH)
    for start in track(starts, f"measuring {name}", len(starts)):
        texts = heldout.texts[start : start + BATCH]
        ids = [one.tolist() for one in encoder.encode(texts)]
        decoded = tokenizer.decode_batch(ids, skip_special_tokens=False)
        num_tokens += sum(map(len, ids))
        used.update(*ids)
        changed += [
            start + offset
            for offset, (before, after) in enumerate(zip(texts, decoded, strict=True))
            if _normalized(tokenizer, before) != after
        ]
    return Fertility(
        num_tokens=num_tokens,
        fertility=round(metrics.fertility(num_tokens, heldout.num_words), 4),
        bytes_per_token=round(heldout.num_bytes / num_tokens, 4),
        unused_tokens=tokenizer.get_vocab_size(with_added_tokens=True) - len(used),
        changed_documents=tuple(changed),
        samples={word.strip(): _pieces(tokenizer, word) for word in heldout.samples},
    )


def _normalized(tokenizer: Tokenizer, text: str) -> str:
    """The text as the tokenizer's own normalizer leaves it: all that decoding can give back."""
    return text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)


def _pieces(tokenizer: Tokenizer, word: str) -> list[str]:
    (ids,) = Encoder(tokenizer).encode([word])
    pieces = [tokenizer.decode([index], skip_special_tokens=False) for index in ids.tolist()]
    return [pieces[0].lstrip(), *pieces[1:]] if pieces[0].strip() else pieces[1:]
