"""Page and card on what a model has forgotten: about the model that is released, and by figures of this run."""

from pathlib import Path
from typing import Any

import pytest

from anadil.recipe.sections import Recipe
from anadil.report.measures_view import measures_view
from anadil.report.read import Facts, read_facts
from anadil.report.run import run
from anadil.report.scores_view import scores_view
from anadil.report.verdict import changes_of, name_of_text, source_of_text, verdict
from tests.kit import report_run

PLAIN: dict[str, Any] = {"language": "az", "base": {"model": "tiny"}}


def scored(released: str | None, *, text: str = "en", half: float = 0.02, **bits: float) -> dict[str, Any]:
    """Scores with bits per byte of each candidate on a retained text; the intervals reach as far as `half` of the base's."""
    scores = report_run.scores()
    scores["gate"] |= {"released": released, "passed": released is not None}
    for name, value in bits.items():
        scores["candidates"].setdefault(name, dict(scores["candidates"]["adapted"]))["retained"] = {
            text: value
        }
        change = value - bits["base"]
        scores["differences"][f"{name} - base, retained {text}"] = {
            "value": change, "low": change - half * bits["base"], "high": change + half * bits["base"], "num_documents": 16,
        }  # fmt: skip
    return scores


def facts_of(root: Path, scores: dict[str, Any], recipe: dict[str, Any] = PLAIN, **changed: Any) -> Facts:
    return read_facts(report_run.job(root, Recipe.model_validate(recipe), scores=scores, **changed))


def card_of(root: Path, scores: dict[str, Any]) -> str:
    job = report_run.job(root, Recipe.model_validate(PLAIN), scores=scores)
    run(job)
    return (job.out / "model_card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("released", "bits", "said", "other"),
    [
        ("adapted", {"base": 2.0, "adapted": 2.2, "finetuned": 3.8}, "10 %", "90 %"),
        ("finetuned", {"base": 2.0, "adapted": 3.8, "finetuned": 2.2}, "10 %", "90 %"),
        ("merged", {"base": 2.0, "adapted": 3.8, "finetuned": 3.6, "merged": 2.2}, "10 %", "90 %"),
    ],
)
def test_every_sentence_is_about_the_model_that_is_released(
    tmp_path: Path, released: str, bits: dict[str, float], said: str, other: str
) -> None:
    facts = facts_of(tmp_path, scored(released, text="en", half=0.02, **bits))

    (warning,) = (each for each in verdict(facts).warnings if each.startswith("Forgetting"))
    assert (
        warning
        == f"Forgetting: en costs the {released} model {said} more bits per byte than the base (95 % interval 8.0 % to 12 %)."
    )
    assert other not in warning
    assert {each.of for each in scores_view(facts).headlines} == {released}
    assert f"{released}, released" in measures_view(facts)[0].table.columns


def test_where_none_is_released_each_model_is_named(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored(None, base=2.0, adapted=2.4, finetuned=3.8))

    warnings = " ".join(verdict(facts).warnings)
    assert "en costs the adapted model 20 % more" in warnings
    assert "en costs the finetuned model 90 % more" in warnings
    assert not any("released" in column for column in measures_view(facts)[0].table.columns)


@pytest.mark.parametrize(
    ("adapted", "said"),
    [
        (3.2, "English costs it 60 % more bits per byte than the base (95 % interval 58 % to 62 %): it has forgotten part of"),
        (2.08, "English costs it 4.0 % more bits per byte than the base (95 % interval 2.0 % to 6.0 %).\n"),
        (2.02, "English costs it 1.0 % more bits per byte than the base, and the 95 % interval holds 0 (−1.0 % to 3.0 %).\n"),
        (1.8, "English costs it 10 % fewer bits per byte than the base (95 % interval 8.0 % to 12 %).\n"),
    ],
)  # fmt: skip
def test_the_card_says_of_the_released_model_what_its_table_shows(
    tmp_path: Path, adapted: float, said: str
) -> None:
    card = card_of(tmp_path, scored("adapted", base=2.0, adapted=adapted, finetuned=9.0))

    assert said.replace("−", "\N{MINUS SIGN}") in card
    assert ("forgotten" in card) == (adapted == 3.2)
    assert "keeps" not in card


def test_text_of_the_program_is_told_from_a_source_of_that_name() -> None:
    texts, sources = ("en", "en_source", "code"), ("web", "en", "code")

    assert [source_of_text(text, texts, sources) for text in texts] == ["", "en", "code"]
    assert source_of_text("en", ("en",), sources) == "en"
    assert name_of_text("en", texts, sources) == "English"
    assert name_of_text("en_source", texts, sources) == "the source en"


def test_one_document_has_no_interval() -> None:
    (change,) = changes_of(scored("adapted", half=0.0, base=2.0, adapted=2.5), "adapted")

    assert (change.interval, change.words) == (None, "25 % more bits per byte than the base")
