"""The search over shares and weights, on curves that are made up."""

import json
import math
from collections.abc import Callable

import pytest

from anadil.core.errors import DataError
from anadil.merge.auto import Choice, Figures, Limits, RetainedFigures, choose

LIMITS = Limits(retained=1.25, target=1.02)
FIVE = [0, 0.25, 0.5, 0.75, 1]
Curve = Callable[[float], float]


def text_of(ratio: float, width: float = 0.0) -> RetainedFigures:
    return RetainedFigures(bits_per_byte=ratio * 1.1, ratio=ratio, high=ratio + width)


def share_of(target: Curve, english: Curve, width: float = 0.0) -> Choice:
    """Choose a share by two curves over it."""
    return choose(
        lambda share, _: Figures(target=target(share), retained={"en": text_of(english(share), width)}),
        None, (), LIMITS,
    )  # fmt: skip


def weight_of(target: Curve, english: Curve) -> Choice:
    """Choose one weight by two curves over it."""
    return choose(
        lambda _, weights: Figures(target=target(weights[0]), retained={"en": text_of(english(weights[0]))}),
        0.25, (None,), LIMITS,
    )  # fmt: skip


def shares(choice: Choice) -> list[float]:
    return [point.base_share for point in choice.points]


def falling(before: float, after: float) -> Curve:
    """A straight line from the model to the base."""
    return lambda share: before + (after - before) * share


def test_the_limit_is_approached_in_two_halves() -> None:
    # Within 1.25 from a share of .325 on.
    choice = share_of(target=falling(2, 3), english=falling(1.38, 0.98))

    assert choice.base_share == 0.375
    assert shares(choice) == [0, 0.25, 0.3125, 0.375, 0.5, 0.75, 1]
    reason = (
        "base_share 0.375: the fewest bits per byte of the target language (2.375) within "
        "evaluate.gate.max_retained_ratio (1.25)"
    )
    assert choice.reasons == (reason,)
    assert choice.warnings == ()


def test_a_text_is_within_only_with_its_whole_interval() -> None:
    narrow, wide = (share_of(falling(2, 3), falling(1.38, 0.98), width) for width in (0.0, 0.1))

    assert wide.base_share > narrow.base_share
    assert wide.base_share == 0.625


def test_the_value_decides_where_every_interval_is_too_wide() -> None:
    choice = share_of(falling(2, 3), falling(1.38, 0.98), width=0.5)

    assert choice.base_share == 0.375
    assert "at every share the interval of en ends beyond" in choice.warnings[0]
    assert not any(point.within for point in choice.points)


def test_a_model_that_lost_nothing_stays_as_it_is() -> None:
    choice = share_of(target=falling(2, 3), english=falling(1.06, 1))

    assert choice.base_share == 0
    assert shares(choice) == [0, 0.0625, 0.125, *FIVE[1:]]
    assert "nothing of the base is mixed in" in choice.reasons[0]
    assert choice.reasons[0].endswith("lower that limit to retain more")


def test_a_target_that_some_base_makes_better_is_searched_for() -> None:
    # The best share is .125: convex, and every point is within.
    choice = share_of(target=lambda share: 2 + (share - 0.125) ** 2, english=falling(1.06, 1))

    assert choice.base_share == 0.125


def test_the_base_itself_may_be_the_only_point_within() -> None:
    choice = share_of(target=falling(2, 3), english=lambda share: 1.0 if share == 1 else 1.5)

    assert choice.base_share == 1
    assert shares(choice)[-3:] == [0.875, 0.9375, 1]


def test_a_text_that_no_share_brings_within_does_not_decide() -> None:
    def score(share: float, _: tuple[float, ...]) -> Figures:
        return Figures(target=2 + share, retained={"en": text_of(1.5 - share), "ru": text_of(1.4 + share)})

    choice = choose(score, None, (), LIMITS)

    # English alone decides: within from .25 on. Russian is lost by the vocabulary.
    assert choice.base_share == 0.25
    assert not any(point.within for point in choice.points)
    warning = (
        "no share brings ru within evaluate.gate.max_retained_ratio (1.25), the nearest is 0 (1.400), so it does not "
        "decide; replay it in training"
    )
    assert choice.warnings == (warning,)


def test_where_no_text_can_be_within_the_model_stays_as_it_is() -> None:
    choice = share_of(target=falling(2, 3), english=falling(1.6, 1.3))

    assert choice.base_share == 0
    assert "no share brings en within" in choice.warnings[0]
    assert "the nearest is 1 (1.300)" in choice.warnings[0]
    assert not choice.reasons[0].endswith("retain more")


def test_texts_that_are_within_at_different_shares_only_give_the_best_target_with_a_warning() -> None:
    def score(share: float, _: tuple[float, ...]) -> Figures:
        return Figures(target=2 + share, retained={"en": text_of(1.8 - share), "ru": text_of(1.0 + share)})

    choice = choose(score, None, (), LIMITS)

    assert choice.base_share == 0
    assert "no share keeps all texts within" in choice.warnings[0]


