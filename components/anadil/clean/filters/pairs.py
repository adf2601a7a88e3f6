"""Judge parallel text by its two sides, and refuse inputs whose sides are mixed up."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from anadil.clean.filters.clean_stats import CleanStats
from anadil.clean.filters.figures import late_side, unlike_figures
from anadil.clean.filters.line_language import MIN_LINE_CHARS
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.text.language_data import Language
from anadil.text.language_id import identify_language
from anadil.text.parallel import write_pair

log = logging.getLogger(__name__)

MISSING, EQUAL, LENGTHS, SWAPPED = "missing_side", "equal_sides", "side_lengths", "swapped_sides"
OTHER_LANGUAGE, FIGURES = "side_language", "side_figures"
REASONS = {
    MISSING: "a side has no letter and no figure",
    EQUAL: "both sides are the same but for case and signs",
    LENGTHS: "one side is more than 9 times as long as the other",
    SWAPPED: "each side is in the language of the other",
    OTHER_LANGUAGE: "a side is surely in another language",
    FIGURES: "each side has a figure that the other lacks",
}
"""Reason for which a pair is dropped -> its text for people; the first that is true is the reason."""
MAX_LENGTH_RATIO = 9
"""In characters, since a language without spaces has no words to count. Source: Moses, clean-corpus-n.perl, there in tokens."""
MOST = 0.5
"""Share of the judged pairs with mixed-up sides from which the recipe or the file is wrong. Chosen by us."""
EXAMPLE_CHARS = 200
ENTITY = re.compile(r"&(?:#x?[0-9a-fA-F]+|[a-zA-Z]\w*);")
Fault = tuple[str | None, float | str | None]


OWN, UNJUDGED = "own", "unjudged"
"""Counted beside languages: pairs with a side in its language, and sides that are too short to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """A pair as text, and why it is dropped."""

    text: str
    """First direction; the sides alone, a line each, where one is missing."""
    reason: str | None
    value: float | str | None
    """Measured value that is the reason: a ratio, or the side and CLD2's code of its language."""
    languages: Counter[str]
    """`az tr`: the side that should be Azerbaijani is in Turkish; `az unjudged`; `own`: a side is as it should be."""
    marks: dict[str, bool]
    """Marks as `ExtractedDocument` has them -> True for those that are set."""


def judge_pair(raw: Sequence[str], sides: Sequence[Language]) -> JudgedPair:
    """Normalise both sides, each by its language, and judge them."""
    # One entity proves nothing in a page on HTML. In a sentence of a bitext it is a leftover, which Bifixer mends, too.
    unescaped = [ENTITY.sub(lambda each: unescape(each[0]), text) for text in raw]
    # A side is one line: so a template needs no sign where it ends, and both directions follow from one.
    texts = [" ".join(side.normalize(each).split()) for each, side in zip(unescaped, sides, strict=True)]
    languages = Counter[str]()
    reason, value = _fault_of_lengths(texts, sides) or _fault_of_languages(texts, sides, languages)
    if not reason and (value := unlike_figures(texts, [side.code for side in sides])):
        reason = FIGURES
    return JudgedPair(
        text="\n".join(texts) if reason == MISSING else write_pair([side.name for side in sides], texts),
        reason=reason, value=value, languages=languages,
        marks={
            "normalized": texts != unescaped, "unescaped": unescaped != list(raw),
            "turned": any(side.reorder(each) != each for each, side in zip(unescaped, sides, strict=True)),
            "respelled": any(side.respell(each) != each for each, side in zip(unescaped, sides, strict=True)),
        },
    )  # fmt: skip


def _fault_of_lengths(texts: Sequence[str], sides: Sequence[Language]) -> Fault | None:
    plain = ["".join(filter(str.isalnum, side.fold(text))) for text, side in zip(texts, sides, strict=True)]
    if not all(plain):
        return MISSING, sides[plain.index("")].code
    if plain[0] == plain[1]:
        return EQUAL, None
    shorter, longer = sorted(map(len, texts))
    return (LENGTHS, round(longer / shorter, 1)) if longer > MAX_LENGTH_RATIO * shorter else None


