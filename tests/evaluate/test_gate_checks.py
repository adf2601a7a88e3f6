from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anadil.core.errors import RecipeError
from anadil.core.measures import MEASURES
from anadil.evaluate import bootstrap
from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.gate import GateVerdict, apply_gate
from anadil.evaluate.heldout import Contamination
from anadil.recipe.gate import GATE_CHECKS, Gate
from anadil.recipe.load import load_recipe

CLEAN = Contamination(
    unit="words", ngram=8, num_documents=200, num_train_documents=9,
    exact=(), contaminated=(), overlapping=(), coverage=0.0,
)  # fmt: skip
ENGLISH = {"num": 20, "own": 0.0, "shares": {"en": 1.0}}
AUDIT = {"share_ending_in_eot": 1.0}
BETTER = Difference(value=-0.1, low=-0.2, high=-0.05, num_documents=200)
SAME = Difference(value=0.0, low=0.0, high=0.0, num_documents=200)


def text(kind: str, **changed: Any) -> dict[str, Any]:
    return {"kind": kind, "mode": "greedy", "loop": False, "ended": True, "text": "H\u0259.", **changed}


def table(**changed: Any) -> dict[str, Any]:
    return {
        "fertility": 2.0, "bits_per_byte": 1.0, "retained": {"en": 2.0},
        "generations": [text(kind) for kind in ("continuation", "answer") for _ in range(10)],
        "output_language": {"num": 20, "own": 0.9, "shares": {"az": 0.9, "tr": 0.1}},
    } | changed  # fmt: skip


def differences(**changed: Difference) -> dict[str, Difference]:
    pairs = ("adapted - base", "finetuned - base", "finetuned - adapted")
    return dict.fromkeys(pairs, SAME) | {"finetuned - adapted, answers": BETTER} | changed


def judged(
    gate: Gate | None = None, *, contamination: Contamination = CLEAN, audit: Any = None,
    pairs: dict[str, Difference] | None = None, answering: Sequence[str] = ("finetuned",), **candidates: dict[str, Any],
) -> GateVerdict:  # fmt: skip
    tables = dict.fromkeys(("base", "adapted", "finetuned"), table()) | candidates
    return apply_gate(
        gate or Gate(), tables, pairs or differences(), contamination, audit or AUDIT, answering
    )


def failed(verdict: GateVerdict) -> set[str]:
    return {name for each in verdict.verdicts.values() for name in each.failed}


def answers(**changed: Any) -> list[dict[str, Any]]:
    return [text("answer", **changed) for _ in range(10)]


def test_equal_models_with_better_answers_pass_all_that_was_measured() -> None:
    verdict = judged()

    assert (verdict.passed, verdict.released, failed(verdict)) == (True, "finetuned", set())
    names = {check.name.removesuffix(".en") for check in verdict.checks}
    known = {name for name in GATE_CHECKS if not name.startswith("merged.")}
    assert names | set(verdict.unmeasured) == known
    of_measures = tuple(each.check.name for each in MEASURES if each.check)
    assert set(verdict.unmeasured) == {name for name in known if name.endswith(("to_champion", *of_measures))}


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"retained": {"en": 2.6}}, "retained_to_base.en"),
        ({"generations": answers(loop=True)}, "loops"),
        ({"generations": answers(ended=False)}, "ended"),
        ({"generations": answers(text='"')}, "empty_answers"),
        ({"generations": answers(text=" ... ")}, "empty_answers"),
        ({"output_language": {"num": 20, "own": 0.2, "shares": {"tr": 0.8}}}, "output_language"),
        ({"fertility": 2.5}, "fertility"),
    ],
)
def test_a_finetuned_model_worse_than_the_adapted_one_leaves_the_adapted_one_to_release(
    changed: dict[str, Any], check: str
) -> None:
    base = table(bits_per_byte=1.5)

    verdict = judged(base=base, finetuned=table(**changed))

    assert failed(verdict) == {f"finetuned.{check}"}
    assert (verdict.passed, verdict.released) == (True, "adapted")
    assert not verdict.verdicts["adapter"].passed


