"""Where a step stands: its phase, its learning rate."""

import math
from collections.abc import Sequence

from anadil.pretraining import Phase, Pretrain


def phase_of(step: int, phases: Sequence[Phase]) -> tuple[int, int]:
    """Phase of an optimizer step (both from 0), and the step's number within it."""
    for number, phase in enumerate(phases):
        if step < phase.steps:
            return number, step
        step -= phase.steps
    raise AssertionError("step lies behind the last phase")


def ends_phase(num_done: int, phases: Sequence[Phase]) -> bool:
    """Whether exactly `num_done` steps complete a phase."""
    total = 0
    for phase in phases:
        total += phase.steps
        if total == num_done:
            return True
    return False


def learning_rate(step: int, phase: Phase, settings: Pretrain) -> float:
    """Rate of a phase's step (from 0): a linear rise to the peak, then half a cosine.

    The peak is reached by the last step of the warm-up, `final_lr_fraction` of it by the
    last step of the phase.

    Source: Loshchilov & Hutter 2017, "SGDR", arXiv:1608.03983, equation 5 without restarts.
    """
    warmup = math.ceil(settings.warmup_fraction * phase.steps)
    if step < warmup:
        return phase.lr * (step + 1) / warmup
    progress = (step - warmup + 1) / (phase.steps - warmup)
    floor = settings.final_lr_fraction
    return phase.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))