def test_ties_go_to_the_point_that_loses_less_then_to_the_smaller_share() -> None:
    assert share_of(target=lambda _: 2, english=falling(1.2, 1)).base_share == 1
    assert share_of(target=lambda _: 2, english=lambda _: 1).base_share == 0


@pytest.mark.parametrize(
    ("target", "english"),
    [
        # The retained text is worse in the middle than at either end.
        (lambda share: {0: 2.0, 1: 3.0}.get(share, 1.9), lambda share: {0: 1.1, 1: 1.0}.get(share, 1.2)),
        # The target is, and only the middle is within.
        (lambda share: {0: 2.0, 1: 3.0}.get(share, 3.5), lambda share: {0: 1.3, 1: 1.4}.get(share, 1.2)),
    ],
)
def test_a_point_that_is_worse_than_both_ends_gives_way_to_the_better_end(
    target: Curve, english: Curve
) -> None:
    choice = share_of(target, english)

    assert choice.base_share == 0
    assert "base_share 0: the better end, since the best by the rule" in choice.warnings[0]
    assert "worse than at both ends" in choice.warnings[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_a_data_error(value: float) -> None:
    with pytest.raises(
        DataError, match=r"merge at base_share 0\.5, weights \[\]: bits per byte of en are (nan|inf)"
    ):
        share_of(target=falling(2, 3), english=lambda share: value if share == 0.5 else 1.3)
    with pytest.raises(DataError, match="of the target language are"):
        share_of(target=lambda share: value if share else 2, english=falling(1.3, 1))


def test_a_text_that_one_point_lacks_is_a_data_error() -> None:
    def score(share: float, _: tuple[float, ...]) -> Figures:
        texts = {"en": text_of(1.0), "ru": text_of(1.0)}
        return Figures(target=2, retained=texts if share < 0.75 else {"en": texts["en"]})

    with pytest.raises(
        DataError, match=r"merge at base_share 0\.75, weights \[\]: ru is not measured at every point"
    ):
        choose(score, None, (), LIMITS)


def test_the_largest_weight_within_the_limits_is_taken() -> None:
    # The target may cost 2 % more, and weight .5 costs exactly that.
    choice = weight_of(target=falling(2, 2.08), english=falling(1.1, 1))

    assert (choice.base_share, choice.weights) == (0.25, (0.5,))
    assert [point.weights for point in choice.points] == [(weight,) for weight in FIVE]
    reason = (
        "add.0.weight 0.5: the largest within 2.040 bits per byte of the target language and "
        "evaluate.gate.max_retained_ratio (1.25)"
    )
    assert choice.reasons == (reason,)


def test_a_difference_that_costs_too_much_is_not_added() -> None:
    choice = weight_of(target=falling(2, 4), english=falling(1.1, 1))

    assert choice.weights == (0.0,)
    assert "the difference is not added" in choice.warnings[0]


def test_a_limit_that_no_weight_keeps_adds_nothing() -> None:
    # Below 1 it asks more than the model without the difference.
    choice = choose(
        lambda _, weights: Figures(target=2 + weights[0], retained={"en": text_of(1.0)}),
        0.0, (None,), Limits(retained=1.25, target=0.9),
    )  # fmt: skip

    assert choice.weights == (0.0,)
    assert "no weight of it keeps within 1.800 bits per byte" in choice.warnings[0]


def test_what_was_lost_before_does_not_forbid_a_difference() -> None:
    assert weight_of(target=falling(2, 2), english=falling(1.4, 1.3)).weights == (1.0,)
    assert weight_of(target=falling(2, 2), english=falling(1.4, 1.5)).weights == (0.0,)
    # Within the limit it may cost something.
    assert weight_of(target=falling(2, 2), english=falling(1.1, 1.3)).weights == (0.75,)


def test_a_share_is_chosen_before_weights_and_weights_one_after_another() -> None:
    calls: list[tuple[float, tuple[float, ...]]] = []

    def score(share: float, weights: tuple[float, ...]) -> Figures:
        calls.append((share, weights))
        return Figures(
            target=2 + share + 0.04 * weights[0] + 0.06 * weights[2], retained={"en": text_of(1.3 - share)}
        )

    choice = choose(score, None, (None, 0.3, None), LIMITS)

    assert all(weights == (0.0, 0.3, 0.0) for _, weights in calls[:7])
    assert len(calls) == len(set(calls)) == 7 + 4 + 4
    assert choice.base_share == 0.0625
    assert choice.weights == (1.0, 0.3, 0.5)
    assert [rule.partition(":")[0] for rule in choice.rules] == ["base_share", "weight"]


def test_all_that_was_measured_is_written_as_json() -> None:
    entry = json.loads(json.dumps(share_of(falling(2, 3), falling(1.38, 0.98)).as_json()))

    assert entry["chosen"] == {"base_share": 0.375, "weights": []}
    assert entry["points"][0] == {
        "base_share": 0.0,
        "weights": [],
        "within": False,
        "target": 2.0,
        "retained": {"en": {"bits_per_byte": pytest.approx(1.518), "ratio": 1.38, "high": 1.38}},
    }
    assert list(entry) == ["points", "rules", "reasons", "warnings", "chosen"]