def test_answers_must_be_better_with_their_whole_interval() -> None:
    unclear = Difference(value=-0.1, low=-0.2, high=0.01, num_documents=40)

    verdict = judged(pairs=differences(**{"finetuned - adapted, answers": unclear}))

    (check,) = (each for each in verdict.checks if each.name == "finetuned.answers")
    assert failed(verdict) == {"finetuned.answers"}
    assert (check.value, check.interval, check.unsure) == (-0.1, (-0.2, 0.01), True)
    assert check.failure == (
        "finetuned.answers is undecided: 40 texts, interval -0.2 to 0.01, limit 0; more texts needed"
    )


def greedy(kind: str, loops: int, of: int) -> list[dict[str, Any]]:
    return [text(kind, loop=number < loops) for number in range(of)]


@pytest.mark.parametrize(
    ("loops", "of", "outcome"),
    [(2, 6, "undecided"), (1, 5, "undecided"), (0, 6, "passed"), (20, 60, "passed"), (6, 6, "failed"), (27, 60, "undecided")],
)  # fmt: skip
def test_an_interval_that_spans_its_limit_decides_nothing(loops: int, of: int, outcome: str) -> None:
    verdict = judged(adapted=table(generations=greedy("continuation", loops, of)))

    (check,) = (each for each in verdict.checks if each.name == "adapted.loops")
    assert (check.passed, check.undecided) == (outcome == "passed", outcome == "undecided")
    assert verdict.verdicts["model"].passed is check.passed
    if outcome == "undecided":
        assert f"undecided: {of} texts, interval " in check.failure
        assert "limit 0.5; more texts needed" in check.failure


def test_each_retained_text_decides_by_its_own_interval() -> None:
    def change(value: float, half: float) -> Difference:
        return Difference(value=value, low=value - half, high=value + half, num_documents=120)

    base = table(retained={"en": 2.0, "en_source": 2.0, "code": 2.0})
    adapted = table(retained={"en": 2.1, "en_source": 2.48, "code": 2.6})
    pairs = {"en": change(0.1, 0.05), "en_source": change(0.48, 0.1), "code": change(0.6, 0.05)}

    verdict = judged(
        base=base,
        adapted=adapted,
        pairs=differences(**{f"adapted - base, retained {text}": each for text, each in pairs.items()}),
    )

    checks = {each.name: each for each in verdict.checks if each.name.startswith("adapted.retained")}
    outcomes = {name.rpartition(".")[2]: (each.passed, each.undecided) for name, each in checks.items()}
    assert outcomes == {"en": (True, False), "en_source": (False, True), "code": (False, False)}
    assert all(each.enforced and each.limit == 1.25 for each in checks.values())
    assert set(verdict.verdicts["model"].failed) == {"adapted.retained.en_source", "adapted.retained.code"}
    assert (
        "adapted.retained.en_source is undecided: 120 texts, interval 1.19 to 1.29, limit 1.25"
        in checks["adapted.retained.en_source"].failure
    )


def test_a_retained_text_of_one_document_decides_nothing() -> None:
    one = Difference(value=1.6, low=1.6, high=1.6, num_documents=1)
    adapted = table(retained={"en": 2.0, "self": 3.6})
    pairs = differences(**{"adapted - base, retained en": SAME, "adapted - base, retained self": one})

    verdict = judged(base=table(retained={"en": 2.0, "self": 2.0}), adapted=adapted, pairs=pairs)

    assert verdict.verdicts["model"].passed
    assert "adapted.retained.self" in verdict.unmeasured


def test_loops_in_answers_count_for_a_model_that_continues_text() -> None:
    made = [*greedy("continuation", 2, 6), *greedy("answer", 60, 64)]

    verdict = judged(adapted=table(generations=made))

    (check,) = (each for each in verdict.checks if each.name == "adapted.loops")
    assert (check.value, check.num, check.passed, check.undecided) == (62 / 70, 70, False, False)

    (without_loops,) = (each for each in judged().checks if each.name == "finetuned.loops")
    # Without a hit the upper end of Wilson's interval is z^2 / (n + z^2).
    assert without_loops.interval == pytest.approx((0.0, 1.96**2 / (10 + 1.96**2)))


