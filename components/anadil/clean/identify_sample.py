"""Tell a language from others, learnt of a sample: labels, a profile, or a user's model."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anadil.clean.made_noise import noise_of_kind
from anadil.clean.sample_quantile import WIDENED, source_quantile
from anadil.text import ngram_profile, word_endings, word_shapes
from anadil.text.language import KnownLanguage, LanguageModel, find_language, known_languages
from anadil.text.language_id import LONG_CHARS, cld2_label, label_share, main_label
from anadil.text.language_pack import Identification, ModelTable, ProfileTable
from anadil.text.ngram_profile import Buckets, Table
from anadil.text.word_endings import Endings
from anadil.text.word_order import WordOrder

LENGTHS = (40, 80, 160, 320, 640, 1_280)
"""Letters from which a limit of its own holds."""
DROP_RATE = 0.003
"""Of the language's own text, at each length."""
ENDINGS_DROP_RATE, ENDINGS_WIDENED, MIN_NEW_ENDINGS = 0.02, 1.0, 0.25
"""Of words that end as none of the sample, at each length; as `WIDENED`; and least limit. Chosen by us: in text of another kind than the
sample .05 to .25 of the words end so, in siblings .2 to .7."""
MIN_CAPITALS = 0.005
"""Share of the sample's letters from which endings tell anything: without capitals nothing shows which words are names, and in Bengali .35
of the words of another kind of text end as none of the sample."""
MIN_INNER_CAPITALS = 0.1
"""Least limit of capitals behind small letters: names in code make .06 of a page's letters, letters in any case .2."""
DAMAGED_DROP_RATE, MAX_DAMAGED_KEPT, MAX_SHORT_DAMAGED_KEPT, LONG_PIECE = 0.01, 0.05, 0.25, 640
"""Of own text, that a limit of association may cost, and share of pieces with one letter in twelve misread, or with shuffled words, that it
may keep: the looser one counts. Of pieces that are shorter than so many letters more may be kept and `DROP_RATE` be lost, widened.
Chosen by us: where own text alone sets such a limit, it drops text of kinds that the sample lacks, and short text more of it."""
ORDER_TOWARDS_OWN = 0.25
"""Chosen by us: text of other kinds than the sample is as far from shuffled text as its own, but for lists of short sentences."""
NO_LIMIT = -99.0
"""Of association, where too few pieces have a figure."""
MAX_PIECES = 4_000
MIN_TEXTS = 50
"""Of a length, that its limit is taken from: likelihoods of shorter ones vary more, and let noise through."""
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
"""Of long own text that may be lost because CLD2 takes it, and most of its pieces, for a sibling's, and largest limit for its pieces: half.
Chosen by us: of Indonesian .02 has Malay's label, and without this .95 of Malay is kept."""
LINE = 60
"""Characters of the short pieces whose labels are counted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """What a pack says of identification, and what to tell of it."""

    identification: Identification
    report: list[str]


def identify_sample(
    code: str,
    fit: Sequence[str],
    aside: Sequence[str],
    others: Mapping[str, Sequence[str]],
    model: Callable[[Sequence[str]], LanguageModel] | None,
) -> Identified:
    """Learn it.

    Args:
        code: Id of the language.
        fit: Text that likelihoods are counted on.
        aside: Text that limits are measured on.
        others: File name -> text that is none of the language.
        model: What finds the label of a fastText model.
    """
    row = find_language(code)
    texts = [*fit, *aside]
    labels = _labels(texts)
    known = row.cld2 if row and _is_known(row, labels) else ""
    expected = _expected(COVERED, labels, _labels([text[:LINE] for text in aside]))
    long_texts = [(text, main_label(text)) for text in texts if len(text) >= LONG_CHARS]
    long = _expected(LONG_COVERED, Counter(label for _, label in long_texts))
    usual, pieces = _usual_label(long_texts, long)
    most = ", ".join(f"{label} {count / labels.total():.1%}" for label, count in labels.most_common(3))
    report = [f"CLD2 takes the sample for: {most}{_doubt(row, labels)}"]
    if model:
        found = model(fit)
        report.append(f"identified by {found.label} of {found.path}")
        table = ModelTable(path=found.path, label=found.label, sha256=found.sha256)
        return Identified(
            identification=Identification(cld2=(known,) if known else (), model=table), report=report
        )
    sibling = _sibling(row, labels) if not others else ""
    if sibling:
        report.append(
            f"{sibling_of(sibling)} may pass for it: CLD2 takes the sample for that, and nothing tells it apart"
        )
    profile = _profile(fit, aside, others)
    report.append(
        f"identified by n-grams of {sum(map(len, fit)):,} characters"
        + (f", against {', '.join(others)}" if others else "")
    )
    identification = Identification(
        cld2=(known,) if known else (),
        lookalikes=tuple(sorted(expected - {known})),
        long_lookalikes=tuple(sorted(long - {known})),
        usual_label=usual,
        min_usual_pieces=pieces,
        sibling=sibling,
        profile=profile,
    )
    return Identified(identification=identification, report=report)


def _is_known(row: KnownLanguage, labels: Counter[str]) -> bool:
    """Whether CLD2 knows the language, and says so of half of the sample and of nearly all of which it is sure."""
    own, sure = labels[row.cld2], labels.total() - labels["un"]
    return bool(row.cld2) and own >= max(MIN_LABELLED * sure, labels.total() / 2)


def _sibling(row: KnownLanguage | None, labels: Counter[str]) -> str:
    """Another language that CLD2 takes more of the sample for than for its own, and a good part of it."""
    own = labels[row.cld2] if row and row.cld2 else 0
    sure = {label: count for label, count in labels.items() if label not in {"un", row.cld2 if row else ""}}
    label, count = max(sure.items(), key=lambda each: each[1], default=("", 0))
    return label if count > own and count >= MIN_SIBLING * labels.total() else ""


def sibling_of(label: str) -> str:
    """What people call a label of CLD2."""
    row = next((row for row in known_languages().values() if row.cld2 == label), None)
    return f"{row.name} ({label})" if row else label


def _doubt(row: KnownLanguage | None, labels: Counter[str]) -> str:
    """What the labels of a sample say against it, or against CLD2."""
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
    """What CLD2 surely takes texts for; `un` where it is not sure."""
    return Counter(code if is_reliable else "un" for code, is_reliable in map(cld2_label, texts))


def _expected(share: float, *counted: Counter[str]) -> set[str]:
    """`un`, and the most frequent labels that make up this share of each count with it."""
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
    """The label of most long texts, and the least share of pieces with it in those that have another expected one."""
    usual = Counter(label for _, label in texts).most_common(1)[0][0] if texts else "un"
    siblings = expected - {usual, "un"}
    if usual == "un" or not siblings:
        return "", 0.0
    shares = sorted(label_share(text, usual, label) for text, label in texts if label in siblings)
    lost = int(SIBLING_DROP_RATE * len(texts))
    return usual, round(min(MAX_USUAL_PIECES, *shares[lost : lost + 1]), 3)


def _profile(fit: Sequence[str], aside: Sequence[str], others: Mapping[str, Sequence[str]]) -> ProfileTable:
    tables = [ngram_profile.count_table(texts) for texts in (fit, *others.values())]
    associated = [ngram_profile.count_table(fit, (order,)) for order in ngram_profile.ASSOCIATED]
    word_order = WordOrder.learn(fit)
    running, misread, shuffled = (
        [ngram_profile.letters_of(text) for text in texts]
        for texts in (aside, *(noise_of_kind(kind, aside) for kind in ("misread letters", "shuffled words")))
    )
    signs = noise_of_kind("letters read as signs", aside)
    limits = [_limits(running, length, tables) for length in LENGTHS]
    likelihoods, margins = zip(*limits, strict=True)
    associations = _association_limits(
        running, misread, lambda piece: ngram_profile.score_association(_buckets(piece), associated)
    )
    orders = _association_limits(running, shuffled, word_order.score, towards_own=ORDER_TOWARDS_OWN)
    endings, new_endings = _endings(fit, aside)
    pack = ngram_profile.pack_table
    return ProfileTable(
        orders=ngram_profile.ORDERS, own=pack(tables[0]), others=tuple(map(pack, tables[1:])), min_chars=LENGTHS,
        min_likelihoods=likelihoods, min_margins=margins if others else (),
        associations=tuple(map(pack, associated)), min_associations=associations,
        word_order=word_order.pack(), min_word_order=orders,
        endings=endings, max_new_endings=new_endings,
        max_inner_signs=tuple(_signs_limit(aside, signs, length) for length in LENGTHS),
        max_inner_capitals=_capitals_limit(aside), min_distinct_words=_distinct_limit(running),
    )  # fmt: skip


def _pieces(running: Sequence[str], length: int) -> list[str]:
    """Pieces of the length; where few texts have it, a shorter one counts as it is."""
    long = [text for text in running if len(text) >= length]
    pieces = [
        text[start : start + length]
        for text in (long if len(long) >= MIN_TEXTS else running)
        for start in range(0, max(1, len(text) - length + 1), length)
    ]
    return pieces[:: max(1, len(pieces) // MAX_PIECES)]


def _buckets(piece: str) -> Buckets:
    return ngram_profile.buckets(piece, max(ngram_profile.ORDERS))


def _limits(running: Sequence[str], length: int, tables: Sequence[Table]) -> tuple[float, float]:
    """Least likelihood and margin of pieces of the length."""
    scored = np.array(
        [ngram_profile.score_letters(_buckets(piece), tables) for piece in _pieces(running, length)]
    )
    least = source_quantile(scored[:, 0], DROP_RATE, largest=False, widened=WIDENED)
    margin = float(np.quantile(scored[:, 1], DROP_RATE)) if len(tables) > 1 else 0.0
    # What is likelier in another language is in it, however far the sample keeps from it.
    return round(least, 3), round(min(margin, 0.0), 3)


def _association_limits(
    running: Sequence[str], damaged: Sequence[str], score: Callable[[str], float], towards_own: float = 0.0
) -> tuple[float, ...]:
    """Least association of pieces of each length.

    Args:
        running: Own text, `letters_of` it.
        damaged: What is to be dropped, likewise.
        score: What is measured.
        towards_own: Part of the distance between damaged and own long text, if there is one, by which the limit is more than drops most of the damaged.
    """
    limits = [NO_LIMIT]
    for length in LENGTHS:
        own, noise = (
            np.array([scored for piece in _pieces(texts, length) if not math.isnan(scored := score(piece))])
            for texts in (running, damaged)
        )
        if min(len(own), len(noise)) < MIN_TEXTS:
            limits.append(limits[-1])  # a longer text varies less
            continue
        is_long = length >= LONG_PIECE
        rate, widened, kept = (
            (DAMAGED_DROP_RATE, 0.0, MAX_DAMAGED_KEPT)
            if is_long
            else (DROP_RATE, WIDENED, MAX_SHORT_DAMAGED_KEPT)
        )
        spared = source_quantile(own, rate, largest=False, widened=widened)
        edge = float(np.quantile(noise, 1 - kept))
        if is_long:
            edge += towards_own * max(0.0, spared - edge)
        limits.append(round(min(spared, edge), 3))
    return tuple(limits[1:])


def _endings(fit: Sequence[str], aside: Sequence[str]) -> tuple[str, tuple[float, ...]]:
    """Packed endings of words, and the most words of pieces of each length that end otherwise."""
    if word_endings.capitals_share(fit) < MIN_CAPITALS:
        return "", ()
    endings = word_endings.count_endings(fit)
    small = [word_endings.small_letters_of(text) for text in aside]
    return word_endings.pack_endings(endings), tuple(
        _endings_limit(small, length, endings) for length in LENGTHS
    )


def _endings_limit(small: Sequence[str], length: int, endings: Endings) -> float:
    shares = [word_endings.score_endings(piece, endings) for piece in _pieces(small, length)]
    limit = source_quantile(shares, ENDINGS_DROP_RATE, largest=True, widened=ENDINGS_WIDENED)
    return round(min(max(limit, MIN_NEW_ENDINGS), 1.0), 3)


def _signs_limit(aside: Sequence[str], damaged: Sequence[str], length: int) -> float:
    """Most signs within words of pieces of the length: halfway between own and damaged ones."""
    if length < word_shapes.MIN_LETTERS:
        return 1.0
    own, noise = (
        [word_shapes.inner_signs(piece) for piece in _pieces(texts, length)] for texts in (aside, damaged)
    )
    spared = source_quantile(own, DAMAGED_DROP_RATE, largest=True)
    return round(min(max(spared, (spared + float(np.quantile(noise, MAX_DAMAGED_KEPT))) / 2), 1.0), 3)


def _capitals_limit(aside: Sequence[str]) -> float:
    """Most capitals behind small letters."""
    found = [share for text in aside if not math.isnan(share := word_shapes.inner_capitals(text))]
    limit = source_quantile(found, DAMAGED_DROP_RATE, largest=True) if found else 1.0
    return round(min(max(limit, MIN_INNER_CAPITALS), 1.0), 3)


def _distinct_limit(running: Sequence[str]) -> float:
    """Least share of distinct words; none where few texts are long enough to say."""
    found = [share for text in running if not math.isnan(share := word_shapes.distinct_words(text))]
    if len(found) < MIN_TEXTS:
        return 0.0
    # Of logarithms, as of lengths: drawn in a line, the tail of a sample with a few lists ends below 0, and all would pass.
    return round(math.exp(source_quantile(np.log(found), DROP_RATE, largest=False, widened=WIDENED)), 3)
