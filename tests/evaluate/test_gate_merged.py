"""The gate on a merged model: judged as the adapted one, and as a model that answers where it is one."""

from typing import Any

import pytest

from anadil.evaluate.gate import GateVerdict, apply_gate
from anadil.recipe.gate import GATE_CHECKS, Gate
from tests.evaluate.test_gate_checks import AUDIT, BETTER, CLEAN, SAME, answers, failed, table

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


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"generations": answers(ended=False)}, "ended"),
        ({"generations": answers(text=" ... ")}, "empty_answers"),
        ({"output_language": {"num": 20, "own": 0.0, "shares": {"en": 1.0}}}, "output_language"),
        ({"retained": {"en": 2.6}}, "retained.en"),
    ],
)
def test_a_merged_model_whose_answers_are_of_no_use_leaves_the_adapted_one(
    changed: dict[str, Any], check: str
) -> None:
    verdict = merged_verdict(("merged",), merged=table(**changed))

    assert failed(verdict) == {f"merged.{check}"}
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
