"""Validation loss over a run: the step with the lowest, and whether training is over.

All is computed from the trainer's log, which every checkpoint holds. So a resumed run decides as an uninterrupted one.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VALIDATION_LOSS = "eval_loss"
"""Its name in the log. Source: transformers' Trainer.evaluate."""

History = Sequence[Mapping[str, Any]]
"""The trainer's log: a line for each step, and one for each measurement of the validation loss."""


def read_history(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the log of a checkpoint; it also holds the steps from before a resume."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    history: list[dict[str, Any]] = state["log_history"]
    return history


def validation_losses(history: History) -> dict[int, float]:
    """Return the validation loss by the step after which it was measured, in order."""
    return {int(line["step"]): float(line[VALIDATION_LOSS]) for line in history if VALIDATION_LOSS in line}


def best_step(history: History) -> int | None:
    """Return the first step with the lowest validation loss; None without any."""
    losses = validation_losses(history)
    return min(losses, key=lambda step: losses[step], default=None)


def is_over(history: History, patience: int | None) -> bool:
    """True if the last `patience` measurements brought no lower loss."""
    losses = validation_losses(history)
    best = best_step(history)
    if patience is None or best is None:
        return False
    return sum(step > best for step in losses) >= patience
