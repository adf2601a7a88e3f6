"""Learn a language pack from text, and report on how much evidence, and what it would drop.

A part of the sample is set aside, and losses are measured on it. Limits are the published
ones, widened where the language's own text needs it, and tightened only as far as noise demands.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any

import numpy as np

from anadil.core.errors import DataError
from anadil.core.format import counted, human_bytes
from anadil.language.identify_sample import identify_sample, made_noise
from anadil.language.learn_limits import LearntLimits, learn_limits
from anadil.language.sample_parts import SampleText
from anadil.text.language import find_language
from anadil.text.language_data import Language, LanguageModel
from anadil.text.language_pack import LanguagePack, PackLimits, general_limits, normalize, to_language
from anadil.text.letters import NAMES, WITHOUT_SPACES, script_of

MIN_BYTES = 1_000_000
"""Bytes of good text. Our choice: of less, n-grams of siblings overlap."""
MAX_BYTES = 20_000_000
"""More is not read: nothing learnt changes any more."""
MAX_CHARS = 3_000
"""A longer document is cut into equal pieces at line ends."""
HELD_ASIDE = 0.3
"""Share of the documents on which losses are measured."""
NEIGHBOURS = 5
"""Pieces of a document, 15,000 characters, that are fitted on or set aside together: they speak of the same, and limits
that were measured on a neighbour of what was learnt would drop other documents."""
NUM_STOP_WORDS = 40
OWN_PART, OWN_DROPPED = 4, 0.0075
"""Part of the usual share of letters which ASCII lacks that a text must have, and most of the sample that it may cost."""
MAX_STRAY_SHARE, MAX_STRAY_TOGETHER = 0.001, 0.005
"""Share of the words, for a letter that is no word of its own, and for all such letters. Those of ten alphabets have .000 to .0025
together; of Korean, a letter of which is a syllable and often a word, all below the first have .022, and damage would not show."""
MAX_TOKEN_CHARS = 20
"""Longer runs between spaces, in the mean, are no words: the language writes none."""
ALPHABET_SHARE = 0.9999
"""Share of the letters of the sample; the rest are names and quotations."""
NUM_PROMPTS, PROMPT_WORDS, PROMPT_CHARACTERS = 5, 6, 12
QUESTION_WORDS = range(4, 16)
SENTENCE = re.compile(r"[^.!?…。！？؟।\n]{20,200}[.!?…。！？؟।]")
STRIPPED = ".,;:!?\"'()«»“”"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Normalized documents, cut to pieces, in two parts."""

    fit: list[str]
    aside: list[str]
    num_documents: int
    num_bytes: int
    short: list[str]
    """Documents that are no longer than a piece: they say how short one may be."""
    sources: dict[str, str]
    """Source of each piece, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLanguage:
    """A pack, and lines of the report on it."""

    pack: LanguagePack
    report: list[str] = field(default_factory=list)


def split_texts(documents: Iterable[str]) -> Texts:
    """Normalize, cut, leave copies out, set documents aside by a hash, long ones in parts, and put pieces in the order of hashes.

    What takes the first of them, such as noise, takes of all files, and the order of files makes no difference.
    """
    by_digest: dict[bytes, tuple[str, bool]] = {}
    sources: dict[str, str] = {}
    num_documents = num_bytes = 0
    short = []
    for raw in documents:
        text = normalize(raw)
        if not text:
            continue
        num_documents += 1
        pieces = cut(text)
        if isinstance(raw, SampleText):
            sources |= {piece: min(raw.source, sources.get(piece, raw.source)) for piece in pieces}
        short += pieces if len(pieces) == 1 else []
        digests = [hashlib.sha256(piece.encode()).digest() for piece in pieces]
        for number, (digest, piece) in enumerate(zip(digests, pieces, strict=True)):
            is_aside = digests[number - number % NEIGHBOURS][0] < HELD_ASIDE * 256
            num_bytes += 0 if digest in by_digest else len(piece.encode())
            by_digest[digest] = piece, is_aside or (digest in by_digest and by_digest[digest][1])
        if num_bytes > MAX_BYTES:
            break
    fit: list[str] = []
    aside: list[str] = []
    for _, (piece, is_aside) in sorted(by_digest.items()):
        (aside if is_aside else fit).append(piece)
    return Texts(
        fit=fit, aside=aside, num_documents=num_documents, num_bytes=num_bytes, short=short, sources=sources
    )


def cut(text: str) -> list[str]:
    """Cut a text into pieces at line ends or, where lines are too long, at spaces."""
    size = math.ceil(len(text) / math.ceil(len(text) / MAX_CHARS))
    pieces: list[str] = []
    rest = text
    while len(rest) > MAX_CHARS:
        ends = (rest.rfind(mark, size // 2, size + 1) for mark in ("\n", " "))
        end = next((end for end in ends if end > 0), size)
        pieces.append(rest[:end].strip())
        rest = rest[end:].strip()
    return [*pieces, rest] if rest else pieces


def learn_language(
    name: str,
    sample: Iterable[str],
    bad: Mapping[str, Iterable[str]],
    model: Callable[[Sequence[str]], LanguageModel] | None = None,
) -> LearntLanguage:
    """Learn a pack.

    Args:
        bad: File name -> text that is to be dropped: noise, or the nearest languages.
        model: Finds the label of a fastText model, where there is one.
    """
    texts = split_texts(sample)
    if texts.num_bytes < MIN_BYTES:
        raise DataError(
            f"the sample holds {human_bytes(texts.num_bytes)} of text without its repetitions; give "
            f"{human_bytes(MIN_BYTES)} or more"
        )
    noise = {place: split_texts(each) for place, each in bad.items()}
    for place, each in noise.items():
        if not each.fit or not each.aside:
            raise DataError(
                f"--bad {place}: {human_bytes(each.num_bytes)} of text is too little to learn from; give more or leave it out"
            )
    _require_other_text(texts, noise)
    draft = _draft(name, texts)
    if not draft.alphabet:
        raise DataError("the sample holds no letter; give running text in the language")
    language = to_language(draft)
    others = {place: each.fit for place, each in noise.items()}
    identification, report = identify_sample(draft.code, texts.fit, texts.aside, others, model, texts.sources)
    identification = identification.model_copy(update=_own_letters(texts.fit, draft))
    draft = draft.model_copy(
        update={"identification": identification, **_words_of(texts.fit, language, draft.words)}
    )
    rejected = {place: each.aside for place, each in noise.items()} or made_noise(
        texts.aside, spaces=draft.words == "spaces"
    )
    learner = to_language(draft)
    lengths = [len(learner.words(text)) for text in texts.short]
    lengths += [MAX_CHARS] * (texts.num_documents - len(lengths))
    limits = learn_limits(learner, texts.fit, texts.aside, rejected, lengths)
    pack = draft.model_copy(
        update={
            "limits": PackLimits(**limits.limits),
            "prompts": _prompts(texts.aside, draft.words),
            "questions": _questions(texts.aside),
            "learnt": {
                "documents": texts.num_documents,
                "bytes": texts.num_bytes,
                "set_aside": len(texts.aside),
                "own_text_dropped": round(limits.own_dropped, 4),
                "noise_kept": {place: round(share, 4) for place, share in limits.noise_kept.items()},
            },
        }
    )
    return LearntLanguage(pack=pack, report=_report_lines(pack, texts, report, limits, is_made=not noise))


def _require_other_text(texts: Texts, noise: Mapping[str, Texts]) -> None:
    """Refuse a file of bad text, most of which is in the sample."""
    sample_pieces = {*texts.fit, *texts.aside}
    for place, each in noise.items():
        pieces = [*each.fit, *each.aside]
        if (same := sum(piece in sample_pieces for piece in pieces)) > len(pieces) / 2:
            raise DataError(
                f"--bad {place}: {same:,} of {counted(len(pieces), 'piece')} of it are in the sample, too; text is good or bad, "
                "so take it out of one of them"
            )


def _draft(name: str, texts: Texts) -> LanguagePack:
    row = find_language(name)
    letters: Counter[str] = Counter()
    for text in texts.fit:
        letters.update(text)
    # Asked of each character once, not of each place where it stands.
    letters = Counter({each: count for each, count in letters.items() if each.isalpha()})
    script = script_of(letters.elements())
    _require_script(name, script)
    tokens = Counter(len(token) for text in texts.fit for token in text.split())
    mean = sum(length * count for length, count in tokens.items()) / tokens.total()
    spaces = script not in WITHOUT_SPACES and mean <= MAX_TOKEN_CHARS
    lower: Counter[str] = Counter()
    for letter, count in letters.items():
        lower[letter.lower()[:1]] += count
    alphabet, covered = "", 0
    for letter, count in lower.most_common():
        if covered > ALPHABET_SHARE * letters.total():
            break
        alphabet += letter
        covered += count
    is_turkic = lower["ı"] > lower.total() / 500 and lower["i"] > 0
    return LanguagePack(
        code=row.code if row else name.replace("_", "-"), name=row.name if row else name, script=script,
        words="spaces" if spaces else "characters", fold="turkic" if is_turkic else "plain",
        alphabet=alphabet[:400], min_long_block=140 if spaces else 70, limits=general_limits(has_spaces=spaces),
    )  # fmt: skip


def _require_script(name: str, script: str) -> None:
    language, given, *_ = f"{name.replace('_', '-')}-".split("-")
    theirs, ours = (set(NAMES.get(each, ())) for each in (given.title(), script))
    if theirs and ours and not theirs & ours:
        raise DataError(
            f"{name}: most letters of the sample are {script}, not {given.title()}; give text in that script, or call the "
            f"language {language}-{script}"
        )


def _own_letters(texts: Sequence[str], draft: LanguagePack) -> dict[str, Any]:
    """Learn the letters of a Latin alphabet that ASCII lacks, and their least share: less is in another spelling."""
    small = [each for each in draft.alphabet if not each.isascii()]
    if draft.script != "Latn" or not small:
        return {}
    letters = {*small, *(each.upper() for each in small if len(each.upper()) == 1)} - {*ascii_letters}
    shares = []
    for text in texts:
        counts = Counter(text)
        total = sum(count for each, count in counts.items() if each.isalpha())
        shares.append(sum(counts[each] for each in letters) / max(1, total))
    least = min(float(np.median(shares)) / OWN_PART, float(np.quantile(shares, OWN_DROPPED)))
    least = math.floor(1000 * least) / 1000
    return {"own_letters": "".join(sorted(letters)), "min_own_letters": least} if least else {}


def _words_of(texts: Sequence[str], language: Language, words: str) -> dict[str, str]:
    """Learn stop words, by the documents that hold them, and letters that are no words."""
    held: Counter[str] = Counter()
    single: Counter[str] = Counter()
    total = 0
    for text in texts:
        all_words = language.words(text)
        total += len(all_words)
        single.update(word for word in all_words if len(word) == 1 and word.isalpha())
        held.update({word for each in all_words if (word := language.fold(each).strip(STRIPPED)).isalpha()})
    stops = sorted(sorted(held, key=lambda word: (-held[word], word))[:NUM_STOP_WORDS])
    if words != "spaces":
        return {"stop_words": " ".join(stops)}
    letters = {each for each in set().union(*texts) if each.isalpha() and language.is_script(each)}
    stray, together = [], 0
    for letter in sorted(letters, key=lambda each: (single[each], each)):
        together += single[letter]
        if single[letter] > MAX_STRAY_SHARE * total or together > MAX_STRAY_TOGETHER * total:
            break
        stray.append(letter)
    return {"stop_words": " ".join(stops), "stray_letters": "".join(sorted(stray))}


def _sentences(texts: Sequence[str]) -> Iterable[str]:
    """Find whole sentences that begin a line, in an order that only their text decides."""
    sentences = (match[0] for text in texts for line in text.split("\n") if (match := SENTENCE.match(line)))
    return sorted(sentences, key=lambda sentence: hashlib.sha256(sentence.encode()).digest())


def _prompts(texts: Sequence[str], words: str) -> tuple[str, ...]:
    def beginning(sentence: str) -> str:
        if words == "spaces":
            return " ".join(sentence.split()[:PROMPT_WORDS])
        return sentence[:PROMPT_CHARACTERS]

    sound = (each for each in _sentences(texts) if all(map(str.isalpha, "".join(each.split())[:20])))
    beginnings = (start for each in sound if len(start := beginning(each)) < len(each))
    return tuple(dict.fromkeys(beginnings))[:NUM_PROMPTS]


def _questions(texts: Sequence[str]) -> tuple[str, ...]:
    asked = (each for each in _sentences(texts) if each[-1] in "?？؟" and len(each.split()) in QUESTION_WORDS)
    return tuple(dict.fromkeys(asked))[:NUM_PROMPTS]


def _report_lines(
    pack: LanguagePack, texts: Texts, identified: Sequence[str], limits: LearntLimits, *, is_made: bool
) -> list[str]:
    kind = "noise made of the sample" if is_made else "bad text"
    size = human_bytes(texts.num_bytes)
    return [
        f"{pack.name} ({pack.code}), {pack.script}: {counted(texts.num_documents, 'document')}, {size}",
        f"words: {pack.words}; letters: {pack.alphabet[:80]}",
        f"stop words: {pack.stop_words}",
        *identified,
        *limits.report,
        f"own clean text dropped: {limits.own_dropped:.2%} of {len(texts.aside):,} pieces set aside",
        *(f"{kind}, {place}: {share:.1%} kept" for place, share in limits.noise_kept.items()),
        *(["give --bad files of what the source really holds to fit the limits to it"] if is_made else []),
    ]
