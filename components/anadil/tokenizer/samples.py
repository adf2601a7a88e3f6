"""The text that every candidate is measured on: held out, by domain, and what is to be kept."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from anadil.core.errors import DataError
from anadil.text.corpus import Document
from anadil.text.domains import domains_of
from anadil.text.language import load_language
from anadil.text.language_data import Language
from anadil.text.suffixes import MIN_WORD, suffix_borders

NUM_SAMPLE_WORDS = 8
MIN_SAMPLE_CHARS = 8
UNSEEN_EVERY, LEAST_TEXTS = 5, 10
"""One document of so many of `tokenizer.keep` is left out when candidates are made, where there are so many. Chosen by us."""
KEPT_LANGUAGE = "en"
"""Whose words those of `tokenizer.keep` are: what stands between spaces."""


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """Texts of one kind."""

    name: str
    texts: tuple[str, ...]
    words: Mapping[str, int]
    """Word -> how often it occurs, as the language defines words."""

    @property
    def unseen(self) -> tuple[str, ...]:
        """Every fifth text, on which is measured what the others protect; none of fewer than ten."""
        return self.texts[UNSEEN_EVERY - 1 :: UNSEEN_EVERY] if len(self.texts) >= LEAST_TEXTS else ()

    @property
    def seen(self) -> tuple[str, ...]:
        """The other texts."""
        return tuple(
            text for number, text in enumerate(self.texts, 1) if number % UNSEEN_EVERY or not self.unseen
        )

    @cached_property
    def num_words(self) -> int:
        """Words, repeated ones too."""
        return sum(self.words.values())

    @cached_property
    def num_bytes(self) -> int:
        """Length in UTF-8."""
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutSample:
    """All that candidates are measured on."""

    domains: tuple[TextSample, ...]
    """The held-out text, most words first; each with a word in it."""
    keep: tuple[TextSample, ...]
    """Text that must not cost more; see `tokenizer.keep`."""
    spaced: bool
    """True if words follow spaces."""
    samples: tuple[str, ...]
    """Words to cut up, with the space before them where the text has one there."""
    borders: Mapping[str, frozenset[int]]
    """Word of the held-out text, with that space -> places of its suffixes; empty where the language has none."""

    @property
    def num_words(self) -> int:
        """Words of the held-out text."""
        return sum(domain.num_words for domain in self.domains)

    @property
    def num_bytes(self) -> int:
        """Bytes of the held-out text."""
        return sum(domain.num_bytes for domain in self.domains)


def sample_heldout(
    documents: Iterable[Document], language: Language, keep: Mapping[str, Sequence[str]]
) -> HeldoutSample:
    """Count words once, and choose the words to show.

    Args:
        documents: The held-out part.
        language: That is taught.
        keep: Name of each text of `tokenizer.keep` -> its documents.

    Raises:
        DataError: There is no held-out text, or no word in it.
    """
    heldout = tuple(documents)
    domain_names = domains_of(heldout, [len(document.text) for document in heldout])
    texts: dict[str, list[str]] = {}
    for document, name in zip(heldout, domain_names, strict=True):
        texts.setdefault(name, []).append(document.text)
    samples = [_sample(name, each, language.words) for name, each in texts.items()]
    # The name breaks ties, so that tables are equal in every run.
    domains = sorted((each for each in samples if each.words), key=lambda each: (-each.num_words, each.name))
    counts: Counter[str] = Counter()
    for domain in domains:
        counts.update(domain.words)
    if not counts:
        raise DataError(
            "tokenizer: the corpus has no held-out text, so nothing can be compared; "
            "run clean with more inputs or a larger clean.heldout_fraction"
        )
    shown, spaced = _words_to_show(counts, heldout, language)
    space = " " if spaced else ""
    english = load_language(KEPT_LANGUAGE).words
    return HeldoutSample(
        domains=tuple(domains),
        keep=tuple(_sample(name, each, english) for name, each in keep.items()),
        spaced=spaced,
        samples=tuple(f"{space}{word}" for word in shown),
        borders={f"{space}{word}": places for word, places in _borders(counts, language).items()},
    )


def _sample(name: str, texts: Sequence[str], words: Callable[[str], list[str]]) -> TextSample:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    return TextSample(name=name, texts=tuple(texts), words=counts)


def _words_to_show(
    counts: Counter[str], documents: Sequence[Document], language: Language
) -> tuple[tuple[str, ...], bool]:
    """Words to cut up, and whether words stand after spaces."""
    long = [word for word in counts if len(word) >= MIN_SAMPLE_CHARS and word.isalpha()]
    frequent = sorted(long or counts, key=lambda word: (-counts[word], word))
    words = dict.fromkeys([*language.sample_words, *frequent[:NUM_SAMPLE_WORDS]])
    return tuple(words), any(f" {frequent[0]}" in document.text for document in documents)


def _borders(counts: Mapping[str, int], language: Language) -> dict[str, frozenset[int]]:
    """Words that end in suffixes of the language, and where those begin."""
    if not language.suffixes:
        return {}
    bare = {word for word in map(core, counts) if word.isalpha()}
    folded = {word: language.fold(word) for word in bare}
    stems = frozenset(folded.values())
    borders = {
        word: suffix_borders(same, language.suffixes, stems)
        for word, same in sorted(folded.items())
        if len(word) >= MIN_WORD and len(word) == len(same)
    }
    return {word: places for word, places in borders.items() if places}


def core(word: str) -> str:
    """A word without the punctuation around it."""
    start, end = 0, len(word)
    while start < end and not word[start].isalnum():
        start += 1
    while end > start and not word[end - 1].isalnum():
        end -= 1
    return word[start:end]
