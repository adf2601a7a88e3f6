"""Learn from a sample to tell a language from others: labels, a profile, or a user's model."""

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from anadil.core.format import counted
from anadil.language.learn_limits import source_quantile
from anadil.language.sample_parts import Counted, Tables, parts_of
from anadil.text import ngram_profile, word_shapes
from anadil.text.language import find_language, known_languages
from anadil.text.language_data import KnownLanguage, LanguageModel, Profile
from anadil.text.language_id import LONG_CHARS, cld2_label, label_share, main_label
from anadil.text.language_pack import Identification
from anadil.text.ngram_profile import Figures, Table, codes_of_pieces, letters_of
from anadil.text.word_shapes import small_letters_of

log = logging.getLogger(__name__)

LENGTHS = (40, 80, 160, 320, 640, 1_280)
"""Letters from which a limit of its own holds."""
DROP_RATE = 0.02
"""Share of the furthest part's text that each check may drop, by what the other parts taught."""
WIDENED, WIDENED_OF_ONE_SOURCE = 0.1, 0.5
"""Part of its distance from the median by which limits that follow the kind of a text are wider. One source does not show how far other kinds
lie: of a sample of laws, .1 drops .71 of React's documentation, .5 drops .14. Of several, .5 keeps .07 of a sibling's short texts, .1 keeps .01."""
MIN_NEW_ENDINGS = 0.25
"""Least limit. In text of another kind than the sample .05 to .25 of the words end as none of it, in siblings .2 to .7."""
MIN_CAPITALS = 0.005
"""Share of the sample's letters from which endings tell anything: without capitals nothing shows which words are names, and in Bengali .35
of the words of another kind of text end as none of the sample."""
MIN_INNER_CAPITALS = 0.1
"""Least limit of capitals behind small letters: names in code make .06 of a page's letters, letters in any case .2."""
MAX_DAMAGED_KEPT, TOWARDS_OWN = 0.05, 0.25
"""Share of pieces with one letter in twelve misread, or with shuffled words, that may be kept, and part of the distance from there to own
text by which the limit is more. Where the two overlap, own text decides: what a check cannot tell apart it keeps."""
NO_LIMIT = -99.0
"""Limit of association where too few pieces have a figure."""
MIN_PIECES, MAX_PIECES = 50, 4_000
"""Pieces of one length, of all parts together: the fewest that set a limit of their own, and the most that are measured."""
BLOCK = 256
"""Pieces that are scored at once: fewer cost most for the calls, more do not fit into a processor's cache."""
MIN_LABELLED = 0.98
"""Share of what CLD2 is sure of in the sample, that it must take for the language, so that its label counts."""
MIN_SIBLING = 0.3
"""Share of the sample that CLD2 takes for one other language, from which text in that one is hardly dropped."""
COVERED = 0.998
"""Share of the sample's sure labels of CLD2 that are expected; others are other languages."""
LONG_COVERED = 0.995
"""The same of long text, whose labels, sure or not, tell siblings apart. Our choice: it costs at most .5 % of own text, and
what all rarer labels together make up less of is another language."""
SIBLING_DROP_RATE, MAX_USUAL_PIECES = 0.0075, 0.5
"""Share of long own text that may be lost because CLD2 takes it, and most of its pieces, for a sibling's, and largest limit for its pieces: half.
Chosen by us: of Indonesian .02 has Malay's label, and without this .95 of Malay is kept."""
LINE = 60
"""Characters of the short pieces whose labels are counted too."""


MAX_ONE_SOURCE = 0.9
"""Share of the sample from which a user is told that it shows one kind of text."""
ONE_SOURCE = (
    "%s of the sample is of one source%s: text of other kinds may be dropped as none of the language; give some text of "
    "each kind that you will clean, in files of their own or with the address of its page"
)
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
NEED_SPACES = frozenset({"torn letters", "halved words", "joined words"})
"""Kinds that are no damage, or the same as another, where nothing parts words."""


