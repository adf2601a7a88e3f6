"""Checks of new text against the earlier weeks of its source: statistics that tell a change from chance."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts.artifact import Manifest, finished_manifest
from anadil.artifacts.prefetch import fetch
from anadil.clean.dedup.find_duplicates import DUPLICATE, NEAR_DUPLICATE, REASONS
from anadil.clean.filters.judge_record import BLOCKED, CONTAMINATED, LANGUAGE, PAGE_LIMITS
from anadil.clean.filters.pii import patterns_of, replace_personal_data
from anadil.clean.kernels.columns import EXTERNAL, STATISTICS
from anadil.clean.write.row_files import STATS
from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import counted, human_percent
from anadil.core.json_text import read_json
from anadil.recipe.retrain import RetrainLimits
from anadil.runtime.cache_key import INPUT
from anadil.text.corpus import read_file
from anadil.text.excluded import REASONS as OVERLAPS

MAX_WEEKS, MAX_FILES, MAX_ROWS = 26, 4, 100_000
"""Earlier corpora that are looked at, files of rows of each, and rows of a week: 30 MB. A choice."""
MAX_CORPORA, MAX_TEXTS = 4, 2_000
"""Earlier corpora, and texts of each in the order of their hashes, in which personal data are looked for. A choice."""
DUPLICATES = (REASONS[DUPLICATE], REASONS[NEAR_DUPLICATE])
KINDS = {
    "language": (LANGUAGE, "mixed", "script", "spelling"),
    "duplicates": DUPLICATES,
    "contaminated": (CONTAMINATED,),
    "unusable": ("empty", "short"),
}
"""Check -> reasons that `clean` drops documents for."""
OF_OVERLAP = dict(zip(OVERLAPS, (CONTAMINATED, *DUPLICATES), strict=True))
"""Reason of a comparison of sources -> the reason of `clean` for the same."""
JUDGED = tuple(name for name in STATISTICS if name not in EXTERNAL)
NO_STYLE = [BLOCKED, PAGE_LIMITS, *(reason for each in KINDS.values() for reason in each)]
"""Reasons that say nothing of how a text is written."""
COLUMNS = ("id", "file", "source", "host", "bytes_out", "reason", "personal_data", *JUDGED)
Floats = npt.NDArray[np.float64]
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
class Week:
    """New documents of a source."""

    documents: int
    """All that came, of which there may be more than rows."""
    bad: float
    """Records that could not be read, for each document."""
    heldout: Mapping[str, int]
    """Held-out documents that were looked at, and those of which the new text holds much (`contaminated`)."""
    columns: Mapping[str, npt.NDArray[Any]]
    """`COLUMNS` by row; beside them `origin`, and `files`: the file without the numbers that differ each week."""
    personal_data: tuple[float, float]
    """Documents with personal data, and those that were looked at."""
    measure: Literal["documents", "text"] = "documents"
    """Few long documents are much text: each figure counts documents, or the bytes of their text."""

    @property
    def sizes(self) -> Floats:
        """Size of each row."""
        rows = self.columns["bytes_out"]
        return rows.astype(np.float64) if self.measure == "text" else np.ones(len(rows))

    @property
    def size(self) -> float:
        """Size of all that came."""
        return float(self.sizes.sum()) * self.documents / max(1, len(self.sizes))

    @property
    def per_file(self) -> float:
        """Size of an input file."""
        return float(self.sizes.sum()) / max(1, len(set(self.columns["file"])))

    @property
    def weights(self) -> Floats:
        """Sizes, scaled to the number of equal documents that vary as much. Source: Kish, Survey Sampling (1965)."""
        sizes = self.sizes
        return sizes * (float(sizes.sum()) / max(1.0, float(sizes @ sizes)))

    def has_reason(self, reasons: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return True for each row that was dropped for one of some reasons."""
        return np.isin(self.columns["reason"].astype(str), list(reasons))

    def share(self, kind: str) -> tuple[float, float]:
        """Return the weight of the documents that a check asks for, and of all."""
        if kind == "personal_data":
            return self.personal_data
        # A record without text is as useless whether it can be read or not.
        weights, bad = self.weights, self.bad * len(self.sizes) if kind == "unusable" else 0.0
        return float(weights[self.has_reason(KINDS[kind])].sum()) + bad, float(weights.sum()) + bad

    def where(self, rows: npt.NDArray[np.bool_]) -> "Week":
        """Return the week with some of its rows."""
        documents = round(self.documents * float(rows.mean())) if len(rows) else 0
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, columns=columns, documents=documents)


