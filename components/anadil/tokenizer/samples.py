"""Texts that every candidate is measured on: held out, by domain, and those of `tokenizer.keep`."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from anadil.artifacts import storage
from anadil.artifacts.text_files import TEXT_SUFFIXES, text_of, text_rows, text_suffix
from anadil.core.errors import DataError
from anadil.runtime.job import Job
from anadil.text.corpus import Document
from anadil.text.domains import domains_of, name_of_file
from anadil.text.language import load_language
from anadil.text.language_data import Language

KEY = "tokenizer.keep"

NUM_SAMPLE_WORDS = 8
MIN_SAMPLE_CHARS = 8
UNSEEN_EVERY, LEAST_TEXTS = 5, 10
"""One document of so many of `tokenizer.keep` is left out when candidates are made, where there are so many. Chosen by us."""
KEPT_LANGUAGE = "en"
"""Its words, which stand between spaces, are those of `tokenizer.keep`."""
MIN_STEM, MIN_WORD = 3, 6
"""Letters of the shortest stem, because shorter ones are mostly chance, and of the shortest word with borders."""


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
    """Count the words of held-out documents and of texts to keep (name -> documents), and choose the words to show."""
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
    """Words to cut up, and True if words stand after spaces."""
    long = [word for word in counts if len(word) >= MIN_SAMPLE_CHARS and word.isalpha()]
    frequent = sorted(long or counts, key=lambda word: (-counts[word], word))
    words = dict.fromkeys([*language.sample_words, *frequent[:NUM_SAMPLE_WORDS]])
    return tuple(words), any(f" {frequent[0]}" in document.text for document in documents)


def _borders(counts: Mapping[str, int], language: Language) -> dict[str, frozenset[int]]:
    """Words that end in suffixes of the language -> places where those begin."""
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


def suffix_borders(word: str, suffixes: Collection[str], stems: Collection[str]) -> frozenset[int]:
    """Places in a word at which a suffix begins; none where no known stem is found. All text is folded.

    A stem is a word that the text holds by itself, such as `kitablar` or `kitab` of `kitablardan`. The longest one comes
    first, what follows it being suffixes, and then the same within the stem.
    """
    borders: set[int] = set()
    end = len(word)
    for start in range(len(word) - 1, MIN_STEM - 1, -1):
        if word[:start] not in stems:
            continue
        if chain := _chain(word[start:end], frozenset(suffixes)):
            borders.update(accumulate(map(len, chain[:-1]), initial=start))
            end = start
    return frozenset(borders)


# Stems differ, but endings come again and again.
@lru_cache(maxsize=65_536)
def _chain(text: str, suffixes: frozenset[str]) -> tuple[str, ...]:
    """The fewest suffixes that make up a text; none where it is no chain of them."""
    if text in suffixes:
        return (text,)
    shortest: tuple[str, ...] = ()
    for cut in range(1, len(text)):
        if text[:cut] in suffixes:
            rest = _chain(text[cut:], suffixes)
            if rest and (not shortest or len(rest) + 1 < len(shortest)):
                shortest = (text[:cut], *rest)
    return shortest


def read_keep_texts(job: Job) -> dict[str, tuple[str, ...]]:
    """Name of each text of `tokenizer.keep` -> its documents; the name is a language's id, or that of the file."""
    documents: dict[str, tuple[str, ...]] = {}
    for uri in job.side_files.get(KEY, ()):
        if not text_suffix(uri):
            raise DataError(
                f"{KEY}: {uri} is neither {', '.join(TEXT_SUFFIXES)} nor the id of a language with built-in text; name one of those"
            )
        is_built_in = uri.startswith(storage.BUILT_IN)
        # clean.text_field is the key of the user's files, not of built-in ones.
        field = "text" if is_built_in else job.recipe.clean.text_field
        place = f"{KEY}: {uri}"
        with storage.local_copy(uri) as path:
            read = (text_of(row, field, where) for where, row in text_rows(path, place, field))
            texts = tuple(text for text in read if text.strip())
        if not texts:
            raise DataError(f"{place} holds no text; name another file")
        language = uri.removeprefix(storage.BUILT_IN).partition("/")[0]
        name = language if is_built_in else name_of_file(uri.partition("?")[0])
        documents[name] = documents.get(name, ()) + texts
    return documents
