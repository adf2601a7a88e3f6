"""Search for `base_share: auto` and `weight: auto`: rules over measured points, pure functions of their figures.

The more of the base, the less is lost of its languages, and the less is left of the taught one. So a point is a trade,
and the gate's limits decide it. A text is within them where the gate would say so: with its whole interval.
"""

import hashlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.artifacts.scored_text import ONE_IN, RETAINED_KEY
from anadil.core.errors import DataError
from anadil.core.format import human_figure
from anadil.core.table import Table
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.heldout import by_target
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_candidate, open_model
from anadil.evaluate.tuning import NUMBERS, retained_tuning, target_tuning
from anadil.model.load import free_memory
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import Document
from anadil.text.metrics import bits_per_byte

log = logging.getLogger(__name__)

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares and weights that are always measured."""
MORE_SHARES = 2
"""Shares that are measured beside the best: 1/8 and 1/16 away. Chosen by us: a sixteenth moves less than the interval."""
SHARE_RULE = (
    "base_share: the fewest bits per byte of the target language, of the points that keep the interval of each retained "
    "text within evaluate.gate.max_retained_ratio of the base's"
)
WEIGHT_RULE = (
    "weight: the largest that keeps bits per byte of the target language within "
    "evaluate.gate.max_finetuned_bits_per_byte_ratio of those without the difference, and retained texts within their limit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFigures:
    """One text of a language that the base knows."""

    bits_per_byte: float
    ratio: float
    """Bits per byte over the base's."""
    high: float
    """Upper end of the 95 % interval of the ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Measured values of one merge."""

    target: float
    """Bits per byte of the taught language."""
    retained: Mapping[str, RetainedFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One merge that was measured."""

    base_share: float
    weights: tuple[float, ...]
    figures: Figures
    within: bool
    """Every retained text keeps the limit."""

    @property
    def target(self) -> float:
        """Bits per byte of the taught language."""
        return self.figures.target

    @property
    def worst(self) -> float:
        """Upper end of the retained text that has lost most."""
        return max(text.high for text in self.figures.retained.values())


Score = Callable[[float, tuple[float, ...]], Figures]
"""Base share and weights -> figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of `evaluate.gate`."""

    retained: float
    """Most bits per byte of a retained text, over the base's."""
    target: float
    """Most bits per byte of the taught language, over those without a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Values that were chosen, and why."""

    base_share: float
    weights: tuple[float, ...]
    points: tuple[Point, ...]
    """All that were measured, in ascending order."""
    rules: tuple[str, ...]
    reasons: tuple[str, ...]
    """One for each value that was chosen."""
    warnings: tuple[str, ...]
    """Where no point keeps the rule: some of the reasons, and texts that do not decide."""

    def as_json(self) -> dict[str, Any]:
        """Its entry in `merge.json`."""
        points = [asdict(point) for point in self.points]
        return {
            "points": [point | point.pop("figures") for point in points],
            "rules": self.rules,
            "reasons": self.reasons,
            "warnings": self.warnings,
            "chosen": {"base_share": self.base_share, "weights": self.weights},
        }


def choose(score: Score, base_share: float | None, weights: Sequence[float | None], limits: Limits) -> Choice:
    """Choose the values that are None: the share first, without the differences whose weights are open, then each weight."""
    search = _Search(score=score, limits=limits)
    fixed = tuple(weight or 0.0 for weight in weights)
    rules = [*([SHARE_RULE] if base_share is None else []), *([WEIGHT_RULE] if None in weights else [])]
    chosen = search.best_share(fixed) if base_share is None else search.point(base_share, fixed)
    for place, weight in enumerate(weights):
        if weight is None:
            chosen = search.best_weight(chosen, place)
    return Choice(
        base_share=chosen.base_share, weights=chosen.weights, rules=tuple(rules), reasons=tuple(search.reasons),
        warnings=tuple(search.warnings),
        points=tuple(sorted(search.points.values(), key=lambda point: (point.weights, point.base_share))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    score: Score
    limits: Limits
    points: dict[tuple[float, tuple[float, ...]], Point] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)
    """Retained texts that no share brings within the limit."""
    unsure: set[str] = field(default_factory=set)
    """Retained texts with so wide an interval that no share brings its end within the limit: their values decide."""

    def point(self, base_share: float, weights: tuple[float, ...]) -> Point:
        """Measure a point, unless it was measured."""
        key = base_share, weights
        if key not in self.points:
            figures = self.score(base_share, weights)
            _refuse_no_figure(
                figures, self.points.values(), f"base_share {base_share:g}, weights {list(weights)}"
            )
            within = all(text.high <= self.limits.retained for text in figures.retained.values())
            self.points[key] = Point(base_share=base_share, weights=weights, figures=figures, within=within)
        return self.points[key]

    def best_share(self, weights: tuple[float, ...]) -> Point:
        """Return the best point over all shares, by `SHARE_RULE`."""
        points = [self.point(share, weights) for share in STEPS]
        ends = points[0], points[-1]
        self._sort_lost_texts(points)
        for _ in range(MORE_SHARES):
            points.append(self.point(self._between(points), weights))
            points.sort(key=lambda point: point.base_share)
        best = self._best(points)
        if _is_worse_than_both(best, ends):
            # Weights between two models that are far apart may lie on a barrier, which no rule over limits sees.
            end = self._best(ends)
            self._warn(
                f"base_share {end.base_share:g}: the better end, since the best by the rule, {best.base_share:g}, has a "
                "text that is worse than at both ends"
            )
            return end
        self._say_share(best)
        return best

    def _sort_lost_texts(self, points: Sequence[Point]) -> None:
        """Tell texts that no share brings within the limit from those whose interval alone is too wide."""
        # A vocabulary that was replaced or extended costs some texts more than the limit, also with all of the base's weights.
        # The point that loses least would then throw away what was learnt, for a model that the gate refuses all the same.
        for text in points[0].figures.retained:
            if min(point.figures.retained[text].high for point in points) <= self.limits.retained:
                continue
            least = min(points, key=lambda point: point.figures.retained[text].ratio)
            ratio = human_figure(least.figures.retained[text].ratio)
            if least.figures.retained[text].ratio <= self.limits.retained:
                # To leave the text out would retain nothing, which is further from what was asked for than a value.
                self.unsure.add(text)
                self.warnings.append(
                    f"at every share the interval of {text} ends beyond {self._limit}, so its value decides; the gate may "
                    "find too few documents, as here: name more of them"
                )
                continue
            self.ignored.add(text)
            self.warnings.append(
                f"no share brings {text} within {self._limit}, the nearest is {least.base_share:g} ({ratio}), so it does not "
                "decide; replay it in training"
            )

    def _keeps(self, point: Point) -> bool:
        return all(
            (each.ratio if name in self.unsure else each.high) <= self.limits.retained
            for name, each in point.figures.retained.items()
            if name not in self.ignored
        )

    def _best(self, points: Sequence[Point]) -> Point:
        within = [point for point in points if self._keeps(point)]
        return min(within or points, key=lambda point: (point.target, point.worst, point.base_share))

    def _between(self, points: Sequence[Point]) -> float:
        """Return the share half way from the best point to the neighbour on whose side a better one may lie."""
        best = self._best(points)
        place = points.index(best)
        lower, higher = points[max(0, place - 1) : place], points[place + 1 : place + 2]
        # With less of the base the target is better as a rule, and only the limit forbids it.
        beyond = [point for point in lower if not self._keeps(point)]
        neighbour = min(beyond or [*lower, *higher], key=lambda point: point.target)
        return (best.base_share + neighbour.base_share) / 2

    @property
    def _limit(self) -> str:
        return f"evaluate.gate.max_retained_ratio ({self.limits.retained:g})"

    def _say_share(self, best: Point) -> None:
        share = f"base_share {best.base_share:g}"
        target = f"the fewest bits per byte of the target language ({human_figure(best.target)})"
        decides = best.figures.retained.keys() - self.ignored
        within = f" within {self._limit}" if decides else ", since no other text decides"
        if not self._keeps(best):
            self._warn(f"{share}: {target}; no share keeps all texts within {self._limit}")
        elif best.base_share:
            self.reasons.append(f"{share}: {target}{within}")
        else:
            remedy = "; lower that limit to retain more" if decides else ""
            self.reasons.append(
                f"{share}: nothing of the base is mixed in; the model alone has {target}{within}{remedy}"
            )

    def best_weight(self, without: Point, place: int) -> Point:
        """Return the point with the largest weight of a difference that keeps `WEIGHT_RULE`."""
        most_target = without.target * self.limits.target
        before, after = without.weights[:place], without.weights[place + 1 :]
        points = [self.point(without.base_share, (*before, weight, *after)) for weight in STEPS]
        good = (each for each in points if each.target <= most_target and self._loses_no_more(each, without))
        # A limit below 1 asks more than the model without the difference, which is what is left then.
        best = max(good, key=lambda point: point.weights[place], default=without)
        words = f"within {human_figure(most_target)} bits per byte of the target language and {self._limit}"
        if best.weights[place]:
            self.reasons.append(f"add.{place}.weight {best.weights[place]:g}: the largest {words}")
        else:
            self._warn(f"add.{place}.weight 0: the difference is not added; no weight of it keeps {words}")
        return best

    def _loses_no_more(self, point: Point, without: Point) -> bool:
        # A loss that is there without the difference is no fault of it.
        before = without.figures.retained
        return all(
            text.high <= max(self.limits.retained, before[name].high)
            for name, text in point.figures.retained.items()
        )

    def _warn(self, reason: str) -> None:
        self.reasons.append(reason)
        self.warnings.append(reason)


def _is_worse_than_both(point: Point, ends: tuple[Point, Point]) -> bool:
    if point in ends:
        return False
    texts = point.figures.retained.items()
    return point.target > max(end.target for end in ends) or any(
        text.ratio > max(end.figures.retained[name].ratio for end in ends) for name, text in texts
    )


def _refuse_no_figure(figures: Figures, others: Iterable[Point], place: str) -> None:
    """Refuse a point that lacks a figure, which every comparison would call within its limit or beyond."""
    values = {"the target language": figures.target}
    values |= {name: value for name, text in figures.retained.items() for value in (text.high, text.ratio)}
    for name, value in values.items():
        if not math.isfinite(value):
            raise DataError(
                f"merge at {place}: bits per byte of {name} are {value}; a model that is merged has diverged, "
                "or set base_share and weight to numbers"
            )
    expected = next((set(point.figures.retained) for point in others), set(figures.retained))
    if missing := sorted(expected ^ set(figures.retained)):
        raise DataError(
            f"merge at {place}: {', '.join(missing)} is not measured at every point; run merge again"
        )


MAX_DOCUMENTS, MAX_CHARS = 64, 2_000
"""Most documents of a text, and characters of each. Chosen by us: a dozen points are measured, also on CPUs, and all of them on
the same documents."""
FEW_DOCUMENTS = 4
"""Least documents of a text from which intervals tell something. Chosen by us: those of the built-in English."""
TARGET = "target"
"""Name of the text in the taught language."""

LoadInto = Callable[[Any, float, Sequence[float]], None]
"""Copies the merge of a base share and weights into a loaded model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTexts:
    """Text by which values are chosen, cut to what is measured."""

    target: tuple[Document, ...]
    retained: tuple[Document, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Documents of each text."""
        return {TARGET: len(self.target), **Counter(document.lang for document in self.retained)}


def read_tuning_texts(job: Job) -> TuningTexts:
    """Read the parts for tuning of the held-out text and of each retained text."""
    recipe = job.recipe
    targets, others = by_target(job.of_sources("corpus"), recipe.target_sources)
    target = [replace(document, lang=TARGET) for document in target_tuning(targets)]
    if not target:
        raise DataError(
            f"merge: the corpus has no held-out document for tuning (one in {ONE_IN} is, unless none is left to score); "
            f"raise clean.heldout_fraction, {NUMBERS}"
        )
    retained = retained_tuning(recipe, job.side_files.get(RETAINED_KEY, ()), others)
    texts = TuningTexts(target=_sample(target), retained=_sample(retained))
    log.info(
        "tuning on documents that scores do not use, at most %d of a text and %s characters of each: %s",
        MAX_DOCUMENTS, f"{MAX_CHARS:,}", ", ".join(f"{text} {count}" for text, count in texts.counts.items()),
    )  # fmt: skip
    if few := [f"{text} {count}" for text, count in texts.counts.items() if count < FEW_DOCUMENTS]:
        log.warning(
            "so few documents hardly tell one merge from another: %s; raise clean.heldout_fraction, give more text in %s, %s",
            ", ".join(few), RETAINED_KEY, NUMBERS,
        )  # fmt: skip
    return texts


def _sample(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the same documents of each text wherever they are read, and their beginnings."""
    texts: dict[str, list[Document]] = defaultdict(list)
    # By digest, since a corpus lies in the order of its files, and a text would be the first file alone.
    for document in sorted(documents, key=lambda each: hashlib.sha256(each.text.encode()).digest()):
        texts[document.lang].append(document)
    return tuple(
        replace(document, text=document.text[:MAX_CHARS])
        for each in texts.values()
        for document in each[:MAX_DOCUMENTS]
    )


def score_of(recipe: Recipe, base: Path, model: Path, load_into: LoadInto, texts: TuningTexts) -> Score:
    """Load the model, and return the function that measures a merge; the base is measured first and freed."""
    candidate = open_model("merged", model)
    before = open_model("base", base, like=candidate)
    target = encode_for_all([candidate], texts.target)
    retained = encode_for_all([before, candidate], texts.retained)
    members = _members(retained, texts)
    base_nats = _nats_of(before, retained, recipe)
    loaded = open_candidate(candidate, recipe)

    def score(base_share: float, weights: tuple[float, ...]) -> Figures:
        load_into(loaded.model, base_share, weights)
        nats = loaded.nats(target.ids[candidate.name])
        retained_nats = loaded.nats(retained.ids[candidate.name])
        return Figures(
            target=bits_per_byte(float(nats.sum()), int(target.num_bytes.sum())),
            retained={
                text: _retained_figures(
                    retained_nats[of_it], base_nats[of_it], retained.num_bytes[of_it], recipe.seed
                )
                for text, of_it in members.items()
            },
        )

    return score


def _members(retained: EncodedDocuments, texts: TuningTexts) -> dict[str, NDArray[np.bool_]]:
    names = dict.fromkeys(document.lang for document in texts.retained)
    of_document = np.array([document.lang for document in retained.documents])
    members = {name: of_document == name for name in names}
    for name, of_it in members.items():
        if not of_it.any():
            raise DataError(
                f"merge: a tokenizer alters every document for tuning of the retained text {name} "
                f"({', '.join(retained.altered)}); add documents to {RETAINED_KEY}, {NUMBERS}"
            )
    return members


def _nats_of(candidate: ScoredModel, encoded: EncodedDocuments, recipe: Recipe) -> NDArray[np.float64]:
    loaded = open_candidate(candidate, recipe)
    nats = loaded.nats(encoded.ids[candidate.name])
    loaded.free()
    return nats


def _retained_figures(
    nats: NDArray[np.float64], base_nats: NDArray[np.float64], num_bytes: NDArray[np.int64], seed: int
) -> RetainedFigures:
    size = int(num_bytes.sum())
    bits, before = (bits_per_byte(float(each.sum()), size) for each in (nats, base_nats))
    # As the gate has it, which does not release a model whose interval holds the limit.
    difference = paired_difference(nats, base_nats, num_bytes, seed)
    return RetainedFigures(bits_per_byte=bits, ratio=bits / before, high=1 + difference.high / before)


def choose_values(job: Job, base: Path, model: Path, load_into: LoadInto) -> tuple[Choice, dict[str, Any]]:
    """Choose what the recipe's `merge` calls `auto`; return it with its entry in `merge.json`."""
    recipe, merge = job.recipe, job.recipe.merge
    assert merge
    texts = read_tuning_texts(job)
    gate = recipe.evaluate.gate
    limits = Limits(retained=gate.max_retained_ratio, target=gate.max_finetuned_bits_per_byte_ratio)
    values = (merge.base_share, *(each.weight for each in merge.add))
    share, *weights = (None if isinstance(value, str) else value for value in values)
    choice = choose(score_of(recipe, base, model, load_into, texts), share, weights, limits)
    free_memory()
    log_choice(choice)
    return choice, choice.as_json() | {"limits": asdict(limits), "texts": texts.counts}


def log_choice(choice: Choice) -> None:
    """Log the points as a table, the rules, and what was chosen."""
    # A retained text is shown as its ratio to the base, and the end of its interval.
    columns = (
        "base_share",
        *(["weights"] if choice.weights else []),
        TARGET,
        *choice.points[0].figures.retained,
        "within",
    )
    rows = [
        (
            f"{point.base_share:g}",
            *([" ".join(f"{weight:g}" for weight in point.weights)] if point.weights else []),
            f"{point.target:.4f}",
            *(f"{text.ratio:.3f} (to {text.high:.3f})" for text in point.figures.retained.values()),
            "yes" if point.within else "no",
        )
        for point in choice.points
    ]
    values = [(point.base_share, point.weights) for point in choice.points]
    chosen = values.index((choice.base_share, choice.weights))
    for line in Table("Merges", columns, rows, marked=chosen).lines("  "):
        log.info("%s", line)
    for rule in choice.rules:
        log.info("rule of %s", rule)
    for warning in choice.warnings:
        log.warning("%s", warning)
    for reason in choice.reasons:
        if reason not in choice.warnings:
            log.info("chosen: %s", reason)