def read_week(uri: str, manifest: Manifest, most_files: int, excluded: Mapping[str, str]) -> Week:
    """Read the rows of a corpus, of so many files at most; `excluded` is id -> reason of what `overlap` leaves out."""
    files = sorted(name for name in manifest.files if name.startswith(f"{STATS}/"))
    files = files[:: max(1, -(-len(files) // most_files))]
    folder, _ = fetch(uri, "corpus", ("stats.json", *files))
    stats = read_json(folder / "stats.json")
    table = pa.concat_tables([pq.ParquetFile(folder / name).read(list(COLUMNS)) for name in files])
    # Rows stand in the order of the files, and a part from the front would be of some files only.
    table = table.take(np.arange(0, table.num_rows, max(1, -(-table.num_rows // MAX_ROWS))))
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in COLUMNS}
    pairs = zip(columns["reason"], columns["id"], strict=True)
    reasons = [OF_OVERLAP.get(excluded.get(name, "")) if reason is None else reason for reason, name in pairs]
    families = [re.sub(r"\d+", "#", name.rpartition("/")[2]) for name in columns["file"]]
    columns["reason"], columns["files"] = np.array(reasons, object), np.array(families, object)
    columns["origin"] = np.array([each.partition(" ")[2] for each in columns["source"]], object)
    personal_data = float((columns["personal_data"] > 0).sum()), float(table.num_rows)
    return Week(
        documents=stats["in"], bad=stats["bad"] / max(1, stats["in"]), heldout=stats["heldout"],
        columns=columns, personal_data=personal_data,
    )  # fmt: skip


def earlier_corpora(word: str, manifest: Manifest) -> tuple[list[tuple[str, Manifest]], list[str]]:
    """Return the corpora that one was added to, the newest first, and a sentence on one that cannot be read."""
    corpora: list[tuple[str, Manifest]] = []
    while (digest := manifest.origin.get(f"{INPUT}clean.since")) and len(corpora) < MAX_WEEKS:
        clean: Any = manifest.recipe.get("clean")
        place = str(clean["since"])
        try:
            manifest = finished_manifest(place, "corpus")
            # A corpus of other documents would make another thing usual, in silence.
            if digest != manifest.digest:
                raise IntegrityError(f"{place}: was written again since")
        except (DataError, IntegrityError) as error:
            # An old corpus may be removed to save space: the others still tell what is usual.
            return corpora, [f"{word}: not compared with text before {len(corpora) + 1} weeks: {error}"]
        corpora.append((place, manifest))
    return corpora, []


def personal_data_of(corpora: Sequence[tuple[str, Manifest]], language: str) -> list[tuple[float, float]]:
    """Count the texts with personal data, and those that were read, of the newest corpora, each added to the next."""
    counts, patterns = [], patterns_of(language)
    earlier = [*(manifest.files for _, manifest in corpora[1:]), {}]
    for (uri, manifest), before in list(zip(corpora, earlier, strict=True))[: MAX_CORPORA + 1]:
        # Files of an earlier corpus stay under their names.
        files = sorted(name for name in manifest.files if name.startswith("train/") and name not in before)
        folder, texts = fetch(uri, "corpus", tuple(files[:1]))[0], []
        if files:
            texts = [each.text for each in islice(read_file(folder / files[0]), MAX_TEXTS)]
        holds = sum(bool(replace_personal_data(text, patterns)[1]) for text in texts)
        counts.append((float(holds), float(len(texts))))
    return counts


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
    """Return the weeks without large places that sent nearly nothing: a feed's holiday is no change of the others."""
    weeks = [new, *earlier]
    for kind in ("files", "origin", "host"):
        names, counts = np.unique(_texts(weeks[1:-1] or weeks[1:], kind), return_counts=True)
        shares, texts = counts / counts.sum(), _texts(weeks[:1], kind)
        now = np.array([float(np.mean(texts == name)) for name in names])
        gone = (shares >= (0 if kind == "files" else MIN_SHARE)) & (now < MIN_SHARE * shares)
        rest = [week.where(~np.isin(week.columns[kind].astype(str), names[gone])) for week in weeks]
        if len(rest[0].sizes) and any(len(week.sizes) for week in rest[1:]):
            weeks = [rest[0], *(week for week in rest[1:] if len(week.sizes))]
    return weeks


def _texts(weeks: Sequence[Week], kind: str) -> Any:
    return np.concatenate([week.columns[kind].astype(str) for week in weeks])


def _checks(new: Week, earlier: Sequence[Week], limits: RetrainLimits, measure: Any) -> Iterator[Check]:
    everything = [replace(week, measure=measure) for week in (new, *earlier)]
    # The first week is the new one, here and below.
    weeks, is_text = _delivered(everything[0], everything[1:]), measure == "text"
    for kind in OF_TEXT if is_text else WORDS:
        (count, total), *before = (week.share(kind) for week in (everything[0], *weeks[1:]))
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
        # A place that grows has no holiday.
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
                rest, usual_rest = (1 - each / of for each, of in ((parts[0], totals[0]), usual))
                if later or rest < MIN_SHARE * usual_rest:
                    # All others may have had a holiday. Years of text in the first corpus are no week, but a bound.
                    size = usual[0] / usual[1] * float(np.median([week.size for week in later or weeks[1:]]))
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
