"""The phase of a step, and the share of the peak learning rate in it."""

import math
from collections.abc import Sequence

from anadil.recipe.pretrain import Phase, Pretrain


def phase_of(step: int, phases: Sequence[Phase]) -> tuple[int, int]:
    """Phase of an optimizer step (both from 0), and the step's number within it."""
    for number, phase in enumerate(phases):
        if step < phase.steps:
            return number, step
        step -= phase.steps
    raise AssertionError("step lies behind the last phase")


def ends_phase(num_done: int, phases: Sequence[Phase]) -> bool:
    """True if exactly `num_done` steps complete a phase."""
    total = 0
    for phase in phases:
        total += phase.steps
        if total == num_done:
            return True
    return False


def rate_factor(step: int, phase: Phase, settings: Pretrain, warmup: int | None = None) -> float:
    """Share of the peak rate, above 0 and up to 1, in a phase's step (from 0).

    A linear rise reaches the peak by the last step of the warm-up. From there `cosine` falls in half
    a cosine, and `wsd` falls linearly in the last `decay_fraction` of the phase. Both reach
    `final_lr_fraction` by the last step of the phase. `warmup` are steps of the warm-up, where they are not the
    recipe's.

    Source: `cosine`: Loshchilov & Hutter 2017, arXiv:1608.03983, equation 5 without restarts. `wsd`: Hu et al.
    2024, arXiv:2404.06395, section 4.2, with the line of Haegele et al. 2024, arXiv:2405.18392, section 3.
    """
    warmup = settings.warmup_steps(phase) if warmup is None else warmup
    if step < warmup:
        # From 1, since a rate of 0 would waste the first step.
        return (step + 1) / warmup
    floor = settings.final_lr_fraction
    if settings.schedule == "cosine":
        progress = (step - warmup + 1) / (phase.steps - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    decay = settings.decay_steps(phase)
    fallen = step - (phase.steps - decay) + 1
    return 1.0 if fallen <= 0 else 1 - (1 - floor) * fallen / decay