def test_a_model_that_answers_is_judged_by_its_answers_and_not_by_running_text() -> None:
    texts = [*greedy("continuation", 40, 40), *greedy("answer", 0, 40)]
    worse = table(bits_per_byte=3.0, retained={"en": 2.4}, generations=texts)

    verdict = judged(finetuned=worse)

    assert (verdict.released, failed(verdict)) == ("finetuned", set())
    lost = {check.name for check in verdict.checks if not check.passed and check.name.startswith("finetuned")}
    assert {"finetuned.bits_per_byte", "finetuned.bits_per_byte_to_base", "finetuned.retained.en"} == lost
    assert [each.use for each in verdict.verdicts.values()] == ["continuing text", "answering"]


def test_running_text_decides_where_no_answers_were_measured() -> None:
    pairs = {name: each for name, each in differences().items() if "answers" not in name}

    verdict = judged(finetuned=table(bits_per_byte=3.0), pairs=pairs)
    shown = judged(
        Gate(modes={"finetuned.bits_per_byte": "report"}), finetuned=table(bits_per_byte=1.03), pairs=pairs
    )

    assert failed(verdict) == {"finetuned.bits_per_byte", "finetuned.bits_per_byte_to_base"}
    assert failed(shown) == {"finetuned.bits_per_byte_to_base"}


@pytest.mark.parametrize(
    ("low", "high", "good"), [(-0.2, -0.1, True), (0.0, 0.0, True), (-0.1, 0.1, False), (0.1, 0.2, False)]
)
def test_answers_worse_than_the_champions_are_not_released(low: float, high: float, good: bool) -> None:
    middle = Difference(value=(low + high) / 2, low=low, high=high, num_documents=200)

    verdict = judged(champion=table(), pairs=differences(**{"finetuned - champion, answers": middle}))

    assert failed(verdict) == (set() if good else {"finetuned.answers_to_champion"})


def test_too_few_or_seen_documents_stop_both_and_a_mask_that_trained_no_end_the_adapter() -> None:
    assert failed(judged(audit={"share_ending_in_eot": 0.98})) == {"finetuned.mask_audit"}
    few = judged(contamination=replace(CLEAN, num_documents=9))
    seen = judged(contamination=replace(CLEAN, contaminated=tuple(map(str, range(11)))))

    assert failed(few) == {"adapted.documents", "finetuned.documents"}
    assert failed(seen) == {"adapted.contaminated_share", "finetuned.contaminated_share"}
    assert (few.released, seen.passed) == (None, False)


def test_a_candidate_worse_than_the_champion_is_not_released() -> None:
    pairs = differences(
        **{"adapted - champion": Difference(value=0.05, low=0.02, high=0.08, num_documents=200)}
    )

    verdict = judged(champion=table(bits_per_byte=0.95), pairs=pairs)

    assert failed(verdict) == {"adapted.bits_per_byte_to_champion"}
    check = next(each for each in verdict.checks if each.name == "adapted.bits_per_byte_to_champion")
    assert check.value == pytest.approx(1 / 0.95)
    assert check.interval == pytest.approx((1 + 0.02 / 0.95, 1 + 0.08 / 0.95))
    assert judged(Gate(max_champion_ratio=1.1), champion=table(bits_per_byte=0.95), pairs=pairs).passed


@pytest.mark.parametrize("answering", [("finetuned", "champion"), ("finetuned",)])
def test_a_kept_language_may_not_lose_much_against_the_champion(answering: tuple[str, ...]) -> None:
    # Within the limit against the base, where a champion had gained.
    champion = table(retained={"en": 1.8})
    lost = Difference(value=0.2, low=0.16, high=0.24, num_documents=200)
    names = ("adapted", "finetuned")
    pairs = differences(**{f"{name} - champion, retained en": lost for name in names})

    verdict = judged(champion=champion, pairs=pairs, answering=answering)

    # The first model that answers is not compared with one that does not.
    refused = names if "champion" in answering else names[:1]
    assert failed(verdict) == {f"{name}.retained_to_champion.en" for name in refused}
    shown = [each.name for each in verdict.checks if "retained_to_champion" in each.name]
    assert len(shown) == 2
    assert not failed(judged(Gate(max_champion_retained_ratio=1.2), champion=champion, pairs=pairs))