def identify_sample(
    code: str, fit: Sequence[str], aside: Sequence[str], others: Mapping[str, Sequence[str]],
    model: Callable[[Sequence[str]], LanguageModel] | None, sources: Mapping[str, str] = {},
) -> tuple[Identification, list[str]]:  # fmt: skip
    """Learn the keys of a pack for identification; return them with lines of the report.

    Args:
        others: File name -> text that is none of the language.
        model: Finds the label of a fastText model.
        sources: Text -> its source, where it is known.
    """
    row = find_language(code)
    texts = [*fit, *aside]
    labels = _labels(texts)
    sure = labels.total() - labels["un"]
    # CLD2 knows the language if it says so of half of the sample, and of nearly all of which it is sure.
    is_known = row is not None and labels[row.cld2] >= max(MIN_LABELLED * sure, labels.total() / 2)
    known = row.cld2 if row and is_known else ""
    expected = _expected(COVERED, labels, _labels([text[:LINE] for text in aside]))
    long_texts = [(text, main_label(text)) for text in texts if len(text) >= LONG_CHARS]
    long = _expected(LONG_COVERED, Counter(label for _, label in long_texts))
    usual, pieces = _usual_label(long_texts, long)
    most = ", ".join(f"{label} {count / labels.total():.1%}" for label, count in labels.most_common(3))
    report = [f"CLD2 takes the sample for: {most}{_doubt(row, labels)}"]
    if model:
        learnt_model = model(fit)
        report.append(f"identified by {learnt_model.label} of {learnt_model.path}")
        return Identification(cld2=(known,) if known else (), model=learnt_model), report
    sibling = _sibling(row, labels) if not others else ""
    if sibling:
        report.append(
            f"{sibling_of(sibling)} may pass for it: CLD2 takes the sample for that, and nothing tells it apart"
        )
    parts = parts_of(texts, sources)
    is_one_source, line = _sources_of(parts, sources)
    profile = _profile(fit, parts, others, WIDENED_OF_ONE_SOURCE if is_one_source else WIDENED)
    report.append(line)
    report.append(
        f"identified by n-grams of {sum(map(len, fit)):,} characters"
        + (f", against {', '.join(others)}" if others else "")
    )
    identification = Identification(
        cld2=(known,) if known else (), lookalikes=tuple(sorted(expected - {known})),
        long_lookalikes=tuple(sorted(long - {known})), usual_label=usual, min_usual_pieces=pieces,
        sibling=sibling, profile=profile,
    )  # fmt: skip
    return identification, report


