"""Figures of a tokenizer on text: tokens per word by domain, cuts of words, round trip."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from statistics import fmean

from tokenizers import Tokenizer

from anadil.artifacts import storage
from anadil.artifacts.text_files import TEXT_SUFFIXES, text_of, text_rows, text_suffix
from anadil.core.errors import DataError
from anadil.core.progress import track
from anadil.runtime.job import Job
from anadil.text import metrics
from anadil.text.corpus import Document
from anadil.text.domains import domains_of, name_of_file
from anadil.text.encoder import Encoder
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


BATCH = 64  # Documents encoded at a time
WORD_BATCH = 4_096
DIGITS = 4  # Decimals of figures in the tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFertility:
    """Figures of one tokenizer on the texts of one kind. Special tokens are left out everywhere."""

    num_words: int
    num_tokens: int
    fertility: float
    """Tokens per word."""
    bytes_per_token: float
    words_in_context: int
    """Words of such text that a model of `context` tokens sees at a time."""
    continued_words: float
    """Share of words that are cut into several tokens, punctuation around them left out.
    Source: Rust et al. 2021, arXiv:2012.15613, section 4."""
    single_token_words: float
    """Share of the different words that are one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Morphology:
    """Agreement of token borders with suffix borders, over words that are cut at all and have suffixes.

    Source: Arnett et al. 2025, arXiv:2507.06378, section 3: precision and recall of borders, one-token words skipped.
    """

    score: float
    """Harmonic mean of both shares, 0 to 1."""
    borders_on_suffixes: float
    """Share of the tokens' borders at which a suffix begins (precision)."""
    suffixes_on_borders: float
    """Share of suffixes that begin with a token (recall)."""
    num_words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fertility:
    """Figures of one tokenizer on all of the text."""

    num_tokens: int
    fertility: float
    """Tokens per word of all held-out text."""
    mean_fertility: float
    """Mean over the domains, so that a large or repetitive one does not decide."""
    bytes_per_token: float
    unused_tokens: int
    """Tokens of the vocabulary that the held-out text never uses."""
    changed_documents: tuple[int, ...]
    """Positions of the held-out documents, domain after domain, that decode to another text."""
    samples: Mapping[str, list[str]]
    """Word -> its pieces; a piece that is part of a letter shows as U+FFFD."""
    domains: Mapping[str, TextFertility]
    keep: Mapping[str, TextFertility]
    morphology: Morphology | None
    """None where the language's pack names no suffixes, or no word was cut that has one."""
    tokens_per_cpu_s: float
    """Speed of encoding; it varies from run to run, and so is left out of `as_json`."""
    altered_documents: tuple[int, ...] = ()
    """The changed ones and those that the normalizer changes; left out of `as_json` too."""

    def as_json(self) -> dict[str, object]:
        """The fields as `fertility.json` holds them."""
        fields = asdict(self)
        fields["round_trip"] = not fields.pop("changed_documents")
        del fields["tokens_per_cpu_s"], fields["altered_documents"]
        return fields


def measure_fertility(tokenizer: Tokenizer, heldout: HeldoutSample, name: str, context: int) -> Fertility:
    """Encode and decode all of the text."""
    run = _Run(tokenizer, context, " " if heldout.spaced else "")
    domains = {each.name: run.measure(each, name) for each in heldout.domains}
    unused = tokenizer.get_vocab_size(with_added_tokens=True) - len(run.used)
    changed, altered = tuple(run.changed), tuple(run.altered)
    keep = {each.name: run.measure(each, name) for each in heldout.keep}
    num_tokens = sum(each.num_tokens for each in domains.values())
    return Fertility(
        num_tokens=num_tokens, fertility=round(metrics.fertility(num_tokens, heldout.num_words), DIGITS),
        mean_fertility=round(fmean(each.fertility for each in domains.values()), DIGITS),
        bytes_per_token=round(heldout.num_bytes / num_tokens, DIGITS), unused_tokens=unused,
        changed_documents=changed, altered_documents=altered,
        samples={word.strip(): pieces_of(tokenizer, word) for word in heldout.samples}, domains=domains,
        keep=keep, morphology=measure_morphology(tokenizer, heldout.borders),
        tokens_per_cpu_s=run.num_tokens / max(run.cpu_s, 1e-9),
    )  # fmt: skip


