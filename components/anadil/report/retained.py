"""Change of bits per byte on text that the base knows, with its interval: page and cards say the same of it."""

from collections.abc import Collection
from dataclasses import dataclass

from anadil.core.format import number
from anadil.report.data_card import recipe_language
from anadil.report.format import MINUS, figure, ratio
from anadil.report.read import Json, field, table_of

FORGETS = 0.05
"""Rise over the base's from which on page and card call a text forgotten. Chosen by us."""
OF_SOURCE = "_source"
"""Ends the name of a source's text where a text of `evaluate.retained` has the name of the source."""
MAX_TEXTS = 8
"""Most retained texts that page and card tell of in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of a candidate on one retained text."""

    text: str
    """Its name among `retained`: a language, a file or a source."""
    share: float
    """Bits per byte over the base's, less 1."""
    interval: tuple[float, float] | None
    """95 %, of the paired difference; None where the scores hold none, or only one document."""

    @property
    def is_forgotten(self) -> bool:
        """True if the rise is worth a warning."""
        return self.share > FORGETS

    @property
    def size(self) -> str:
        """The change without its sign."""
        return _percent(abs(self.share))

    @property
    def words(self) -> str:
        """The change as a clause, such as `45 % more bits per byte than the base`."""
        words = f"{self.size} {'fewer' if self.share < 0 else 'more'} bits per byte than the base"
        if not self.interval:
            return words
        low, high = self.interval
        if low * high <= 0:
            return f"{words}, and the 95 % interval holds 0 ({_percent(low)} to {_percent(high)})"
        near, far = sorted((abs(low), abs(high)))
        return f"{words} (95 % interval {_percent(near)} to {_percent(far)})"


def changes_of(scores: Json, name: str) -> tuple[Change, ...]:
    """Changes of a candidate on all retained texts, in the order of the scores."""
    base, figures = (table_of(field(scores, f"candidates.{each}.retained")) for each in ("base", name))
    differences = table_of(scores.get("differences"))
    changes = []
    for text, value in figures.items():
        before, share = number(base.get(text)), ratio(base.get(text), value)
        if before is None or share is None:
            continue
        paired = table_of(differences.get(f"{name} - base, retained {text}"))
        low, high = (number(paired.get(end)) for end in ("low", "high"))
        ends = None
        # One document has no interval: its ends are equal.
        if low is not None and high is not None and low != high:
            ends = float(low) / before, float(high) / before
        changes.append(Change(text=text, share=share - 1, interval=ends))
    return tuple(changes)


def forgotten(scores: Json, name: str) -> tuple[Change, ...]:
    """Changes of a candidate that are worth a warning, the worst first."""
    rises = sorted(changes_of(scores, name), key=lambda change: -change.share)
    return tuple(change for change in rises if change.is_forgotten)[:MAX_TEXTS]


def source_of_text(text: str, texts: Collection[str], sources: Collection[str]) -> str:
    """The source whose held-out part one of the retained texts is; empty where it is of `evaluate.retained`."""
    # A source that is called as a text of `evaluate.retained`, such as `en`, has another name there.
    if f"{text}{OF_SOURCE}" in texts:
        return ""
    return next((name for name in (text, text.removesuffix(OF_SOURCE)) if name in sources), "")


def name_of_text(text: str, texts: Collection[str], sources: Collection[str]) -> str:
    """Name of a retained text in a sentence: its language, or its source."""
    source = source_of_text(text, texts, sources)
    return f"the source {source}" if source else recipe_language({"language": text}).name


def _percent(share: float) -> str:
    # A tenth that is held as .0999... is one.
    return f"{MINUS if share < 0 else ''}{figure(round(abs(share) * 100, 6), 2)} %"
