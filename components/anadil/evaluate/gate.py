"""The quality gate: whether the adapted model may go on."""

from dataclasses import dataclass

from anadil.config import Gate
from anadil.evaluate.contamination import Contamination
from anadil.evaluate.interval import Difference

MAX_CONTAMINATED = 0.05
"""Share of held-out documents that may stand in the training part. Above it, better figures may
be memory; below it, figures without them are beside those of all documents. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition: `value <= limit`."""

    name: str
    value: float
    limit: float
    passed: bool
    enforced: bool = True
    """Whether the verdict depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All conditions together."""

    passed: bool
    checks: tuple[Check, ...]


def judge(
    gate: Gate,
    *,
    fertility_ratio: float,
    bits_per_byte_ratio: float,
    difference: Difference,
    contamination: Contamination,
) -> Verdict:
    """Compare the adapted model with the base model.

    `bits_per_byte_significant` looks at the upper end of the interval of adapted - base, which
    is below 0 where the gain is sure. It is shown and not enforced: a small held-out part makes
    every interval wide, and that is no fault of the model.
    """
    share = len(contamination.contaminated) / contamination.num_documents
    checks = (
        _at_most("fertility_ratio", fertility_ratio, gate.max_fertility_ratio),
        _at_most("bits_per_byte_ratio", bits_per_byte_ratio, gate.max_bits_per_byte_ratio),
        _at_most("contaminated_share", share, MAX_CONTAMINATED),
        Check(
            name="bits_per_byte_significant",
            value=difference.high,
            limit=0.0,
            passed=difference.significant and difference.high < 0,
            enforced=False,
        ),
    )
    return Verdict(passed=all(check.passed for check in checks if check.enforced), checks=checks)


def _at_most(name: str, value: float, limit: float) -> Check:
    return Check(name=name, value=value, limit=limit, passed=value <= limit)
