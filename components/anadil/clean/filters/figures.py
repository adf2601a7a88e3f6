"""Figures of the two sides of a pair: where each side has some that the other lacks, they are no translations.

Words stand for figures in many translations, so what one side alone has says nothing.
"""

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

NUMBER = re.compile(r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)|\d+(?:[.,'’\u066b\u066c\uff0c\uff0e]\d+)*")
ERAS = re.compile(r"(?:明治|大正|昭和|平成|令和|民國|民国|불기|단기)\s?\d+|\d+\s?(?:هـ|ه\.ق|ق\.)")
"""Years that are counted from elsewhere."""
CALENDARS = {
    **dict.fromkeys(("fa", "prs", "mzn", "glk", "lrc", "azb"), (621, 622)), **dict.fromkeys(("th", "lo", "km"), (543, 544)),
    "ne": (56, 57), **dict.fromkeys(("am", "ti"), (7, 8)), **dict.fromkeys(("he", "yi"), (3760, 3761)),
}  # fmt: skip
"""Language -> years by which its own calendar differs."""
MEASURES = re.compile(
    r"\b(?:miles?|mph|feet|foot|ft|inch(?:es)?|pounds?|lbs?|yards?|acres?|gallons?|degrees|fahrenheit)\b|°\s?F",
    re.IGNORECASE,
)
"""Units that translations convert, with their figures."""
METRIC = re.compile(
    rf"({NUMBER.pattern})[-\s]?(?:(?:k[mgqh]|[cms]m|[mglq]|ha|[кс]м|кг|[мгл]|га)(?![^\W\d_])|°\s?C|kilo|hek|cent|sant|mill?im|met[er]|gram|lit[er]|кило|гект"
    r"|санти|метр|грам|литр|キロ|メートル|センチ|グラム|リットル|公[里斤分]|كم|كيلو|کیلو|किलो|किमी|কিমি|কিলো|킬로|미터|χλ[μό]|ק[\"״]|กม|กิโล|კმ|კილო|կմ|կիլո)",
    re.IGNORECASE,
)
CONVERSIONS = (1.609, 3.281, 2.54, 2.205, 28.35, 2.471, 3.785, 1.094, 2.59, 0.473)
"""Kilometres of a mile, feet of a metre and so on, whatever the unit of the other side is called."""
MAX_ROUNDED = 0.04
MIDNIGHT = re.compile(r"(?<![\d:])00?:(?=\d\d(?!\d))")
MYRIADS, BETWEEN_MYRIADS = re.compile("[万萬億亿兆만억조]"), re.compile(r"(?<=\d)\s?[億亿兆억조]\s?(?=\d)")
"""Words of East Asia that end numbers at other places than the thousands of other languages."""
HALF_DAY = 12
MIN_SCALE = 2
"""Zeros that a word such as `thousand` stands for at least."""
MIN_LATE = 3
"""Figures that are found on the line above or below from which on lines are said to be late."""
MIN_LINES = 30
"""Pairs from which lengths tell that lines are late."""
MIN_GAIN = 0.4
"""By which lengths of neighbouring lines must go together better than those of pairs. Measured on pairs of
FLORES in English with Turkish, Russian and Japanese: .87 to .93 of pairs, .02 to .1 of neighbours."""
Token = tuple[str, ...]
"""A number without its separators, and its parts if it has some."""


def numbers_of(text: str) -> list[Token]:
    """Return the numbers of a text in ASCII figures, each as a whole and in parts."""
    if not any(map(str.isdecimal, text)):
        return []
    tokens = []
    # The zero of an hour is a figure like another; other zeros may be left out.
    text = MIDNIGHT.sub("24:", text)
    for match in NUMBER.finditer(BETWEEN_MYRIADS.sub("", ERAS.sub(" ", text))):
        parts = [
            "".join(str(unicodedata.decimal(each)) for each in part) for part in re.findall(r"\d+", match[0])
        ]
        tokens.append(("".join(parts), *parts) if len(parts) > 1 else (parts[0],))
    return tokens


def unlike_figures(texts: Sequence[str], codes: Sequence[str]) -> str | None:
    """Return a figure of each side that the other lacks, such as `1990 | 1995`; None where a side has all of the other's."""
    first, second = map(numbers_of, _without_converted(*_without_converted(*texts)))
    if (
        not first
        or not second
        or any(map(MEASURES.search, texts))
        or "".join(map(_plain, first)) == "".join(map(_plain, second))
    ):
        return None
    offsets = {offset for code in codes for offset in CALENDARS.get(code, ())} | {HALF_DAY}
    least = 1 if any(map(MYRIADS.search, texts)) else MIN_SCALE
    missing = [_missing(first, second, offsets, least), _missing(second, first, offsets, least)]
    return " | ".join(str(each) for each in missing) if None not in missing else None


def _without_converted(metric: str, other: str) -> tuple[str, str]:
    """Return the sides, the other one first, without metric figures of the first that the other has in other units."""
    if not METRIC.search(metric):
        return other, metric
    figures, others = (list(each.finditer(text)) for each, text in ((METRIC, metric), (NUMBER, other)))
    same = {_values(match[0])[0] for match in NUMBER.finditer(metric)} & {
        _values(match[0])[0] for match in others
    }
    for match, number in itertools.product(figures, others):
        sides = [_values(each) for each in (match[1], number[0])]
        if same.isdisjoint(side[0] for side in sides) and _is_converted(
            *sides, is_celsius=match[0][-1] in "Cc"
        ):
            metric, other = _blanked(metric, match.span(1)), _blanked(other, number.span())
    return other, metric


def _blanked(text: str, span: tuple[int, int]) -> str:
    return text[: span[0]] + " " * (span[1] - span[0]) + text[span[1] :]


def _values(number: str) -> list[float]:
    *first, last = re.findall(r"\d+", number)
    return [float("".join([*first, last])), *([float(f"{''.join(first)}.{last}")] if first else [])]


def _is_converted(metric: Sequence[float], other: Sequence[float], *, is_celsius: bool) -> bool:
    """Return whether a figure is the same in another unit; a separator may be of thousands."""
    pairs = list(itertools.product(metric, other))
    if is_celsius:
        return any(abs(1.8 * ours + 32 - theirs) <= 1 for ours, theirs in pairs)
    ratios = [abs(math.log(ours / theirs)) for ours, theirs in pairs if ours and theirs]
    return any(abs(each - abs(math.log(by))) <= MAX_ROUNDED for each in ratios for by in CONVERSIONS)


def _plain(token: Token) -> str:
    return token[0].strip("0")


def _missing(tokens: Sequence[Token], others: Sequence[Token], offsets: set[int], least: int) -> str | None:
    known = {each for token in others for each in token}
    for token in tokens:
        parts = token[1:] or token
        is_scaled = any(_is_scaled(token[0], other, 1 if len(token) > 1 else least) for other in known)
        if (
            token[0] not in known
            and not is_scaled
            and not all(any(_is_same(part, other, offsets) for other in known) for part in parts)
        ):
            return token[0]
    return None


def _is_same(part: str, other: str, offsets: set[int]) -> bool:
    number, another = int(part), int(other)
    is_short_year = (
        min(len(part), len(other)) == 2
        and max(len(part), len(other)) == 4
        and (part.endswith(other) or other.endswith(part))
    )
    return number in (0, another) or is_short_year or abs(number - another) in offsets


def _is_scaled(number: str, other: str, least: int) -> bool:
    """Return whether zeros alone are between two numbers, for which a word may stand, or a decimal point."""
    return number.strip("0") == other.strip("0") and abs(len(number) - len(other)) >= least


class Lateness:
    """Sums over the pairs of a file in their order, which show a side whose lines stand too late."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """`same`, `first`, `second`: figures that are equal in a pair, or on the other side's line above, of the side that is
        late. `0 xy` and so on: sums of the logarithms of lengths, of pairs and of the lines above."""
        self._before: tuple[frozenset[str], frozenset[str], bool, float, float] | None = None

    def add(self, texts: Sequence[str]) -> None:
        """Add the next pair."""
        first, second = (frozenset(token[0] for token in numbers_of(text)) for text in texts)
        x, y = (math.log1p(len(text)) for text in texts)
        is_same = bool(first) and first == second
        self.counts["same"] += is_same
        self._sum("0", x, y)
        if self._before:
            first_before, second_before, was_same, x_before, y_before = self._before
            self.counts["second"] += bool(second) and not was_same and second == first_before
            self.counts["first"] += bool(first) and not was_same and first == second_before
            self._sum("second", x_before, y)
            self._sum("first", x, y_before)
        self._before = first, second, is_same, x, y

    def _sum(self, name: str, x: float, y: float) -> None:
        for key, value in {"n": 1, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}.items():
            self.counts[f"{name} {key}"] += value  # type: ignore[assignment]  # a sum of floats


def late_side(counts: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the side whose lines stand one too late by the sums of a file, and the share of the lines that do; None: neither."""
    side = max(("first", "second"), key=lambda each: counts.get(each, 0))
    num_late = counts.get(side, 0)
    if num_late >= MIN_LATE and num_late > counts.get("same", 0) / 10:
        return side, num_late / (num_late + counts.get("same", 0))
    if counts.get("0 n", 0) < MIN_LINES:
        return None
    together = {each: _correlation(counts, each) for each in ("0", "first", "second")}
    side = max(("first", "second"), key=together.__getitem__)
    return (side, 1.0) if together[side] > together["0"] + MIN_GAIN else None


def _correlation(counts: Mapping[str, float], name: str) -> float:
    n, x, y, xx, yy, xy = (counts.get(f"{name} {key}", 0) for key in ("n", "x", "y", "xx", "yy", "xy"))
    spread = (n * xx - x * x) * (n * yy - y * y)
    return (n * xy - x * y) / math.sqrt(spread) if spread > 0 else 0.0
