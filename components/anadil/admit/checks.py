"""Checks of new text against the earlier weeks of its source: statistics that tell a change from chance."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anadil.admit.week import JUDGED, NO_STYLE, Floats, Week
from anadil.core.format import counted, human_percent
from anadil.recipe.retrain import RetrainLimits

MIN_DOCUMENTS, MIN_GROWN = 50, 20
"""Fewer documents of a week say nothing of its size, places and style; fewer of a place are no growth. A choice."""
MIN_SHARE = 0.1
"""Part of the text below which a place that grew, or that is absent, is no matter. A choice."""
NUM_BINS, MAX_PLACES = 10, 20
"""Bins of a statistic, and places that have one. Source: Siddiqi, Credit Risk Scorecards (2006)."""
Z, Z_OF_MANY, Z_OF_GROWTH = 3.09, 4.0, 2.33
"""Standard deviations of one in a thousand (ten shares), in 30,000 (fifty statistics), in a hundred (few places). A choice."""
HALF = 0.5
"""Added to counts, so that none is zero. Source: Haldane (1956); Anscombe (1956)."""
WORDS = {
    "language": "are in another language",
    "duplicates": "are alike to held documents or to each other",
    "contaminated": "hold text of held-out parts, tasks, questions or chats",
    "unusable": "are empty, too short or cannot be read",
    "personal_data": "hold personal data",
}
OF_TEXT = ("language", "duplicates", "contaminated")
"""Checks of which a few long documents may be much; a short one is never much text."""
UNITS = {"documents": "documents", "text": "bytes of text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure of new text beside the usual one; `name` is the key of `retrain.limits`."""

    name: str
    source: str = ""
    value: float
    usual: float
    """Figure of the earlier weeks together."""
    limit: float
    passed: bool
    """False only where chance alone does not explain it."""
    words: str


def checks_of(source: str, new: Week, earlier: Sequence[Week], limits: RetrainLimits) -> Iterator[Check]:
    """Yield the checks of a source that has earlier weeks: by documents, and what the size of their text alone refuses."""
    by_documents, by_text = (list(_checks(new, earlier, limits, measure)) for measure in UNITS)
    refused = {each.name for each in by_documents if not each.passed}
    more = [each for each in by_text if not each.passed and each.name not in refused]
    yield from (replace(each, source=source) for each in (*by_documents, *more))


def growth_of_sources(
    new: Mapping[str, Week], earlier: Mapping[str, Sequence[Week]], limits: RetrainLimits
) -> Iterator[Check]:
    """Yield a check of each source that is larger than usual, by documents or text.

    The other sources count: a week in which all grow alike is a large week. The only one is compared with its own weeks.
    """
    # The first corpus holds years of text, where there are later ones.
    later = {name: weeks[:-1] or weeks for name, weeks in earlier.items()}
    if limits.growth is None or (len(new) == 1 and all(len(weeks) == 1 for weeks in earlier.values())):
        return
    for source, week in new.items():
        checks = []
        for each in (week, replace(week, measure="text")):
            sizes = {name: _usual(each.measure, later[name], "size") for name in new}
            growths = {name: replace(new[name], measure=each.measure).size / sizes[name] for name in new}
            value = growths.pop(source)
            words = f"it is {value:.1f} times as large as usual ({each.size:,.0f} {UNITS[each.measure]}, usually {sizes[source]:,.0f})"
            if growths:
                # The median, so that a second source that grew hides nothing. The others may have had a holiday.
                value = min(value, value / (float(np.median([*growths.values()])) or 1.0))
            else:
                files = each.per_file / _usual(each.measure, later[source], "per_file")
                # Weeks that a schedule missed come in files of the usual size.
                value, words = min(value, files), f"{words}, and its files are {files:.1f} times as large"
            # So much text as few documents have says nothing.
            least = MIN_DOCUMENTS * sizes[source] / _usual("documents", later[source], "size")
            check = _judged("growth", value, value if each.size >= least else 0.0, 1.0, limits.growth, words)
            checks.append(replace(check, source=source))
        yield min(checks, key=lambda check: check.passed)


def _usual(measure: Any, weeks: Sequence[Week], figure: str) -> float:
    return max(1.0, float(np.median([getattr(replace(week, measure=measure), figure) for week in weeks])))


def _delivered(new: Week, earlier: Sequence[Week]) -> list[Week]:
    """Return the earlier weeks without the large places that sent nothing: a feed's holiday is no change of the others."""
    weeks = list(earlier)
    for kind in ("files", "origin", "host"):
        names, counts = np.unique(_texts(weeks[:-1] or weeks, kind), return_counts=True)
        least = 0 if kind == "files" else MIN_SHARE * counts.sum()
        absent = {*names[counts >= least]} - {*_texts([new], kind)}
        rest = [week.where(~np.isin(week.columns[kind].astype(str), [*absent])) for week in weeks]
        weeks = [week for week in rest if len(week.sizes)] or weeks
    return weeks


