import pytest

from anadil.pretrain.schedule import ends_phase, learning_rate, phase_of
from anadil.pretraining import Phase, Pretrain

PHASES = (Phase(trains="embeddings", steps=10, lr=1.0), Phase(trains="all", steps=20, lr=0.5))
SETTINGS = Pretrain(phases=PHASES, warmup_fraction=0.2, final_lr_fraction=0.1)


def test_a_step_belongs_to_the_phase_that_its_number_falls_into() -> None:
    assert [phase_of(step, PHASES) for step in (0, 9, 10, 29)] == [(0, 0), (0, 9), (1, 0), (1, 19)]


def test_phases_end_after_their_last_step() -> None:
    assert [step for step in range(40) if ends_phase(step, PHASES)] == [10, 30]


def test_the_rate_rises_to_the_peak_then_falls_to_its_tenth() -> None:
    rates = [learning_rate(step, PHASES[0], SETTINGS) for step in range(10)]

    assert rates[:2] == [0.5, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[5] == pytest.approx(0.55)
    assert rates[9] == pytest.approx(0.1)


def test_a_phase_of_one_step_is_at_the_peak() -> None:
    phase = Phase(trains="all", steps=1, lr=0.3)

    assert learning_rate(0, phase, SETTINGS) == 0.3


def test_without_warm_up_the_rate_begins_close_to_the_peak() -> None:
    settings = SETTINGS.model_copy(update={"warmup_fraction": 0.0})

    assert learning_rate(0, PHASES[1], settings) == pytest.approx(0.5, rel=0.01)


def test_a_phase_may_be_all_warm_up() -> None:
    settings = SETTINGS.model_copy(update={"warmup_fraction": 1.0})

    assert learning_rate(9, PHASES[0], settings) == 1.0
