from typing import Any

import pytest

from anadil.pretrain.lr_schedule import ends_phase, phase_of, rate_factor
from anadil.recipe.pretrain import Phase, Pretrain

PHASES = (Phase(trains="embeddings", steps=10, lr=1.0), Phase(trains="all", steps=20, lr=0.5))
SETTINGS = Pretrain(phases=PHASES, warmup_fraction=0.2, final_lr_fraction=0.1)


def test_a_step_belongs_to_the_phase_that_its_number_falls_into() -> None:
    assert [phase_of(step, PHASES) for step in (0, 9, 10, 29)] == [(0, 0), (0, 9), (1, 0), (1, 19)]


def test_phases_end_after_their_last_step() -> None:
    assert [step for step in range(40) if ends_phase(step, PHASES)] == [10, 30]


def test_the_rate_rises_to_the_peak_then_falls_to_its_tenth() -> None:
    rates = [rate_factor(step, PHASES[0], SETTINGS) for step in range(10)]

    assert rates[:2] == [0.5, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[5] == pytest.approx(0.55)
    assert rates[9] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("steps", "step", "changes"),
    [
        (1, 0, {}),
        (20, 0, {"warmup_fraction": 0.0}),
        (10, 9, {"warmup_fraction": 1.0}),
        (10, 9, {"schedule": "wsd", "decay_fraction": 0.0}),
    ],
)
def test_the_rate_is_at_the_peak_where_nothing_rises_or_falls(
    steps: int, step: int, changes: dict[str, Any]
) -> None:
    phase = Phase(trains="all", steps=steps, lr=0.3)

    assert rate_factor(step, phase, SETTINGS.model_copy(update=changes)) == pytest.approx(1.0, rel=0.01)


WSD = SETTINGS.model_copy(update={"schedule": "wsd", "decay_fraction": 0.3})


def test_wsd_stays_at_the_peak_then_falls_in_a_line() -> None:
    factors = [rate_factor(step, PHASES[0], WSD) for step in range(10)]

    assert factors == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.7, 0.4, 0.1])


def test_the_warm_up_comes_first_where_it_overlaps_the_fall() -> None:
    settings = WSD.model_copy(update={"warmup_fraction": 0.5, "decay_fraction": 0.9})

    factors = [rate_factor(step, PHASES[0], settings) for step in range(10)]

    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_factor_is_above_nothing_and_never_above_the_peak(schedule: str) -> None:
    for steps in (1, 2, 3, 7, 50):
        for share in (0.0, 0.05, 0.5, 1.0):
            settings = SETTINGS.model_copy(
                update={"schedule": schedule, "warmup_fraction": share, "decay_fraction": 1 - share}
            )
            phase = Phase(trains="all", steps=steps, lr=1.0)
            assert all(0 < rate_factor(step, phase, settings) <= 1 for step in range(steps))