def _texts(weeks: Sequence[Week], kind: str) -> Any:
    return np.concatenate([week.columns[kind].astype(str) for week in weeks])


def _checks(new: Week, earlier: Sequence[Week], limits: RetrainLimits, measure: Any) -> Iterator[Check]:
    """Yield the checks by one measure."""
    everything = [replace(week, measure=measure) for week in (new, *earlier)]
    # The first week is the new one, here and below.
    weeks, is_text = [everything[0], *_delivered(everything[0], everything[1:])], measure == "text"
    for kind in OF_TEXT if is_text else WORDS:
        (count, total), *before = (week.share(kind) for week in weeks)
        part, whole = map(sum, zip(*before, strict=True))
        usual, value = (each / of if of else 0.0 for each, of in ((part, whole), (count, total)))
        if (allowed := getattr(limits, kind)) is not None:
            # A week that was no better was admitted before.
            limit = max(usual + allowed, *(least_share(*each) for each in before))
            of = "the text" if is_text else counted(round(total), "document")
            words = f"{human_percent(value)} of {of} {WORDS[kind]}"
            yield _judged(kind, value, least_share(count, total), usual, limit, words)
    held, total = weeks[0].heldout["contaminated"], weeks[0].heldout["looked_at"]
    if limits.contaminated is not None and total and not is_text:
        words = f"much of {human_percent(held / total)} of {counted(total, 'held-out document')} stands in it"
        yield _judged("contaminated", held / total, least_share(held, total), 0.0, limits.contaminated, words)
    if len(weeks[0].sizes) >= MIN_DOCUMENTS:
        # A place that grows has no holiday; before there are weeks, its own size is not known.
        yield from _growth(everything if len(earlier) > 1 else weeks, limits.growth)
        yield from _mix(weeks, limits.mix)
        yield from _quality(weeks, limits.quality)


def _growth(weeks: Sequence[Week], most: float | None) -> Iterator[Check]:
    """Compare each place that is a large part of the new text with the rest of it, and with its own usual size."""
    later = weeks[1:-1]
    for kind in ("host", "origin", "files") if most else ():
        # The files of the first corpus have names of their own, where there are later ones.
        them = [weeks[0], *(later or weeks[1:])] if kind == "files" else weeks
        totals = [float(week.weights.sum()) for week in them]
        names, counts = np.unique(_texts(weeks[:1], kind), return_counts=True)
        for place in names[counts >= max(MIN_GROWN, MIN_SHARE * counts.sum())].tolist():
            rows = [week.columns[kind].astype(str) == place for week in them]
            parts = [float(week.weights[mask].sum()) for week, mask in zip(them, rows, strict=True)]
            usual = sum(parts[1:]), sum(totals[1:])
            # A place that is new has no usual size: it is a matter of the mix.
            if place and usual[0]:
                ratios = [odds_ratio(*each, *usual) for each in zip(parts, totals, strict=True)]
                (ratio, least), limit = ratios[0], max(most or 0.0, *(lowest for _, lowest in ratios[1:]))
                if later:
                    # Another place may have had a holiday.
                    size = usual[0] / usual[1] * float(np.median([week.size for week in later]))
                    least = min(least, weeks[0].where(rows[0]).size / max(1.0, size))
                words = f"{kind} {place} is {ratio:.1f} times as large as usual against the rest"
                yield _judged("growth", ratio, least, 1.0, limit, words)


def _mix(weeks: Sequence[Week], allowed: float | None) -> Iterator[Check]:
    """Compare the shares of hosts and origins among the documents that stay: what `clean` drops teaches nothing."""
    staying = [
        week.where(np.array([each is None for each in week.columns["reason"]], bool)) for week in weeks
    ]
    for kind in ("host", "origin") if allowed else ():
        names, counts = np.unique(_texts(staying[1:], kind), return_counts=True)
        # Records without an address tell nothing of where they are from.
        if not {*names} - {""}:
            continue
        names = np.sort(names[np.argsort(-counts, kind="stable")[:MAX_PLACES]])
        table = []
        for week in staying:
            places = week.columns[kind].astype(str)
            bins = np.where(np.isin(places, names), np.searchsorted(names, places), len(names))
            table.append(np.bincount(bins, week.weights, len(names) + 1))
        shift, limit = _shift(np.array(table), allowed or 0.0)
        usual, now = (each / (each.sum() or 1.0) for each in (np.sum(table[1:], axis=0), table[0]))
        place = int(np.argmax(np.abs(now - usual)))
        named = [*names, "that of others"][place] or "none named"
        words = f"{kind}s changed by an index of {shift:.2f}, {named} from {human_percent(usual[place])} to {human_percent(now[place])}"
        yield _judged("mix", shift, shift, 0.0, limit, words)