def _fault_of_languages(texts: Sequence[str], sides: Sequence[Language], languages: Counter[str]) -> Fault:
    answers = [identify_language(text, side) for text, side in zip(texts, sides, strict=True)]
    if any(each.is_language for each in answers):
        languages[OWN] += 1
    elif _are_swapped(texts, sides):
        return SWAPPED, None
    fault: Fault = (None, None)
    for text, side, each in zip(texts, sides, answers, strict=True):
        # CLD2 is sure of shorter text, too, and wrong in 15 of 2,270 sentences of Tatoeba, none of which is this long.
        if len(text) < MIN_LINE_CHARS or not (each.is_language or each.is_reliable):
            languages[f"{side.code} {UNJUDGED}"] += 1
            continue
        language = side.code if each.is_language else each.code
        languages[f"{side.code} {language}"] += 1
        if not each.is_language:
            fault = OTHER_LANGUAGE, f"{side.code}: {each.code}"
    return fault


def _are_swapped(texts: Sequence[str], sides: Sequence[Language]) -> bool:
    # Two answers that agree need no long text: 2,118 of 2,270 swapped pairs of Tatoeba are found, and none in order.
    return all(
        identify_language(text, side).is_language for text, side in zip(texts, reversed(sides), strict=True)
    )


def _refuse_late_sides(clean_stats: CleanStats, sides: Sequence[Language], key: str) -> None:
    """Refuse files most of whose pairs are those of neighbouring lines; warn of those that have some."""
    for file, (side, share) in late_files(clean_stats.lateness).items():
        code = sides[side == "second"].code
        how = f"{key}: {file}: lines of {code} stand one line below those that they translate"
        remedy = "look for a line that is empty or missing in one of its files"
        if share > MOST:
            raise DataError(f"{how}, by figures and lengths; {remedy}")
        log.warning("%s in %.0f %% of the pairs with figures; %s", how, 100 * share, remedy)


def late_files(lateness: Mapping[str, float]) -> dict[str, tuple[str, float]]:
    """Return the files with a side whose lines stand too late, by the sums of all files: name -> `first` or `second`, share."""
    by_file: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, value in lateness.items():
        file, _, key = name.rpartition("\t")
        by_file[file][key] = value
    return {file: late for file, counts in sorted(by_file.items()) if (late := late_side(counts))}


def refuse_mixed_up(clean_stats: CleanStats, sides: Sequence[Language], key: str) -> None:
    """Refuse parallel text most of whose sides are not in the languages that the recipe says, or a line too late."""
    name, codes, languages = (
        key.removesuffix("inputs") + "pairs",
        [side.code for side in sides],
        clean_stats.sides,
    )
    swapped, samples = clean_stats.dropped[SWAPPED], clean_stats.samples()
    if swapped > MOST * (swapped + languages[OWN]):
        raise DataError(
            f"{key}: the sides of {swapped:,} of {counted(swapped + languages[OWN], 'pair')} are swapped, "
            f"{_example(samples[SWAPPED])}; write {name}: [{codes[1]}, {codes[0]}], or name the columns by their languages"
        )
    for code in codes:
        judged = Counter(
            {other: count for other, count in _languages_of(code, languages) if other != UNJUDGED}
        )
        others = judged.total() - judged[code]
        if others > MOST * judged.total():
            del judged[code]
            raise DataError(
                f"{key}: the side {code} is in another language in {others:,} of {judged.total() + languages[f'{code} {code}']:,} "
                f"pairs that are long enough to tell, mostly in {judged.most_common(1)[0][0]} (CLD2's code), "
                f"{_example(samples[OTHER_LANGUAGE])}; correct {name} ([{', '.join(codes)}]) or the files"
            )
    _refuse_late_sides(clean_stats, sides, key)


def _languages_of(side: str, languages: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield the languages that a side was found to be in, with the number of pairs."""
    for name, count in sorted(languages.items()):
        first, _, language = name.partition(" ")
        if first == side and language:
            yield language, count


def sides_json(sides: Sequence[Language], languages: Counter[str]) -> dict[str, dict[str, int]]:
    """Return for each side how many pairs have it in which language."""
    return {side.code: dict(_languages_of(side.code, languages)) for side in sides}


def _example(samples: Sequence[Mapping[str, Any]]) -> str:
    first = samples[0]
    return f"such as {first['source']}: {' | '.join(first['text'].splitlines())[:EXAMPLE_CHARS]}"