def _sources_of(parts: Sequence[Sequence[str]], sources: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether nearly all parts are of one source, and a line that says on how many the limits were set."""
    sizes: Counter[str] = Counter()
    for text in itertools.chain.from_iterable(parts):
        sizes[sources.get(text, "")] += len(text)
    name, most = max(sizes.items(), key=lambda each: (each[1], each[0]))
    is_one = most > MAX_ONE_SOURCE * sizes.total()
    if is_one:
        share = f"{most / sizes.total():.0%}" if len(sizes) > 1 else "all"
        log.warning(ONE_SOURCE, share, f" ({name})" if name else "")
    of = counted(len(sizes), "source") if len(sizes) > 1 else "clusters of like texts of one source"
    line = f"limits are set on {counted(len(parts), 'part')} of the sample ({of}), each judged by what the others teach"
    return is_one, line


def _sibling(row: KnownLanguage | None, labels: Counter[str]) -> str:
    """Find another language that CLD2 takes more of the sample for than for its own, and a good part of it."""
    num_own = labels[row.cld2] if row and row.cld2 else 0
    sure = {label: count for label, count in labels.items() if label not in {"un", row.cld2 if row else ""}}
    label, count = max(sure.items(), key=lambda each: each[1], default=("", 0))
    return label if count > num_own and count >= MIN_SIBLING * labels.total() else ""


def sibling_of(label: str) -> str:
    """Return the name of a label of CLD2."""
    row = next((row for row in known_languages().values() if row.cld2 == label), None)
    return f"{row.name} ({label})" if row else label


def _doubt(row: KnownLanguage | None, labels: Counter[str]) -> str:
    """Say what the labels of a sample tell against it, or against CLD2."""
    if not row or not row.cld2:
        return "; it does not know the language"
    share = labels[row.cld2] / labels.total()
    if share >= MIN_LABELLED:
        return ""
    return (
        f". Only {share:.1%} are {row.cld2}, {row.name}: if the sample holds other languages, take them out, since all of it "
        "is learnt; if CLD2 mistakes a sibling for it, give some text of that one as --bad"
    )


def _labels(texts: Sequence[str]) -> Counter[str]:
    """Count the labels that CLD2 gives texts surely; `un` where it is not sure."""
    return Counter(code if is_reliable else "un" for code, is_reliable in map(cld2_label, texts))


def _expected(share: float, *counted: Counter[str]) -> set[str]:
    """Return `un`, and the most frequent labels that make up this share of each count with it."""
    expected = {"un"}
    for labels in counted:
        covered = labels["un"]
        for label, count in labels.most_common():
            if covered >= share * labels.total():
                break
            if label != "un":
                expected.add(label)
                covered += count
    return expected


def _usual_label(texts: Sequence[tuple[str, str]], expected: set[str]) -> tuple[str, float]:
    """Find the label of most long texts, and the least share of pieces with it in those that have another expected one."""
    usual = Counter(label for _, label in texts).most_common(1)[0][0] if texts else "un"
    siblings = expected - {usual, "un"}
    if usual == "un" or not siblings:
        return "", 0.0
    shares = sorted(label_share(text, usual, label) for text, label in texts if label in siblings)
    lost = int(SIBLING_DROP_RATE * len(texts))
    return usual, round(min(MAX_USUAL_PIECES, *shares[lost : lost + 1]), 3)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the sample, as one text and as one each, noise made of it, and what the other parts teach."""

    texts: Sequence[str]
    running: Mapping[str, str]
    """Kind, such as `letters` or `misread` -> running text."""
    tables: Tables


_Score = Callable[[_Part, Sequence[str]], Figures]
"""Scores pieces of one length, all at once; NaN where one has no score."""


def _judged_by_others(sampled: Sequence[Sequence[str]]) -> list[_Part]:
    taught = [Counted.of(texts) for texts in sampled]
    parts = []
    for number, texts in enumerate(sampled):
        some = texts[:: math.ceil(len(texts) * len(sampled) / MAX_TEXTS)]
        misread, shuffled, signs = (
            "\n".join(noise_of_kind(kind, some))
            for kind in ("misread letters", "shuffled words", "letters read as signs")
        )
        joined = "\n".join(texts)
        parts.append(
            _Part(
                texts=texts,
                running={
                    "joined": joined, "letters": letters_of(joined), "small": small_letters_of(joined),
                    "misread": letters_of(misread), "shuffled": letters_of(shuffled), "signs": signs,
                },
                tables=Tables.learn([*taught[:number], *taught[number + 1 :]] or taught),
            )
        )  # fmt: skip
    return parts


def _profile(
    fit: Sequence[str], sampled: Sequence[Sequence[str]], others: Mapping[str, Sequence[str]], widened: float
) -> Profile:
    """Learn the model of the texts to fit on, with limits of the parts."""
    tables = Tables.learn([Counted.of(fit)])
    other_tables = [ngram_profile.count_table(texts) for texts in others.values()]
    parts = _judged_by_others(sampled)
    limits = [_limits(parts, length, other_tables, widened) for length in LENGTHS]
    likelihoods, margins = zip(*limits, strict=True)
    has_endings = word_shapes.capitals_share(fit) >= MIN_CAPITALS
    pack = ngram_profile.pack_table
    return Profile(
        orders=ngram_profile.ORDERS, own=pack(tables.ngrams), others=tuple(map(pack, other_tables)), min_chars=LENGTHS,
        min_likelihoods=likelihoods, min_margins=margins if others else (),
        associations=tuple(map(pack, tables.associated)), least_rarity=ngram_profile.RARER,
        min_associations=_damage_limits(parts, "misread", lambda part, pieces: part.tables.association(codes_of_pieces(pieces))),
        word_order=tables.word_order.pack(),
        min_word_order=_damage_limits(parts, "shuffled", lambda part, pieces: part.tables.word_order.scores(pieces), widened),
        endings=word_shapes.pack_endings(tables.endings) if has_endings else "",
        max_new_endings=tuple(_endings_limit(parts, length, widened) for length in LENGTHS) if has_endings else (),
        max_inner_signs=tuple(_signs_limit(parts, length) for length in LENGTHS),
        max_inner_capitals=_capitals_limit(parts), min_distinct_words=_distinct_limit(parts, widened),
    )  # fmt: skip


def _figures(parts: Sequence[_Part], kind: str, length: int, score: _Score) -> list[Figures]:
    """Score the pieces of each part that have a score. Short texts of a part are joined: they are of a kind."""
    figures = []
    for part in parts:
        text = part.running[kind]
        starts = range(0, max(1, len(text) - length + 1), length)
        some = starts[:: max(1, len(starts) * len(parts) // MAX_PIECES)]
        pieces = [text[start : start + length] for start in some]
        blocks = [score(part, pieces[start : start + BLOCK]) for start in range(0, len(pieces), BLOCK)]
        scored = np.concatenate(blocks)
        figures.append(scored[~np.isnan(scored)])
    return [each for each in figures if len(each)]


def _outermost(figures: Sequence[Figures], rate: float, *, largest: bool, widened: float = 0.0) -> float:
    """Return the quantile of the part that lies furthest out: so may the next kind of text."""
    limits = [source_quantile(each, rate, largest=largest, widened=widened) for each in figures]
    return max(limits) if largest else min(limits)


def _limits(
    parts: Sequence[_Part], length: int, others: Sequence[Table], widened: float
) -> tuple[float, float]:
    """Return the least likelihood and margin of pieces of the length."""

    def scores_of(place: int) -> list[Figures]:
        def score(part: _Part, pieces: Sequence[str]) -> Figures:
            hashes = ngram_profile.buckets(codes_of_pieces(pieces), max(ngram_profile.ORDERS))
            return ngram_profile.score_letters(hashes, [part.tables.ngrams, *others])[place]

        return _figures(parts, "letters", length, score)

    least = _outermost(scores_of(0), DROP_RATE, largest=False, widened=widened)
    margin = min(float(np.quantile(each, DROP_RATE)) for each in scores_of(1)) if others else 0.0
    # A text that is likelier in another language is in that language, however far the sample keeps from it.
    return round(least, 3), round(min(margin, 0.0), 3)


def _damage_limits(
    parts: Sequence[_Part], kind: str, score: _Score, widened: float = 0.0
) -> tuple[float, ...]:
    """Return least figures of pieces of each length: between own and damaged ones, or at the own where they overlap."""
    limits = [NO_LIMIT]
    for length in LENGTHS:
        good, damaged = (_figures(parts, each, length, score) for each in ("letters", kind))
        if min(sum(map(len, each)) for each in (good, damaged)) < MIN_PIECES:
            limits.append(limits[-1])
            continue
        spared = _outermost(good, DROP_RATE, largest=False, widened=widened)
        edge = float(np.quantile(np.concatenate(damaged), 1 - MAX_DAMAGED_KEPT))
        limits.append(round(spared - (1 - TOWARDS_OWN) * max(0.0, spared - edge), 3))
    # A shorter text varies more, whatever the few of its pieces say that have a figure.
    return tuple(np.minimum.accumulate(limits[:0:-1])[::-1].tolist())


def _endings_limit(parts: Sequence[_Part], length: int, widened: float) -> float:
    """Return the largest share of words with unknown endings in pieces of the length."""
    shares = _figures(
        parts,
        "small",
        length,
        lambda part, pieces: word_shapes.scores_of_endings(pieces, part.tables.endings),
    )
    limit = _outermost(shares, DROP_RATE, largest=True, widened=widened)
    return round(min(max(limit, MIN_NEW_ENDINGS), 1.0), 3)


def _signs_limit(parts: Sequence[_Part], length: int) -> float:
    """Return most signs within words in pieces of the length: halfway between own and damaged ones."""
    if length < word_shapes.MIN_LETTERS:
        return 1.0
    good, noise = (
        _figures(parts, kind, length, lambda _, pieces: word_shapes.inner_signs(codes_of_pieces(pieces)))
        for kind in ("joined", "signs")
    )
    spared = _outermost(good, DROP_RATE, largest=True)
    edge = float(np.quantile(np.concatenate(noise), MAX_DAMAGED_KEPT))
    return round(min(max(spared, (spared + edge) / 2), 1.0), 3)


def _of_texts(parts: Sequence[_Part], score: Callable[[str], float]) -> list[Figures]:
    scores = [np.array([score(text) for text in part.texts]) for part in parts]
    return [known for each in scores if len(known := each[~np.isnan(each)])]


def _capitals_limit(parts: Sequence[_Part]) -> float:
    shares = _of_texts(parts, word_shapes.inner_capitals)
    limit = _outermost(shares, DROP_RATE, largest=True) if shares else 1.0
    return round(min(max(limit, MIN_INNER_CAPITALS), 1.0), 3)


def _distinct_limit(parts: Sequence[_Part], widened: float) -> float:
    """Return the least share of distinct words; 0 where few texts are long enough to say."""
    counts = _of_texts(parts, lambda text: word_shapes.distinct_words(letters_of(text)))
    if sum(map(len, counts)) < MIN_PIECES:
        return 0.0
    # Logarithms, as for lengths: on a linear scale the tail of a sample with a few lists ends below 0, and all pass.
    return round(math.exp(_outermost([*map(np.log, counts)], DROP_RATE, largest=False, widened=widened)), 3)


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
