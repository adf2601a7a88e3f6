"""The order of several sources: exact shares in any window, each sequence once in an epoch, epochs told beforehand."""

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.core.errors import RecipeError
from anadil.estimate.schedule import (
    PERIOD,
    WINDOW,
    Schedule,
    SourceSize,
    order_of,
    schedule_of,
    usage_of,
    within_epochs,
)
from anadil.recipe.pretrain import Pretrain

PHASE = {"trains": "all", "steps": 100, "lr": 0.001}
MIXES = st.sampled_from([100, 1000]).flatmap(
    lambda whole: (
        st.lists(st.integers(1, whole - 1), min_size=1, max_size=7, unique=True)
        .map(lambda cuts: [0, *sorted(cuts), whole])
        .map(lambda cuts: [(end - begin) / whole for begin, end in pairwise(cuts)])
    )
)
"""Shares of 2 to 8 sources in whole per cent or per mille."""


def pretrain(*phases: dict[str, Any], **keys: Any) -> Pretrain:
    return Pretrain.model_validate({"batch_size": 10, "phases": [PHASE | phase for phase in phases]} | keys)


def size(sequences: int = 10**9, mean: float = 2000, max_epochs: int = 4) -> SourceSize:
    return SourceSize(sequences=sequences, targets=round(sequences * mean), max_epochs=max_epochs)


def test_other_sources_go_on_where_they_stand_and_new_ones_begin() -> None:
    sizes = {"old": size(100), "web": size(1000)}
    before = schedule_of(pretrain({"mix": {"web": 0.9, "old": 0.1}}), sizes)
    now = {"new": size(50), "web": size(1000)}
    after = before.with_names(tuple(now), 500)

    planned = schedule_of(pretrain({"mix": {"web": 0.5, "new": 0.5}}), now, step=50, batch=50, before=after)

    assert before.with_names(("old", "web"), 500) is before
    assert planned.positions(500) == (0, before.positions(500)[1])
    assert drawn(planned, 500, 900) == [200, 200]  # then the new one is read four times, which is the most
    assert planned.place_of(500)[1] in {0, before.positions(500)[1]}


def drawn(schedule: Schedule, begin: int, end: int) -> list[int]:
    """Sequences of each source from `begin` up to `end`."""
    before, after = schedule.positions(begin), schedule.positions(end)
    return [late - early for early, late in zip(before, after, strict=True)]


@settings(max_examples=30, deadline=None)
@given(MIXES, st.data(), st.integers(0, 30_000))
def test_any_thousand_sequences_hold_the_shares_of_tokens_within_a_thousandth(
    shares: list[float], data: st.DataObject, begin: int
) -> None:
    # Packing fills sequences, apart from the last ones of a small source.
    means = data.draw(st.lists(st.integers(1900, 2048), min_size=len(shares), max_size=len(shares)))
    sizes = {f"s{number}": size(mean=mean) for number, mean in enumerate(means)}
    mix = {f"s{number}": share for number, share in enumerate(shares)}
    schedule = schedule_of(pretrain({"mix": mix, "steps": 4_000}), sizes)

    counts = drawn(schedule, begin, begin + WINDOW)

    tokens = [count * mean for count, mean in zip(counts, means, strict=True)]
    total, share_of_mean = sum(tokens), [mean * WINDOW / sum(tokens) for mean in means]
    assert sum(counts) == WINDOW
    for each, share, longer in zip(tokens, shares, share_of_mean, strict=True):
        # One sequence is a thousandth, longer than the mean or not.
        assert abs(each / total - share) <= 0.001 * max(1, longer)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(2, 2_000), min_size=1, max_size=8),
    st.integers(0, 3 * PERIOD),
    st.integers(0, PERIOD),
)
def test_any_window_has_floor_or_ceil_of_its_part_and_a_period_is_exact(
    weights: list[int], begin: int, within: int
) -> None:
    sizes = {f"s{number}": size() for number in range(len(weights))}
    schedule = schedule_of(
        pretrain({"mix": {f"s{n}": weight for n, weight in enumerate(weights)}, "steps": 9_000}), sizes
    )
    parts = schedule.segments[0].parts

    for count, part in zip(drawn(schedule, begin, begin + WINDOW), parts, strict=True):
        assert count in {part * WINDOW // PERIOD, -(-part * WINDOW // PERIOD)}
    assert drawn(schedule, within, within + PERIOD) == list(parts)
    exact = [Fraction(weight, sum(weights)) * PERIOD for weight in weights]
    assert all(abs(part - share) < 1 for part, share in zip(parts, exact, strict=True))


def test_a_third_is_within_a_ten_thousandth_over_a_run_and_a_small_share_is_not_lost() -> None:
    sizes = {"a": size(), "b": size(), "c": size()}

    thirds = schedule_of(pretrain({"mix": {"a": 1, "b": 1, "c": 1}}), sizes)
    rare = schedule_of(pretrain({"mix": {"a": 0.9999, "b": 0.0001, "c": 0}}), sizes | {"b": size(mean=5000)})

    assert thirds.segments[0].parts == (3334, 3333, 3333)
    assert rare.segments[0].parts == (9999, 1, 0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 100)), min_size=1, max_size=5),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_every_sequence_of_a_source_comes_once_in_an_epoch_up_to_its_limit(
    sources: list[tuple[int, int]], first: int, second: int
) -> None:
    sizes = {f"s{n}": size(sequences) for n, (sequences, _) in enumerate(sources)}
    mix = {f"s{n}": share for n, (_, share) in enumerate(sources)}
    other = {name: share + 7 for name, share in mix.items()}
    recipe = pretrain({"steps": first, "mix": mix}, {"steps": second, "mix": other}, batch_size=3)
    try:
        schedule = schedule_of(recipe, sizes)
    except RecipeError:
        assert sum(each.most_sequences for each in sizes.values()) < recipe.steps * recipe.batch_size
        return

    drawn_so_far = [0] * len(sources)
    for number in range(schedule.end):
        source, position = schedule.place_of(number)
        assert position == drawn_so_far[source]
        assert schedule.positions(number) == tuple(drawn_so_far)
        drawn_so_far[source] += 1
    assert all(count <= 4 * sequences for count, (sequences, _) in zip(drawn_so_far, sources, strict=True))


