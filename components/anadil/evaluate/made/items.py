"""Items made from held-out text: what its authors wrote, among choices that differ in one respect.

A model has chosen right if the text's own choice is the likeliest by nats for each byte. Nobody writes or translates an
item, so that every language has them, and they are of the kind of text that the recipe teaches.
"""

import hashlib
import itertools
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from anadil.core.format import counted
from anadil.evaluate.measures import Asked
from anadil.text.corpus import Document
from anadil.text.language_data import Language
from anadil.text.letters import name_of
from anadil.text.sentences import Span, sentence_spans, word_spans

log = logging.getLogger(__name__)

TRANSLATION = "translation"
MAX_PAIRS = 2_000
"""Pairs among which near ones are sought."""
SAMPLE_BYTES = 2_000_000
"""Training text whose words are counted. Chosen by us: some 200,000 words and two seconds."""
NUM_CHOICES = 4
FREQUENT = 100
"""Most frequent words. They and the pack's stop words are no content words."""
MIN_LETTERS = {True: 4, False: 2}
"""Fewest letters of a content word, where spaces part words, and where runs of signs are words."""
ENDING = 2
"""Letters at the end that all choices of a cloze share."""
MIN_STEM, MAX_ENDING = 3, 4
"""Letters that a word keeps, and most that it changes, for another ending."""
MIN_STEMS = 5
"""Stems that take an ending, from which it is one."""
FOLLOWING = 2
"""Words behind the changed ones that are scored too: they tell whether the change fits. Without words, twice as many letters."""
MIN_WORDS, MAX_CHARS = 5, 400
"""Words and characters of a sentence that items are made of."""
CONTINUED = 12
"""Words of a continuation, or half its letters."""
NEAR = 50
"""Sentences of other documents, or pairs, among which one of about the same length is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Choices of how a text goes on."""

    contexts: tuple[str, ...]
    """Text before each choice: one for all, or one each."""
    choices: tuple[str, ...]
    """The text's own one first."""
    document: str
    """Id of the document that it was made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of a document, with what stands before it and behind."""

    document: str
    text: str
    before: str
    """The sentence before, with the blanks between. Empty at the beginning."""
    after: str
    """Blanks behind, and the next sentence. Empty at the end."""
    words: tuple[Span, ...]

    def word(self, place: int) -> str:
        """Word at a place."""
        first, last = self.words[place]
        return self.text[first:last]


