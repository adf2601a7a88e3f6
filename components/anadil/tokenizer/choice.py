"""The candidates beside each other, and which one goes on."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anadil.config import PREFERENCE, Recipe
from anadil.tokenizer.candidate import Candidate
from anadil.tokenizer.fertility import Fertility, Heldout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate and what it does to the held-out text."""

    candidate: Candidate
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
        return sizes | self.fertility.as_json()


def choose(measured: Sequence[Measured], recipe: Recipe) -> tuple[Measured, str]:
    """The candidate that goes on, and why."""
    wanted = recipe.tokenizer.choice
    rivals = [item for item in measured if item.candidate.strategy == recipe.tokenizer.strategy]
    best = min(rivals, key=lambda item: (item.fertility.fertility, item.candidate.vocab_size))
    if wanted == "auto":
        why = f"tokenizer.choice auto takes {', else '.join(PREFERENCE)}"
    else:
        why = f"tokenizer.choice is {wanted}"
    if len(rivals) > 1:
        why += f"; of its {len(rivals)} sizes this has the fewest tokens per word"
    return best, why


def write_tables(
    out: Path,
    base: Measured,
    measured: Sequence[Measured],
    best: Measured,
    why: str,
    heldout: Heldout,
    language: str,
) -> None:
    """Write `fertility.json` and, where there was a choice, `choice.json`.

    The base's tokenizer is in the first in any case, because the others are compared with it.
    """
    chosen = best.candidate.name
    shown = {item.candidate.name: item.as_json() for item in (base, *measured)}
    summary = {
        "language": language,
        "chosen": chosen,
        "num_words": heldout.num_words,
        "num_bytes": heldout.num_bytes,
        "candidates": shown,
    }
    _write_json(out / "fertility.json", summary)
    if len(measured) > 1:
        table = [{"name": item.candidate.name, **_without_samples(item)} for item in measured]
        _write_json(out / "choice.json", {"chosen": chosen, "reason": why, "candidates": table})
        log.info("chose %s: %s", chosen, why)


def _without_samples(item: Measured) -> dict[str, object]:
    return {key: value for key, value in item.as_json().items() if key != "samples"}


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
