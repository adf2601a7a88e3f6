"""The comparison of two runs as data, which page, terminal and notebook render."""

from dataclasses import dataclass

from anadil.core.format import human_figure, human_percent
from anadil.release.compare.run_facts import RunFacts
from anadil.release.compare.score_pairs import ScorePair, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A key whose value differs."""

    key: str
    a: object
    b: object
    decides: bool
    """A stage's result depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line over the steps of training."""

    label: str
    run: str
    validation: bool
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The lines of one stage in one unit."""

    stage: str
    unit: str
    lines: tuple[Curve, ...]
    why_not: str = ""
    """Reason why the curves share no axis. There are no lines then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPair:
    """Time and cost of a stage in both runs."""

    stage: str
    a_seconds: float | None
    b_seconds: float | None
    a_dollars: float | None
    b_dollars: float | None
    shared: bool
    """Both use the same artifact, made once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRuns:
    """Differences between two runs."""

    a: RunFacts
    b: RunFacts
    text: Text
    recipe: tuple[RecipeChange, ...]
    same: dict[str, bool]
    scores: tuple[ScorePair, ...]
    curves: tuple[Curves, ...]
    costs: tuple[CostPair, ...]
    verdict: tuple[str, ...]
    """Sentences: which run is better, and how certain that is."""
    notes: tuple[str, ...]
    """Limits of the comparison: what cannot be compared, and why."""


def format_figure(pair: ScorePair, value: float | None) -> str:
    """Format a figure of a pair."""
    return human_percent(value) if pair.share else human_figure(value)
