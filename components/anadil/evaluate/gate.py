"""The quality gate: which of the candidates may be released.

A check's name begins with the candidate that it decides about: `adapted.*` what `promote` asks
of a model, `finetuned.*` what it asks of an adapter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anadil.evaluate.bootstrap import Difference
from anadil.evaluate.contamination import Contamination
from anadil.recipe.sections import Gate

MAX_CONTAMINATED = 0.05
"""Share of held-out documents that may stand in the training part. Above it, better figures may
be memory; below it, figures without them are beside those of all documents. Chosen by us."""
MAX_EMPTY = 0.5
"""Share of answers that may be without a word. Chosen by us: more often silent than not is no answering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One condition: `value <= limit`."""

    name: str
    value: float
    limit: float
    passed: bool
    enforced: bool = True
    """Whether the candidate's verdict depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """All conditions together."""

    passed: bool
    """Whether there is something to release."""
    released: str | None
    """The finetuned model where there is one, else the adapted one; None if it did not pass."""
    checks: tuple[GateCheck, ...]


def apply_gate(
    gate: Gate, tables: Mapping[str, Mapping[str, Any]], difference: Difference, contamination: Contamination
) -> GateVerdict:
    """Judge the adapted and, where there is one, the finetuned model.

    Args:
        gate: The limits.
        tables: What was measured of each candidate, by name; its entry in `scores.json`.
        difference: Bits per byte, adapted - base.
        contamination: Of the held-out text, on which all candidates are scored.
    """
    share = len(contamination.contaminated) / contamination.num_documents
    checks = list(_against_base(gate, "adapted", tables, share))
    checks.append(_significant(difference))
    last = "adapted"
    if "finetuned" in tables:
        last = "finetuned"
        checks += _against_base(gate, last, tables, share)
        checks += _finetuned(gate, tables)
    passed = all(check.passed for check in checks if check.enforced and check.name.startswith(f"{last}."))
    return GateVerdict(passed=passed, released=last if passed else None, checks=tuple(checks))


def _against_base(
    gate: Gate, name: str, tables: Mapping[str, Mapping[str, Any]], share: float
) -> Iterator[GateCheck]:
    base, own = tables["base"], tables[name]
    # The finetuned model's own line of bits per byte is the comparison with the adapted one.
    bits = "bits_per_byte" if name == "adapted" else "bits_per_byte_to_base"
    ratio = own["bits_per_byte"] / base["bits_per_byte"]
    yield _at_most(f"{name}.fertility", own["fertility"] / base["fertility"], gate.max_fertility_ratio)
    yield _at_most(f"{name}.{bits}", ratio, gate.max_bits_per_byte_ratio)
    for code, value in own["retained"].items():
        yield _at_most(f"{name}.retained.{code}", value / base["retained"][code], gate.max_retained_ratio)
    yield _at_most(f"{name}.loops", _share(own, "loop", answers=name == "finetuned"), gate.max_loop_rate)
    yield _at_most(f"{name}.contaminated_share", share, MAX_CONTAMINATED)


def _significant(difference: Difference) -> GateCheck:
    """Whether the upper end of the interval of adapted - base is below 0, where the gain is sure.

    It is shown and not enforced: a small held-out part makes every interval wide, and that is
    no fault of the model.
    """
    return GateCheck(
        name="adapted.bits_per_byte_significant",
        value=difference.high,
        limit=0.0,
        passed=difference.significant and difference.high < 0,
        enforced=False,
    )


def _finetuned(gate: Gate, tables: Mapping[str, Mapping[str, Any]]) -> Iterator[GateCheck]:
    """What finetuning did to the adapted model."""
    own, before = tables["finetuned"], tables["adapted"]
    ratio = own["bits_per_byte"] / before["bits_per_byte"]
    yield _at_most("finetuned.bits_per_byte", ratio, gate.max_finetuned_bits_per_byte_ratio)
    yield _at_most("finetuned.empty_answers", _share(own, "empty", answers=True), MAX_EMPTY)


def _share(table: Mapping[str, Any], what: str, *, answers: bool) -> float:
    """Share of the greedy texts, or of the greedy answers alone, that loop or are empty.

    Greedy, because sampling hides loops.
    """
    made = [one for one in table["generations"] if one["mode"] == "greedy"]
    if answers:
        made = [one for one in made if one["kind"] == "answer"]
    marks = [one["loop"] if what == "loop" else not any(map(str.isalnum, one["text"])) for one in made]
    return sum(marks) / len(marks) if marks else 0.0


def _at_most(name: str, value: float, limit: float) -> GateCheck:
    return GateCheck(name=name, value=value, limit=limit, passed=value <= limit)