def test_a_source_that_runs_out_leaves_its_share_to_the_others_in_proportion() -> None:
    sizes = {"web": size(20), "en": size(), "code": size()}
    recipe = pretrain({"mix": {"web": 0.7, "en": 0.2, "code": 0.1}})

    schedule = schedule_of(recipe, sizes)

    assert schedule.positions(schedule.end)[0] == 80
    assert schedule.segments[1].parts == (0, 6667, 3333)
    assert schedule.exhausted == {"web": 12}
    web, en, _ = usage_of(recipe, sizes)
    assert (web.epochs, web.asked_epochs, web.exhausted_at) == (4, 35, 12)
    assert en.exhausted_at is None


def test_too_little_text_is_refused_at_the_start_with_the_steps_that_are_possible() -> None:
    recipe = pretrain({"mix": {"web": 1, "en": 1}})

    with pytest.raises(RecipeError) as refusal:
        schedule_of(recipe, {"web": size(20), "en": size(30, max_epochs=2)})

    assert str(refusal.value) == (
        "pretrain.phases.0.mix: all its sources are used up after 14 of 100 steps of 10 sequences: web (4 passes over "
        "20 sequences), en (2 passes over 30 sequences); make the phases 14 steps, raise sources.<name>.max_epochs, "
        "or give more text"
    )


def test_positions_run_on_over_phases_and_equal_mixes_are_one_segment() -> None:
    sizes = {"web": size(), "en": size()}
    phases: list[dict[str, Any]] = [
        {"mix": {"web": 1}},
        {"mix": {"web": 0.5, "en": 0.5}},
        {"mix": {"web": 5, "en": 5}},
    ]

    schedule = schedule_of(pretrain(*phases), sizes)

    assert [each.begin for each in schedule.segments] == [0, 1000]
    assert schedule.place_of(999) == (0, 999)
    assert schedule.positions(1000) == (1000, 0)
    assert schedule.positions(3000) == (2000, 1000)


def test_other_shares_from_a_step_on_go_on_from_the_positions() -> None:
    sizes = {"web": size(), "en": size()}
    before = schedule_of(pretrain({"mix": {"web": 1, "en": 1}}), sizes)

    # Two batches were skipped before step 30.
    after = schedule_of(pretrain({"mix": {"web": 9, "en": 1}}), sizes, step=30, batch=32, before=before)

    assert after.positions(320) == before.positions(320) == (160, 160)
    assert [after.place_of(number) for number in range(320)] == [before.place_of(n) for n in range(320)]
    assert after.positions(1020) == (160 + 630, 160 + 70)
    assert after.end == 1020


def test_an_order_costs_the_same_wherever_it_is_asked() -> None:
    order = order_of((5000, 5000))

    assert order.count(0, 10**15 + 1) - order.count(0, 10**15) in {0, 1}
    assert order.place(0, 10**15) == 2 * 10**15


@pytest.mark.parametrize(("num", "replayed"), [(20, 80), (2_000, 444)])  # it runs out, it lasts
def test_passes_over_the_taught_language_count_what_replay_leaves_to_it(num: int, replayed: int) -> None:
    sizes = {"en": size(num), "text": size(1_000)}
    asked = pretrain({"mix": {"text": 0.9, "en": 0.1}, "steps": 2_000}, max_epochs=4)

    short = within_epochs(asked, sizes, ["text"])

    en, text = schedule_of(short, sizes).positions(short.steps * 10)
    assert en == replayed
    # A step has ten sequences.
    assert 3_990 <= text <= 4_000


def test_a_phase_of_replay_alone_that_runs_out_is_refused_as_without_a_limit() -> None:
    sizes = {"en": size(20), "text": size(1_000)}
    asked = pretrain({"mix": {"text": 1}}, {"mix": {"en": 1}}, max_epochs=4)

    with pytest.raises(
        RecipeError, match=r"pretrain\.phases\.1\.mix: all its sources are used up after 108 of 200"
    ):
        schedule_of(within_epochs(asked, sizes, ["text"]), sizes)
