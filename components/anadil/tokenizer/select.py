"""Compare the candidates and choose one."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from anadil.recipe.sections import Recipe
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.fertility import Fertility, HeldoutSample
from anadil.tokenizer.usage import MIN_USES

log = logging.getLogger(__name__)

TABLES = ("fertility.json", "choice.json")
"""What is written here beside the tokenizer itself."""
CHOICE_TOLERANCE = 0.02
"""The fewest held-out tokens per word win; so much worse, a candidate that keeps the base's vocabulary does,
since the rest of what the base knows stays as it is. Assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCandidate:
    """A candidate and what it does to the held-out text."""

    candidate: TokenizerCandidate
    fertility: Fertility

    def as_json(self) -> dict[str, object]:
        """Its entry in `fertility.json` and `choice.json`."""
        found = self.candidate
        sizes = {
            "strategy": found.strategy,
            "asked": found.asked,
            "got": found.got,
            "vocab_size": found.vocab_size,
        }
        usage = asdict(found.usage) if found.usage else {}
        return sizes | usage | self.fertility.as_json()

    @property
    def warning(self) -> str:
        """What is to be said of tokens that the corpus hardly uses; empty where it uses them enough."""
        found, usage = self.candidate, self.candidate.usage
        if usage is None or usage.is_enough:
            return ""
        return (
            f"{found.name}: {usage.own_tokens_seen:,} of its own {usage.own_tokens:,} tokens "
            f"({usage.own_tokens_seen / usage.own_tokens:.0%}) were seen {MIN_USES} times in the training text, and "
            f"the others will be learnt badly; this corpus supports {found.strategy} {usage.supported_size:,}: "
            "lower tokenizer.vocab_sizes, or give more text"
        )


def choose_candidate(measured: Sequence[MeasuredCandidate], recipe: Recipe) -> tuple[MeasuredCandidate, str]:
    """The chosen candidate, and why: see `CHOICE_TOLERANCE`."""
    wanted = recipe.tokenizer.choice
    rivals = [item for item in measured if wanted in ("auto", item.candidate.strategy)]
    fewest = min(rivals, key=_cost)
    near = [
        item
        for item in rivals
        if item.fertility.fertility <= (1 + CHOICE_TOLERANCE) * fewest.fertility.fertility
    ]
    keeping = [item for item in near if item.candidate.strategy != "replace"]
    best = min(keeping or near, key=_cost)
    why = f"tokenizer.choice is {wanted}"
    if len(rivals) > 1:
        of = f"the {len(rivals)} candidates" if wanted == "auto" else f"its {len(rivals)} sizes"
        why += f"; of {of} {fewest.candidate.name} has the fewest tokens per word ({fewest.fertility.fertility:.3f})"
    if best is not fewest:
        why += (
            f", and within {CHOICE_TOLERANCE:.0%} of it {best.candidate.name} ({best.fertility.fertility:.3f}) keeps the "
            "base's vocabulary"
        )
    return best, why


def _cost(item: MeasuredCandidate) -> tuple[float, int]:
    return item.fertility.fertility, item.candidate.vocab_size


def write_tables(
    out: Path,
    base: MeasuredCandidate,
    measured: Sequence[MeasuredCandidate],
    best: MeasuredCandidate,
    why: str,
    heldout: HeldoutSample,
    language: str,
) -> None:
    """Write `fertility.json` and, where there was a choice, `choice.json`.

    The base's tokenizer is in the first in any case, because the others are compared with it.
    """
    chosen = best.candidate.name
    tables = {item.candidate.name: item.as_json() for item in (base, *measured)}
    warnings = [item.warning for item in measured if item.warning]
    summary = {
        "language": language,
        "chosen": chosen,
        "num_words": heldout.num_words,
        "num_bytes": heldout.num_bytes,
        "candidates": tables,
        "warnings": warnings,
    }
    _write_json(out / "fertility.json", summary)
    if len(measured) > 1:
        table = [{"name": name, **tables[name]} for name in (item.candidate.name for item in measured)]
        for entry in table:
            del entry["samples"]
        _write_json(
            out / "choice.json", {"chosen": chosen, "reason": why, "candidates": table, "warnings": warnings}
        )
        log.info("chose %s: %s", chosen, why)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
