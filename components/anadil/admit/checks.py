"""Checks of new text against the earlier weeks of its source, before a model learns it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anadil.admit.shift import Counts, least_share, odds_ratio, stability_index
from anadil.admit.week import KINDS, Floats, Week
from anadil.core.format import counted, human_percent
from anadil.recipe.retrain import RetrainLimits

MIN_DOCUMENTS = 50
"""Fewer are not asked where they are from and how they are written: they are of few pages, and all pages differ. A choice."""
MIN_GROWN = 20
"""Fewer documents of a place are no growth. A choice."""
MIN_SHARE = 0.1
"""Share of the new documents below which a place that grew is no matter. A choice."""
NUM_BINS = 10
"""Bins of a statistic. Source: Siddiqi, Credit Risk Scorecards (2006)."""
MAX_PLACES = 20
"""Places that have a bin of their own; the others share one. A choice."""
WORDS = {
    "language": "are in another language",
    "duplicates": "are alike to held documents or to each other",
    "contaminated": "hold text of held-out parts, tasks, questions or chats",
    "unusable": "are empty, too short or cannot be read",
    "personal_data": "hold personal data",
}
"""End of the sentence on each share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure of new text beside the usual one."""

    name: str
    """Key of `retrain.limits`."""
    source: str
    """Source of the recipe; empty without sources."""
    value: float
    usual: float
    """Figure of the earlier weeks together."""
    limit: float
    passed: bool
    """False only where chance alone does not explain it."""
    words: str
    """The finding as a sentence."""


def checks_of(source: str, new: Week, earlier: Sequence[Week], limits: RetrainLimits) -> Iterator[Check]:
    """Yield the checks of a source that has earlier weeks."""
    weeks = (new, *earlier)
    for kind in KINDS:
        yield from _share(kind, source, [week.share(kind) for week in weeks], limits)
    yield from _share("personal_data", source, [week.personal_data for week in weeks], limits)
    yield from _heldout(source, new, limits)
    if new.rows >= MIN_DOCUMENTS:
        yield from _growth(source, weeks, limits)
        yield from _mix(source, weeks, limits)
        yield from _quality(source, weeks, limits)


def growth_of_sources(
    documents: Mapping[str, int], usual: Mapping[str, float], limits: RetrainLimits
) -> Iterator[Check]:
    """Yield a check of each source that is larger than usual, against the other sources that have new text.

    A week in which all grow alike is a large week; see `growth_of_one` for one source alone.

    Args:
        documents: Source -> documents that came.
        usual: Source -> documents of a usual week.
        limits: Section of the recipe.
    """
    growths = {source: documents[source] / usual[source] for source in documents}
    if limits.growth is None or len(growths) < 2:
        return
    for source, growth in growths.items():
        # The median, so that a second source that grew hides nothing.
        others = float(np.median([each for name, each in growths.items() if name != source]))
        # Its own size counts as well: the others may have had a holiday.
        value = min(growth, growth / others) if others else growth
        passed = value <= limits.growth or documents[source] < MIN_DOCUMENTS
        yield Check(
            name="growth", source=source, value=value, usual=1.0, limit=limits.growth, passed=passed,
            words=f"it is {value:.1f} times as large as usual: {counted(documents[source], 'document')}, usually {usual[source]:,.0f}",
        )  # fmt: skip


def growth_of_one(
    source: str, documents: int, usual: float, per_file: float, limits: RetrainLimits
) -> Iterator[Check]:
    """Yield a check of the only source that has new text, against its own usual weeks.

    Args:
        source: Its name; empty without sources.
        documents: Documents that came.
        usual: Documents of a usual week.
        per_file: Documents of a new file, over those of a usual week's file.
        limits: Section of the recipe.
    """
    if limits.growth is None:
        return
    # Weeks that a schedule missed come in files of the usual size.
    value = min(documents / usual, per_file)
    yield Check(
        name="growth", source=source, value=value, usual=1.0, limit=limits.growth,
        passed=value <= limits.growth or documents < MIN_DOCUMENTS,
        words=f"it is {documents / usual:.1f} times as large as usual ({counted(documents, 'document')}, usually {usual:,.0f}), and "
        f"its files are {per_file:.1f} times as large",
    )  # fmt: skip


def _share(
    kind: str, source: str, counts: Sequence[tuple[float, float]], limits: RetrainLimits
) -> Iterator[Check]:
    """Compare a share with that of the earlier weeks; the first pair is of the new text."""
    allowed = getattr(limits, kind)
    if allowed is None:
        return
    (count, total), *before = counts
    usual = _quotient(*map(sum, zip(*before, strict=True)))
    # A week that was no better was admitted before.
    limit = max(usual + allowed, *(least_share(*each) for each in before))
    value, least = _quotient(count, total), least_share(count, total)
    yield Check(
        name=kind, source=source, value=value, usual=usual, limit=limit, passed=least <= limit,
        words=f"{human_percent(value)} of {counted(round(total), 'document')} {WORDS[kind]}"
        f"{_by_chance(value, least, limit, human_percent(least))}",
    )  # fmt: skip


def _heldout(source: str, new: Week, limits: RetrainLimits) -> Iterator[Check]:
    """Count the held-out documents that new text holds much of; `clean` compares them run by run."""
    total, count = new.heldout["looked_at"], new.heldout["contaminated"]
    if limits.contaminated is None or not total:
        return
    value, least, limit = count / total, least_share(count, total), limits.contaminated
    yield Check(
        name="contaminated", source=source, value=value, usual=0.0, limit=limit, passed=least <= limit,
        words=f"much of {human_percent(value)} of {counted(total, 'held-out document')} stands in it"
        f"{_by_chance(value, least, limit, human_percent(least))}",
    )  # fmt: skip


def _by_chance(value: float, least: float, limit: float, text: str) -> str:
    """Return why a figure above its limit passes; empty for any other. `text` is the least that chance leaves of it."""
    return (
        f"; that may be chance: {text} is sure, which is within the limit" if value > limit >= least else ""
    )


def _growth(source: str, weeks: Sequence[Week], limits: RetrainLimits) -> Iterator[Check]:
    """Compare the size of each place that is a large part of the new text with the rest of it."""
    for kind in weeks[0].places if limits.growth else ():
        counts = [week.by_place(kind, only_kept=False) for week in weeks]
        usual = sum(counts[1:], Counter[str]())
        for place, count in counts[0].items():
            least = max(MIN_GROWN, MIN_SHARE * weeks[0].rows)
            # A place that is new has no usual size: it is a matter of the mix.
            if place and usual[place] and count >= least:
                ratios = [
                    odds_ratio(each[place], each.total(), usual[place], usual.total()) for each in counts
                ]
                limit = max(limits.growth or 0, *(lowest for _, lowest in ratios[1:]))
                ratio, least_ratio = ratios[0]
                was_as_large = any(_is_as_large(counts[0], each, place) for each in counts[1:])
                why = _by_chance(ratio, least_ratio, limit, f"{least_ratio:.1f}")
                if was_as_large and ratio > limit:
                    why = "; it was as large a part of an earlier week"
                yield Check(
                    name="growth", source=source, value=ratio, usual=1.0, limit=limit,
                    passed=least_ratio <= limit or was_as_large,
                    words=f"{kind} {place} is {ratio:.1f} times as large as usual against the rest: {count:,} of "
                    f"{counted(weeks[0].rows, 'document')}{why}",
                )  # fmt: skip


def _is_as_large(new: Counter[str], earlier: Counter[str], place: str) -> bool:
    """Return True if a place was surely a large part of an earlier week, and is not surely a larger one of the new.

    Odds cannot tell that where a place is all of both: they grow with the number of documents.
    """
    before, total = earlier[place], earlier.total()
    if least_share(before, total) < MIN_SHARE:
        return False
    return least_share(new[place], new.total()) <= 1 - least_share(total - before, total)


def _mix(source: str, weeks: Sequence[Week], limits: RetrainLimits) -> Iterator[Check]:
    """Compare the shares of hosts and origins among the documents that stay."""
    for kind in ("host", "origin") if limits.mix else ():
        counts = [week.by_place(kind, only_kept=True) for week in weeks]
        usual = sum(counts[1:], Counter[str]())
        # Records without an address tell nothing of where they are from.
        if not usual.keys() - {""}:
            continue
        places = sorted(usual, key=lambda place: (-usual[place], place))[:MAX_PLACES]
        table = [[each[place] for place in places] for each in counts]
        rest = [each.total() - sum(row) for each, row in zip(counts, table, strict=True)]
        shift, limit = _shift(np.column_stack((table, rest)).astype(np.float64), limits.mix or 0)
        yield Check(
            name="mix", source=source, value=shift, usual=0.0, limit=limit, passed=shift <= limit,
            words=f"{kind}s changed by an index of {shift:.2f}, {_most_changed(counts[0], usual)}",
        )  # fmt: skip


def _most_changed(counts: Counter[str], usual: Counter[str]) -> str:
    """Return the place whose share changed most, with both shares."""
    shares = {
        place: [_quotient(each[place], each.total()) for each in (counts, usual)]
        for place in sorted({*usual, *counts})
    }
    place = max(shares, key=lambda each: abs(shares[each][0] - shares[each][1]))
    now, before = map(human_percent, shares[place])
    return f"{place or 'none named'} from {before} to {now}"


def _quality(source: str, weeks: Sequence[Week], limits: RetrainLimits) -> Iterator[Check]:
    """Compare how documents are written, by the statistic that changed most beyond its limit."""
    # All statistics are asked, and one is told: they go together, and forty sentences help nobody.
    shifts = []
    for name in weeks[0].statistics if limits.quality else ():
        values = [week.judged(name) for week in weeks]
        together = np.concatenate(values[1:])
        if len(together) and len(values[0]):
            shift, limit = _shift(_by_tenth(values, together), limits.quality or 0)
            shifts.append((shift - limit, shift, limit, name, np.median(values[0]), np.median(together)))
    if shifts:
        _, shift, limit, name, now, usual = max(shifts)
        num_changed = sum(each[0] > 0 for each in shifts)
        yield Check(
            name="quality", source=source, value=shift, usual=0.0, limit=limit, passed=shift <= limit,
            words=f"{num_changed} of {counted(len(shifts), 'statistic')} changed beyond the limit; {name} by an index of {shift:.2f}, "
            f"its median from {usual:.3g} to {now:.3g}",
        )  # fmt: skip


def _by_tenth(values: Sequence[Floats], together: Floats) -> Counts:
    """Count the values of each week by tenths of all of them; a value that many documents have makes fewer bins."""
    # By the earlier text alone: bins must not follow the text that they judge.
    edges = np.unique(np.quantile(together, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    bins = [np.searchsorted(edges, each) for each in values]
    return np.array([np.bincount(each, minlength=len(edges) + 1) for each in bins], dtype=np.float64)


def _shift(table: Counts, allowed: float) -> tuple[float, float]:
    """Return the index of the first row against all others, and its limit: no admitted week is beyond it."""
    # Each week against the others, as the new one is against all.
    usual = table[1:].sum(axis=0)
    limit = max(allowed, *(stability_index(row, usual - row) for row in table[1:]))
    return max(0.0, stability_index(table[0], usual)), limit


def _quotient(count: float, total: float) -> float:
    return count / total if total else 0.0
