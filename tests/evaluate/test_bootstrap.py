import numpy as np
import pytest

from anadil.evaluate import bootstrap
from anadil.evaluate.bootstrap import paired_difference

BYTES = np.array([800, 120, 4_000, 950, 60, 2_300, 700, 1_500, 310, 90])
DIFFICULTY = np.array([1.0, 3.0, 0.4, 2.0, 5.0, 0.7, 1.4, 0.9, 2.2, 4.0])
NATS = BYTES * DIFFICULTY


def test_the_difference_is_that_of_the_sums_not_the_mean_of_documents() -> None:
    better = NATS * 0.9

    found = paired_difference(better, NATS, BYTES, seed=0)

    assert found.value == pytest.approx((better.sum() - NATS.sum()) / np.log(2) / BYTES.sum())


def test_a_small_but_steady_gain_is_seen_although_documents_differ_much() -> None:
    better = NATS - 0.01 * BYTES

    found = paired_difference(better, NATS, BYTES, seed=0)

    # Without pairing the interval would be as wide as documents differ: more than 1 bit.
    assert found.high - found.low < 1e-9
    assert found.significant
    assert found.high < 0


def test_equal_models_do_not_differ() -> None:
    found = paired_difference(NATS, NATS, BYTES, seed=0)

    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert not found.significant


def test_a_gain_on_half_of_the_documents_is_not_sure() -> None:
    mixed = NATS + BYTES * 0.1 * np.array([1, -1] * 5)

    found = paired_difference(mixed, NATS, BYTES, seed=0)

    assert found.low < 0 < found.high
    assert not found.significant


def test_the_seed_decides_the_draws() -> None:
    better = NATS - np.sqrt(BYTES)

    first, again, other = (paired_difference(better, NATS, BYTES, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.low < first.value < first.high


def test_few_documents_of_unlike_length_are_not_called_surer_than_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "DRAWS", 300)
    generator = np.random.default_rng(0)
    num_bytes = np.exp(generator.normal(7, 1, 400)).astype(np.int64)
    nats = (-num_bytes * np.abs(generator.standard_t(3, 400)) * 0.1).astype(np.float64)
    truth = nats.sum() / np.log(2) / num_bytes.sum()
    covered = 0
    for trial in range(200):
        chosen = generator.integers(0, 400, 8)
        found = paired_difference(nats[chosen], np.zeros(8), num_bytes[chosen], seed=trial)
        covered += found.low <= truth <= found.high

    # Percentiles of the draws hold it 164 times.
    assert covered >= 175


@pytest.mark.parametrize("count", range(2, 7))
def test_the_fewest_documents_have_wide_intervals_and_finite_ones(count: int) -> None:
    difference = paired_difference(NATS[:count] * 0.9, NATS[:count], BYTES[:count], seed=0)

    assert difference.low < difference.value < difference.high
    assert np.isfinite([difference.low, difference.high]).all()


@pytest.mark.parametrize(("count", "unsure"), [(1, True), (99, True), (100, False)])
def test_under_a_hundred_documents_an_interval_is_unsure_and_one_document_is_never_a_sure_gain(
    count: int, unsure: bool
) -> None:
    nats = np.ones(count)

    assert paired_difference(nats, nats, nats.astype(int), seed=0).unsure is unsure
    assert not paired_difference(NATS[:1] * 0.5, NATS[:1], BYTES[:1], seed=0).significant
