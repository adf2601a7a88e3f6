"""The part of a comparison of two runs that a stage brings: figures in pairs, and sentences.

A stage with such a part has a module `compare` with `FILE`, the JSON file of its artifact, and `compared(a, b)`, which returns
a `Compared`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from anadil.artifacts.artifact import Manifest
from anadil.page.values import Json
from anadil.text.metrics import SURE_DOCUMENTS

LOWER, HIGHER = -1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of two runs, as far as stages compare it."""

    manifests: dict[str, Manifest]
    digests: dict[str, str]
    """Artifact word -> digest of its content, also of inputs that are gone."""
    recipe: dict[str, object]
    """Every key by its path, such as `pretrain.batch_size`."""
    tables: Mapping[str, Json]
    """Artifact word -> the JSON file that its stage compares, where the artifact exists."""

    @property
    def language(self) -> str:
        """Language of the recipe; empty without a recipe."""
        return str(self.recipe.get("language") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """One figure in both runs."""

    candidate: str
    """Model or other subject of the figure."""
    measure: str
    """Path in the table of the subject, in the file of the stage."""
    name: str
    a: float | None
    b: float | None
    share: bool = False
    """A share, printed as per cent."""
    direction: int = LOWER
    """-1 where less is better, else 1."""
    a_interval: tuple[float, float] | None = None
    """95 %, of the run alone."""
    b_interval: tuple[float, float] | None = None
    low: float | None = None
    """Lower end of the 95 % interval of `difference`, over what both runs scored."""
    high: float | None = None
    num_documents: int | None = None
    """Documents or answers that both runs scored."""
    why_not: str = ""
    """Reason why the two do not compare; empty where they do."""

    @property
    def difference(self) -> float | None:
        """B minus A; None where they do not compare."""
        return None if self.why_not or self.a is None or self.b is None else self.b - self.a

    @property
    def clear(self) -> bool | None:
        """True if the interval excludes 0, or those of two shares do not overlap; None without intervals."""
        if self.difference is None:
            return None
        if self.share and self.a_interval and self.b_interval:
            return self.a_interval[1] < self.b_interval[0] or self.b_interval[1] < self.a_interval[0]
        if self.low is None or self.high is None:
            return None
        return (self.num_documents or 0) > 1 and not self.low <= 0 <= self.high

    @property
    def unsure(self) -> bool:
        """True if there are so few documents that the interval is too narrow."""
        return self.num_documents is not None and self.num_documents < SURE_DOCUMENTS

    @property
    def better(self) -> Literal["a", "b"] | None:
        """The run with the clearly better figure; None for neither."""
        moved = self.difference
        if not moved or self.clear is False:
            return None
        return "b" if moved * self.direction > 0 else "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Comparison of what one stage made in two runs. Empty fields show nothing."""

    scores: Sequence[ScorePair] = ()
    verdict: Sequence[str] = ()
    """Sentences: which run is better, and how certain that is."""
    notes: Sequence[str] = ()
    """Limits of the comparison: what cannot be compared, and why."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further values of the JSON by their names."""