def _quality(weeks: Sequence[Week], allowed: float | None) -> Iterator[Check]:
    """Compare how documents are written, by the statistic that changed most beyond its limit."""
    # All statistics are asked, and one is told: they go together, and forty sentences help nobody.
    judged = [week.where(~week.has_reason(NO_STYLE)) for week in weeks]
    shifts = []
    for name in JUDGED if allowed else ():
        measured = [week.where(~np.isnan(week.columns[name])) for week in judged]
        values = [week.columns[name] for week in measured]
        together = np.concatenate(values[1:])
        if len(together) and len(values[0]):
            # By the earlier text alone: bins must not follow the text that they judge.
            edges = np.unique(np.quantile(together, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
            bins = [
                np.bincount(np.searchsorted(edges, week.columns[name]), week.weights, len(edges) + 1)
                for week in measured
            ]
            shift, limit = _shift(np.array(bins), allowed or 0.0)
            shifts.append((shift - limit, shift, limit, name, np.median(values[0]), np.median(together)))
    if shifts:
        _, shift, limit, name, now, usual = max(shifts)
        changed = f"{sum(each[0] > 0 for each in shifts)} of {counted(len(shifts), 'statistic')} changed beyond the limit"
        words = f"{changed}; {name} by an index of {shift:.2f}, its median from {usual:.3g} to {now:.3g}"
        yield _judged("quality", shift, shift, 0.0, limit, words)


def _judged(name: str, value: float, least: float, usual: float, limit: float, words: str) -> Check:
    """Return a check of a figure; `least` is what is sure of it."""
    if value > limit >= least > 0:
        sure = f"{least:.1f}" if name == "growth" else human_percent(least)
        words += f"; that may be chance: {sure} is sure"
    return Check(name=name, value=value, usual=usual, limit=limit, passed=least <= limit, words=words)


def _shift(table: Floats, allowed: float) -> tuple[float, float]:
    """Return the index of the first row against all others, and its limit: no admitted week is beyond it."""
    # Each week against the others, as the new one is against all.
    usual = table[1:].sum(axis=0)
    limit = max(allowed, *(stability_index(row, usual - row) for row in table[1:]))
    return max(0.0, stability_index(table[0], usual)), limit


def least_share(count: float, total: float) -> float:
    """Return the lower bound of a share: of one of one it is 0.09.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927).
    """
    if total <= 0:
        return 0.0
    share, square = count / total, Z * Z / total
    margin = Z * math.sqrt(max(0.0, share * (1 - share)) / total + square / (4 * total))
    return max(0.0, (share + square / 2 - margin) / (1 + square))


def odds_ratio(count: float, total: float, usual: float, usual_total: float) -> tuple[float, float]:
    """Return how many times larger a part is than usual, against the rest, and the lower bound of it.

    Source: Woolf, On estimating the relation between blood group and disease (1955).
    """
    cells = [count + HALF, total - count + HALF, usual + HALF, usual_total - usual + HALF]
    ratio = cells[0] * cells[3] / (cells[1] * cells[2])
    return ratio, ratio * math.exp(-Z_OF_GROWTH * math.sqrt(sum(1 / cell for cell in cells)))


def stability_index(counts: Floats, usual: Floats) -> float:
    """Return the population stability index of counts by bin, less the most that chance gives; below 0 is nothing.

    By chance it is chi-squared times the sum of the inverse sizes: Yurdakul and Naranjo, Statistical properties of the
    population stability index (2020). Source of the quantile: Wilson and Hilferty, The distribution of chi-square (1931).
    """
    # An empty bin on both sides is no degree of freedom.
    used = (counts + usual) > 0
    degrees = int(used.sum()) - 1
    if degrees < 1 or not counts.sum() or not usual.sum():
        return -math.inf
    shares, usuals = ((each[used] + HALF) / (each.sum() + HALF * (degrees + 1)) for each in (counts, usual))
    part = 2 / (9 * degrees)
    quantile = degrees * (1 - part + Z_OF_MANY * math.sqrt(part)) ** 3
    by_chance = (1 / counts.sum() + 1 / usual.sum()) * quantile
    return float(((shares - usuals) * np.log(shares / usuals)).sum() - by_chance)