class _Run:
    def __init__(self, tokenizer: Tokenizer, context: int, space: str) -> None:
        self.used: set[int] = set()
        self.changed: list[int] = []
        self.altered: list[int] = []
        self.num_tokens = 0
        self.cpu_s = 0.0
        self._tokenizer, self._context, self._space = tokenizer, context, space
        self._encoder = Encoder(tokenizer)
        self._num_texts = 0

    def measure(self, sample: TextSample, name: str) -> TextFertility:
        num_tokens = 0
        starts = range(0, len(sample.texts), BATCH)
        for start in track(starts, f"measuring {name} on {sample.name}", len(starts)):
            num_tokens += self._encode(sample.texts[start : start + BATCH])
        fertility = metrics.fertility(num_tokens, sample.num_words)
        continued, single = self._words(sample)
        return TextFertility(
            num_words=sample.num_words,
            num_tokens=num_tokens,
            fertility=round(fertility, DIGITS),
            bytes_per_token=round(sample.num_bytes / num_tokens, DIGITS),
            words_in_context=metrics.words_in_context(self._context, fertility),
            continued_words=round(continued, DIGITS),
            single_token_words=round(single, DIGITS),
        )

    def _encode(self, texts: Sequence[str]) -> int:
        """Encode and decode some texts; how many tokens they are."""
        # CPU time, because other programs may share the cores.
        begin = time.process_time()
        ids = [one.tolist() for one in self._encoder.encode(texts)]
        self.cpu_s += time.process_time() - begin
        decoded = self._tokenizer.decode_batch(ids, skip_special_tokens=False)
        normalizer = self._tokenizer.normalizer
        self.used.update(*ids)
        for number, (before, after) in enumerate(zip(texts, decoded, strict=True), self._num_texts):
            # SentencePiece's decoder undoes what its normalizers write for blanks.
            if after != before:
                self.altered.append(number)
                # All that decoding can give back is what the normalizer leaves.
                normal = before if normalizer is None else normalizer.normalize_str(before)
                self.changed += [number] if after != normal else []
        self._num_texts += len(texts)
        num_tokens = sum(map(len, ids))
        self.num_tokens += num_tokens
        return num_tokens

    def _words(self, sample: TextSample) -> tuple[float, float]:
        """Share of words that are cut, and share of the different words that are not."""
        counts: dict[str, int] = {}
        for word, count in sample.words.items():
            # `kitab,` and `kitab` are one word here: every pattern cuts the comma off.
            if bare := core(word):
                counts[bare] = counts.get(bare, 0) + count
        if not counts:
            return 0.0, 0.0
        lengths = map(len, self._encoder.encode([f"{self._space}{word}" for word in counts]))
        cut = [length > 1 for length in lengths]
        num_cut = sum(count for count, is_cut in zip(counts.values(), cut, strict=True) if is_cut)
        return num_cut / sum(counts.values()), 1 - sum(cut) / len(cut)


def measure_morphology(tokenizer: Tokenizer, borders: Mapping[str, frozenset[int]]) -> Morphology | None:
    """Compare borders of tokens with those of suffixes; a border inside a letter counts as one within the stem.

    `borders` maps a word, with the space before it, to places of its suffixes, the space not counted.
    """
    words = list(borders)
    num_words = num_borders = num_suffixes = num_both = 0
    for start in range(0, len(words), WORD_BATCH):
        batch = words[start : start + WORD_BATCH]
        encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
        for word, encoding in zip(batch, encodings, strict=True):
            space = len(word) - len(word.lstrip())
            # The token after one that ends inside a letter begins with that letter again: its border is -1.
            begins = (
                -1 if start < end else start - space for (_, end), (start, _) in pairwise(encoding.offsets)
            )
            inner = [begin for begin in begins if begin]
            if inner:
                suffixes = borders[word]
                num_words += 1
                num_borders += len(inner)
                num_suffixes += len(suffixes)
                num_both += len(suffixes.intersection(inner))
    if not num_words:
        return None
    return Morphology(
        score=round(2 * num_both / (num_borders + num_suffixes), DIGITS),
        borders_on_suffixes=round(num_both / num_borders, DIGITS),
        suffixes_on_borders=round(num_both / num_suffixes, DIGITS),
        num_words=num_words,
    )


def pieces_of(tokenizer: Tokenizer, word: str) -> list[str]:
    """Pieces of a word, without the space before it."""
    (ids,) = Encoder(tokenizer).encode([word])
    pieces = [tokenizer.decode([index], skip_special_tokens=False) for index in ids.tolist()]
    return [pieces[0].lstrip(), *pieces[1:]] if pieces[0].strip() else pieces[1:]


def unchanged_share(base: Tokenizer, candidate: Tokenizer, texts: Sequence[str]) -> float:
    """Share of texts that both tokenizers cut into the same tokens, 0 to 1."""
    cuts = [each.encode_batch(list(texts), add_special_tokens=False) for each in (base, candidate)]
    same = sum(bool(before.tokens == after.tokens) for before, after in zip(*cuts, strict=True))
    return same / len(texts)