def test_the_recipe_says_which_checks_decide() -> None:
    bad = table(generations=answers(loop=True), retained={"en": 3.0})

    shown = judged(Gate(modes={"finetuned.loops": "report", "finetuned.retained": "report"}), finetuned=bad)
    one = judged(Gate(modes={"finetuned.retained_to_base.en": "report"}), finetuned=bad)

    assert failed(shown) == {"finetuned.retained_to_base.en"}
    assert [check.passed for check in shown.checks if check.name == "finetuned.loops"] == [False]
    assert failed(one) == {"finetuned.loops"}


def test_what_was_not_measured_counts_only_where_the_recipe_enforces_it() -> None:
    pairs = {name: each for name, each in differences().items() if "answers" not in name}

    silent = judged(pairs=pairs)
    strict = judged(Gate(modes={"finetuned.answers": "enforce"}), pairs=pairs)

    assert "finetuned.answers" in silent.unmeasured
    assert silent.released == "finetuned"
    assert failed(strict) == {"finetuned.answers"}
    check = next(each for each in strict.checks if each.name == "finetuned.answers")
    assert check.failure == "finetuned.answers was not measured, the limit is 0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "gate.modes={finetuned.loop: report}",
            r"evaluate\.gate\.modes: 'finetuned\.loop' is not a check of the gate; did you mean 'finetuned\.loops'",
        ),
        ("gate.modes={colour: enforce}", r"not a check of the gate; checks are adapted\.fertility"),
    ],
)
def test_an_unknown_check_is_refused_with_the_nearest(words: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("smoke", [f"evaluate.{words}"])


RUNNING_TEXT = ("merged - base", "adapted - base", "merged - adapted")


def merged_verdict(
    answering: tuple[str, ...] = (), of_champion: tuple[str, ...] = (), **candidates: dict[str, Any]
) -> GateVerdict:
    tables = dict.fromkeys(("base", "adapted", "merged"), table()) | candidates
    differences = dict.fromkeys(RUNNING_TEXT, SAME)
    if "finetuned" in tables:
        differences |= {"finetuned - base": SAME, "finetuned - merged": SAME}
        differences |= {"finetuned - merged, answers": BETTER}
    return apply_gate(
        Gate(),
        tables,
        differences,
        CLEAN,
        AUDIT,
        answering={"finetuned", *answering},
        of_champion=of_champion,
    )


def test_of_two_models_that_pass_the_merged_one_is_released_for_continuing_text() -> None:
    verdict = merged_verdict()

    assert (verdict.released, failed(verdict)) == ("merged", set())
    assert verdict.verdicts["merged"].use == "continuing text"
    assert "merged.ended" not in {check.name for check in verdict.checks}


def test_a_merged_model_that_answers_is_judged_by_its_answers_too() -> None:
    verdict = merged_verdict(("merged",))

    names = {check.name.removesuffix(".en") for check in verdict.checks} | set(verdict.unmeasured)
    assert {name for name in names if name.startswith("merged.")} == {
        name for name in GATE_CHECKS if name.startswith("merged.")
    }
    assert verdict.verdicts["merged"].use == "answering"


def test_a_merged_model_whose_answers_are_of_no_use_leaves_the_adapted_one() -> None:
    bad = table(generations=answers(text=" ... ", ended=False), retained={"en": 2.6}, output_language=ENGLISH)

    verdict = merged_verdict(("merged",), merged=bad)

    lost = ("ended", "empty_answers", "output_language", "retained.en")
    assert failed(verdict) == {f"merged.{check}" for check in lost}
    assert verdict.released == "adapted"


def test_a_finetuned_model_is_compared_with_the_merged_one_that_it_began_with() -> None:
    # The adapted model is better by far, and finetuning did not begin with it.
    verdict = merged_verdict(adapted=table(bits_per_byte=0.5), finetuned=table(bits_per_byte=1.01))

    [check] = [each for each in verdict.checks if each.name == "finetuned.bits_per_byte"]
    assert check.value == pytest.approx(1.01)
    assert verdict.released == "finetuned"


def test_models_that_a_retraining_took_as_they_are_are_judged_and_not_released() -> None:
    verdict = merged_verdict(of_champion=("adapted", "merged"))

    assert (verdict.passed, verdict.released, failed(verdict)) == (False, None, set())
    assert verdict.verdicts["model"].passed


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