@dataclass(slots=True, kw_only=True)
class Vocabulary:
    """Words of the training text: how frequent they are, how they end, and which stand together."""

    language: Language
    num_bytes: int = 0
    """Text whose words are counted."""
    counts: Counter[str] = field(default_factory=Counter)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Words that stand next to each other."""
    by_class: Mapping[tuple[object, ...], list[str]] = field(default_factory=dict)
    """Frequency class, ending and case -> words, sorted."""
    by_stem: Mapping[str, list[str]] = field(default_factory=dict)
    """Stem -> its words. Without spaces, a word -> words that followed it at once."""
    endings: Mapping[str, int] = field(default_factory=dict)
    """Ending -> number of its stems."""
    frequent: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str], language: Language) -> "Vocabulary":
        """Count the words of the first texts."""
        self = cls(language=language)
        followers: dict[str, set[str]] = defaultdict(set)
        for text in texts:
            spans = word_spans(text, language)
            words = [text[first:last] for first, last in spans]
            self.counts.update(words)
            for place, pair in enumerate(itertools.pairwise(words)):
                self.pairs.add(pair)
                if language.word_unit and spans[place][1] == spans[place + 1][0]:
                    followers[pair[0]].add(pair[1])
            self.num_bytes += len(text.encode())
            if self.num_bytes >= SAMPLE_BYTES:
                break
        self.frequent = frozenset(word for word, _ in self.counts.most_common(FREQUENT)) | language.stop_words
        by_class, by_stem = defaultdict(list), defaultdict(list)
        for word in sorted(self.counts):
            # A word that occurs once may be a misprint.
            if self.counts[word] > 1:
                by_class[self.class_of(word)].append(word)
            if not language.word_unit:
                for cut in range(max(MIN_STEM, len(word) - MAX_ENDING), len(word) + 1):
                    by_stem[word[:cut]].append(word)
        self.by_class = by_class
        self.by_stem = {
            stem: sorted(words) for stem, words in (followers or by_stem).items() if len(words) > 1
        }
        self.endings = Counter(word[len(stem) :] for stem, words in self.by_stem.items() for word in words)
        return self

    def frequency(self, word: str) -> int:
        """Frequency class: words of one are at most twice as frequent as each other."""
        return self.counts[word].bit_length()

    def class_of(self, word: str) -> tuple[object, ...]:
        """Frequency class, ending and case of a word. Without spaces, its length and script in place of the ending."""
        if self.language.word_unit:
            return self.frequency(word), len(word), name_of(word[-1])
        return self.frequency(word), word[-ENDING:], word[0].isupper()

    def is_content(self, word: str) -> bool:
        """True for a word that is neither short nor among the most frequent."""
        letters = MIN_LETTERS[not self.language.word_unit] // letters_per_word(self.language)
        return (
            len(word) >= letters
            and self.counts[word] > 1
            and not {word, self.language.fold(word)} & self.frequent
        )


def digest(text: str) -> str:
    """Number by which a text is drawn."""
    return hashlib.sha256(text.encode()).hexdigest()


def letters_per_word(language: Language) -> int:
    """2 if every letter is a word, else 1: our guess of how many make one."""
    return len(language.words("ab"))


def make_items(
    documents: Sequence[Document], vocabulary: Vocabulary, most: int, seed: int
) -> dict[str, tuple[Item, ...]]:
    """Return the items of each kind: one of each document, then another. The order of the texts decides nothing."""
    places_of: dict[str, list[Sentence]] = defaultdict(list)
    for document in {each.text: each for each in documents}.values():
        text = document.text
        spans = list(sentence_spans(text, vocabulary.language))
        for place, (first, last) in enumerate(spans):
            words = word_spans(text[first:last], vocabulary.language)
            if len(words) < MIN_WORDS or last - first > MAX_CHARS:
                continue
            start = spans[place - 1][0] if place else first
            stop = spans[place + 1][1] if place + 1 < len(spans) else last
            places_of[text[first:last]].append(
                Sentence(
                    document=document.id, text=text[first:last], words=tuple(words),
                    before=text[start:first] if first - start <= MAX_CHARS else "",
                    after=text[last:stop] if stop - last <= MAX_CHARS else "",
                )
            )  # fmt: skip
    # A sentence of running text that stands in several places tells nothing.
    sentences = [places[0] for _, places in sorted(places_of.items()) if len(places) == 1]

    def items(kind: str) -> Iterator[Item | None]:
        # The text itself decides, so that a document more or less moves no other item.
        seeds = {digest(f"{seed} {kind} {each.text}"): each for each in sentences}
        by_document: dict[str, list[str]] = defaultdict(list)
        for key in sorted(seeds):
            by_document[seeds[key].document].append(key)
        for key in filter(None, itertools.chain(*itertools.zip_longest(*by_document.values()))):
            yield KINDS[kind](seeds[key], vocabulary, key, sentences)

    return {kind: tuple(itertools.islice(filter(None, items(kind)), most)) for kind in KINDS}


def _changed(
    num: int,
    others_at: Callable[..., list[str]],
    sentence: Sentence,
    vocabulary: Vocabulary,
    key: str,
    _: Sequence[Sentence],
) -> Item | None:
    """The sentence with other words in place of `num` ones, at the first drawn place that allows it."""
    most = len(sentence.words) - num
    for place in random.Random(key).sample(range(1, most + 1), most):  # noqa: S311  no secret
        if others := others_at(sentence, vocabulary, place, key):
            first, last = sentence.words[place][0], sentence.words[place + num - 1][1]
            behind = place + num - 1 + FOLLOWING * letters_per_word(vocabulary.language)
            # The sign at the end tells a word from a longer one.
            stop = sentence.words[behind][1] if behind < len(sentence.words) - 1 else len(sentence.text)
            context = sentence.before + sentence.text[:first]
            # A blank belongs to the token behind it.
            shown, rest = context.rstrip(), sentence.text[last:stop]
            return Item(
                contexts=(shown,), document=sentence.document,
                choices=tuple(f"{context[len(shown) :]}{each}{rest}" for each in (sentence.text[first:last], *others)),
            )  # fmt: skip
    return None


def _drawn(words: Sequence[str], num: int, key: str) -> list[str]:
    """Draw words. New ones of a later run leave most draws as they are."""
    return sorted(words, key=lambda each: digest(key + each))[:num] if len(words) >= num else []


def _cloze(sentence: Sentence, vocabulary: Vocabulary, place: int, key: str) -> list[str]:
    """Words of the frequency class and ending of a content word."""
    fold, word = vocabulary.language.fold, sentence.word(place)
    if not vocabulary.is_content(word):
        return []
    around = fold(sentence.before + sentence.text + sentence.after)
    others = [
        each
        for each in vocabulary.by_class[vocabulary.class_of(word)]
        # Words of one stem may both fit.
        if vocabulary.is_content(each)
        and fold(each) not in around
        and (len(each) < MIN_STEM or each[:MIN_STEM] != word[:MIN_STEM])
    ]
    return _drawn(others, NUM_CHOICES - 1, key)


def _ending(sentence: Sentence, vocabulary: Vocabulary, place: int, key: str) -> list[str]:
    """The word with an ending that it takes elsewhere."""
    word = sentence.word(place)
    if not vocabulary.language.word_unit:
        others = _other_endings(word, vocabulary)
    elif sentence.words[place - 1][1] == sentence.words[place][0]:
        others = [
            each
            for each in vocabulary.by_stem.get(sentence.word(place - 1), ())
            if each != word and name_of(each[-1]) == name_of(word[-1]) and abs(len(each) - len(word)) <= 1
        ]
    else:
        others = []
    # A model that knows how frequent words are and nothing else is at chance.
    near = [each for each in others if abs(vocabulary.frequency(each) - vocabulary.frequency(word)) <= 1]
    return _drawn(near, 1, key)


def _other_endings(word: str, vocabulary: Vocabulary) -> list[str]:
    """Words of the longest stem that a word shares with others, by endings that many stems take."""
    for cut in range(len(word), MIN_STEM - 1, -1):
        if 2 * cut < len(word) or len(word) - cut > MAX_ENDING:
            break
        if vocabulary.endings[word[cut:]] < MIN_STEMS:
            continue
        others = [
            each
            for each in vocabulary.by_stem.get(word[:cut], ())
            if each != word and vocabulary.endings[each[cut:]] >= MIN_STEMS
        ]
        if others:
            return others
    return []


def _order(sentence: Sentence, vocabulary: Vocabulary, place: int, _: str) -> list[str]:
    """Two neighbouring words the other way round."""
    gap = "" if vocabulary.language.word_unit else " "
    first, second = sentence.word(place), sentence.word(place + 1)
    # A capital gives the place of a name or of a beginning away.
    fits = (
        sentence.text[sentence.words[place][1] : sentence.words[place + 1][0]] == gap
        and first != second
        and (second, first) not in vocabulary.pairs
        and first.islower() == second.islower()
    )
    return [f"{second}{gap}{first}"] if fits else []


def _continuation(
    sentence: Sentence, vocabulary: Vocabulary, key: str, sentences: Sequence[Sentence]
) -> Item | None:
    """The beginning of the next sentence after its own, and after a sentence of another document."""
    # The same words behind two contexts: of two continuations the more usual one would win, whatever stands before.
    spans, context = word_spans(sentence.after, vocabulary.language), sentence.before + sentence.text
    drawn = random.Random(key).sample(sentences, min(NEAR, len(sentences)))  # noqa: S311  no secret
    elsewhere = [each.before + each.text for each in drawn if each.document != sentence.document]
    if len(spans) < MIN_WORDS or not elsewhere:
        return None
    # With all that stands between and before.
    following = sentence.after[: spans[: CONTINUED * letters_per_word(vocabulary.language)][-1][1]]
    other = min(elsewhere, key=lambda each: abs(len(each.encode()) - len(context.encode())))
    return Item(contexts=(context, other), choices=(following, following), document=sentence.document)


KINDS: dict[str, Callable[[Sentence, Vocabulary, str, Sequence[Sentence]], Item | None]] = {
    "cloze": partial(_changed, 1, _cloze),
    "ending": partial(_changed, 1, _ending),
    "word_order": partial(_changed, 2, _order),
    "continuation": _continuation,
}
"""Kind -> what makes an item of it from a sentence."""


def translation_items(asked: Asked, most: int) -> dict[str, tuple[Item, ...]]:
    """Return the items of the held-out pairs. No entry without sources of pairs."""
    sources = [name for name, source in asked.recipe.sources.items() if source.pairs]
    if not sources:
        return {}
    texts = {
        document.text
        for document in asked.retained
        # The text of a source is called so where a language has its name.
        if document.lang.removesuffix("_source") in sources
    }
    end = f"\n{asked.language.name}: "
    pairs = sorted(tuple(text.split(end, 1)) for text in texts if end in text)
    if len(pairs) < NUM_CHOICES:
        log.warning(
            "made items: no translations, since %s hold out %s; raise clean.heldout_fraction of these sources",
            ", ".join(sources), counted(len(pairs), "pair"),
        )  # fmt: skip
        return {TRANSLATION: ()}
    # The pair itself decides, so that a pair more or less moves no other item.
    pairs = sorted(pairs, key=lambda pair: digest(f"{asked.recipe.seed} {pair}"))[:MAX_PAIRS]
    words = {text: {*asked.language.shingle_units(text)} for _, text in pairs}
    items = []
    for source, right in pairs[:most]:
        others = sorted(words.keys() - {right}, key=lambda text: (abs(len(text) - len(right)), text))[:NEAR]
        others.sort(
            key=lambda text: -len(words[right] & words[text]) / max(1, len(words[right] | words[text]))
        )
        if len(others) >= NUM_CHOICES - 1:
            choices = tuple(f" {text}" for text in (right, *others[: NUM_CHOICES - 1]))
            items.append(Item(contexts=(source + end.rstrip(),), choices=choices, document=source))
    return {TRANSLATION: tuple(items)}
