"""Learning of a training stage in words: fall of the loss, turn of validation."""

from dataclasses import dataclass

from anadil.core.format import integer_if_whole, number
from anadil.report.format import figure
from anadil.report.read import Facts, Json, series

# Fall of the loss under which a stage taught nothing: batches differ by as much. Chosen by us.
NOTHING = 0.02
# The same for finetuning and "little": an adapter whose loss fell by 8 % answered no question of the demo.
LITTLE = 0.10
# Rise of the validation figure over its lowest from which on a stage overfits. Chosen by us.
TURNED = 0.02
MAX_END_STEPS = 10
VALIDATION = ("validation_loss", "validation_bits_per_byte")
"""Keys of a logged line: finetuning's in nats per token, pre-training's in bits per byte."""
PRETRAINING, FINETUNING = "Continued pre-training", "Finetuning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Findings about one stage's curve."""

    fall: float
    """Share of the first loss that is gone; below 0 where the loss rose. Means of a tenth of the steps, ten at most."""
    turn: tuple[float, float] | None
    """Step of the lowest validation figure, 0 for the base, and the share by which it rose since; None if it did not."""
    words: str
    """All of it as a sentence, without the stop."""
    warns: bool


def learnings(facts: Facts) -> dict[str, Learning]:
    """Stage -> findings about its curve; a stage without a loss curve is skipped."""
    stages = {
        PRETRAINING: _learning(facts.training, facts.training_summary, NOTHING),
        FINETUNING: _learning(facts.finetuning, facts.finetuning_summary, LITTLE),
    }
    return {stage: each for stage, each in stages.items() if each}


def _learning(lines: list[Json], summary: Json, little: float) -> Learning | None:
    losses = [value for _, value in series(lines, "loss")]
    if len(losses) < 2:
        return None
    size = max(1, min(MAX_END_STEPS, len(losses) // 10))
    first = float(number(summary.get("first_loss")) or _mean(losses[:size]))
    last = float(number(summary.get("last_loss")) or _mean(losses[-size:]))
    fall, turn = _fall(first, last), _turn(lines)
    # Two digits, but a loss that is not 0 never fell by 100 %.
    percent = figure(min(fall * 100, 99.9), 3) if 0.99 < fall < 1 else figure(abs(fall) * 100, 2)
    moved = f"loss {'fell' if fall >= 0 else 'rose'} by {percent} %"
    taught = "nothing" if fall < NOTHING else "little" if fall < little else ""
    words = f"{moved}, from {figure(first)} to {figure(last)}"
    if taught:
        words = f"{moved}: this stage taught {taught}"
    if turn:
        step, rise = figure(integer_if_whole(turn[0])), f"{figure(turn[1] * 100, 2)} %"
        words += (
            f"; validation rose by {rise} after step {step}: this stage overfits"
            if turn[0]
            else f"; validation ended {rise} above the base's, which was the lowest: this stage made held-out text harder for the model"
        )
    return Learning(fall=fall, turn=turn, words=words, warns=bool(taught or turn))


def _turn(lines: list[Json]) -> tuple[float, float] | None:
    points = next((curve for key in VALIDATION if (curve := series(lines, key))), ())
    if not points:
        return None
    step, lowest = min(points, key=lambda point: point[1])
    rise = points[-1][1] / lowest - 1 if lowest > 0 else 0.0
    # Training was to improve on the base, so over its figure any rise counts.
    return (step, rise) if rise > (TURNED if step else 0) else None


def _fall(before: float, after: float) -> float:
    return 1 - after / before if before > 0 else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
