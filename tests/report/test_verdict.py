"""The verdict and what stands beside it: which model to release, why or why none, and what to do next."""

from pathlib import Path
from typing import Any

import pytest

from anadil.recipe.sections import Recipe
from anadil.report.measures_view import measures_view, scores_view
from anadil.report.read import Facts, read_facts
from anadil.report.run import run
from anadil.report.verdict import (
    changes_of,
    learnings,
    name_of_text,
    outcome_words,
    released_name,
    source_of_text,
    verdict,
)
from tests.kit import report_run

PLAIN: dict[str, Any] = {"language": "az", "base": {"model": "tiny"}}


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return read_facts(report_run.job(tmp_path))


def of(tmp_path: Path, **changed: Any) -> Facts:
    return read_facts(report_run.job(tmp_path, **changed))


def slow_finetuning(fall: float) -> list[dict[str, float]]:
    """A curve whose loss falls from 7 by a share."""
    return [{"step": step, "loss": 7.0 * (1 - fall * (step - 1) / 39)} for step in range(1, 41)]


def test_it_names_the_model_to_release_and_what_that_one_is_better_at(facts: Facts) -> None:
    found = verdict(facts)

    assert found["text"] == (
        "Release the finetuned model for answering: all 4 deciding checks hold. On answers to unseen questions it needs "
        "0.8085 bits per byte fewer than the adapted model (95 % interval 0.7000 to 0.9100). The adapted model passed for "
        "continuing text."
    )


def test_a_finetuned_model_that_fails_leaves_the_adapted_one(tmp_path: Path) -> None:
    scores = report_run.scores()
    scores["gate"] |= {"released": "adapted"}
    scores["gate"]["checks"][6] |= {"value": 1.2079, "passed": False}

    found = verdict(of(tmp_path, scores=scores))

    assert found["text"].startswith(
        "Release the adapted model for continuing text: all 3 deciding checks hold. On held-out text it needs"
    )
    assert found["text"].endswith(
        "The finetuned model did not pass for answering: bits per byte over the adapted model's is 1.208, the limit 1.05."
    )


def test_one_text_below_its_limit_is_said_to_show_nothing() -> None:
    check = {
        "name": "finetuned.answers",
        "value": -0.01,
        "limit": 0.0,
        "interval": [-0.01, -0.01],
        "passed": False,
    }

    assert outcome_words(check | {"num": 1}) == "is −0.01 (one text, which shows nothing), the limit 0"
    assert "one text" not in outcome_words(check | {"num": 40})


def test_where_none_is_released_it_says_why_of_each(tmp_path: Path) -> None:
    scores = report_run.scores()
    scores["gate"] |= {"passed": False, "released": None}
    scores["gate"]["checks"][3] |= {"passed": False}
    scores["gate"]["checks"][6] |= {"value": 1.2079, "passed": False}

    found = verdict(of(tmp_path, scores=scores))

    assert found["text"] == (
        "Release none. The finetuned model did not pass for answering: bits per byte over the adapted model's is 1.208, the "
        "limit 1.05. The adapted model passed for continuing text."
    )


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (
            {"name": "finetuned.loops", "value": 1 / 3, "limit": 0.5, "interval": [0.097, 0.7], "undecided": True, "num": 6},
            "is undecided for answering: share of texts that loop undecided: 6 texts, interval 0.09700 to 0.7000, limit 0.5; more",
        ),
        (
            {"name": "finetuned.ended", "value": 0.25, "limit": 0.5, "at_least": True, "interval": [0.1, 0.4]},
            "share of answers that end is 0.25 (0.1000 to 0.4000), the limit at least 0.5",
        ),
    ],
    ids=["undecided", "at least"],
)  # fmt: skip
def test_an_outcome_is_said_with_its_interval_and_what_would_decide_it(
    check: dict[str, Any], said: str, tmp_path: Path
) -> None:
    scores = report_run.scores()
    scores["gate"] |= {"passed": False, "released": None}
    scores["gate"]["checks"][6] |= {**check, "passed": False}

    assert said in verdict(of(tmp_path, scores=scores))["text"]


def test_nothing_is_praised_where_no_model_is_released(tmp_path: Path) -> None:
    scores = report_run.scores()
    scores["gate"] |= {"passed": False, "released": None}
    scores["gate"]["checks"][3] |= {"passed": False}
    scores["gate"]["checks"][6] |= {"passed": False}

    tiles = scores_view(of(tmp_path, scores=scores))["headlines"]

    assert not any(each["better"] for each in tiles)
    assert any(each["better"] for each in scores_view(of(tmp_path / "passed"))["headlines"])


def test_a_check_that_is_only_shown_and_does_not_hold_is_told_as_a_cost(tmp_path: Path) -> None:
    scores = report_run.scores()
    scores["gate"]["checks"][6] |= {"value": 1.8, "passed": False, "enforced": False}

    found = verdict(of(tmp_path, scores=scores))

    assert found["text"].startswith("Release the finetuned model")
    assert (
        "Not decisive: bits per byte over the adapted model's is 1.8, the limit 1.05 (finetuned model)."
        in found["warnings"]
    )


def test_the_released_model_is_the_one_that_the_gate_names() -> None:
    assert released_name(report_run.scores()) == "finetuned"
    assert released_name({"gate": {"passed": False, "released": "finetuned"}}) == ""
    assert released_name({}) == ""


@pytest.mark.parametrize(
    ("fall", "words"),
    [
        (0.01, "loss fell by 0.92 %: this stage taught nothing"),
        (-0.2, "loss rose by 18 %: this stage taught nothing"),
        (0.08, "loss fell by 7.4 %: this stage taught little"),
    ],
)
def test_a_stage_that_taught_nothing_is_called_so(tmp_path: Path, fall: float, words: str) -> None:
    found = of(tmp_path, finetuning=slow_finetuning(fall))

    assert learnings(found)["Finetuning"].words == words
    assert f"Finetuning: {words}." in verdict(found)["warnings"]
    assert any("Read its answers before you release it" in text for text in verdict(found)["warnings"])


def test_a_stage_that_taught_something_is_no_warning(facts: Facts) -> None:
    stages = learnings(facts)

    assert [each.warns for each in stages.values()] == [False, False]
    assert stages["Finetuning"].words == "loss fell by 38 %, from 3.033 to 1.867"


@pytest.mark.parametrize(
    ("last", "percent"),
    [(0.0066, "99.9"), (1e-6, "99.9"), (0.0326, "99.6"), (0.4, "95"), (0, "100"), (40, "390")],
)
def test_what_is_left_of_a_loss_is_not_rounded_away(tmp_path: Path, last: float, percent: str) -> None:
    lines = [{"step": step, "loss": loss} for step, loss in ((1, 8.159), (2, last))]

    words = learnings(of(tmp_path, finetuning=lines))["Finetuning"].words

    assert words.startswith(f"loss {'fell' if last < 8 else 'rose'} by {percent} %")


def test_a_validation_loss_that_turned_is_a_warning(tmp_path: Path) -> None:
    lines = slow_finetuning(0.8)
    lines[9]["validation_loss"], lines[39]["validation_loss"] = 2.0, 2.5

    found = of(tmp_path, finetuning=lines)

    assert (
        "validation rose by 25 % after step 10: this stage overfits" in learnings(found)["Finetuning"].words
    )


def test_answers_that_are_no_better_are_a_warning(tmp_path: Path) -> None:
    scores = report_run.scores()
    scores["differences"]["finetuned - adapted, answers"] |= {"value": -0.01, "low": -0.05, "high": 0.03}

    found = of(tmp_path, scores=scores)

    said = "0.01000 bits per byte fewer than the adapted one, and the 95 % interval holds 0"
    assert any(said in text for text in verdict(found)["warnings"])


def test_few_documents_are_warned_of(tmp_path: Path, facts: Facts) -> None:
    scores = report_run.scores()
    scores["candidates"]["base"]["num_documents"] = 17

    found = of(tmp_path / "few", scores=scores)

    assert any("only 17 documents were scored" in text for text in verdict(found)["warnings"])
    assert not any("documents were scored" in text for text in verdict(facts)["warnings"])


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ((2.0, 1.5, 1.51), None),
        ((2.0, 2.1, 2.01), "validation ended 0.50 % above the base's, which was the lowest"),
        ((2.0, 1.5, 1.8), "validation rose by 20 % after step 10: this stage overfits"),
    ],
)
def test_a_base_that_held_out_text_was_best_with_is_named(
    tmp_path: Path, scores: tuple[float, ...], words: str | None
) -> None:
    lines = [{"step": 0}, *report_run.training()]
    for place, score in zip((0, 10, -1), scores, strict=True):
        lines[place]["validation_bits_per_byte"] = score
    lines[10]["step"] = 10

    found = learnings(of(tmp_path, training=lines))["Continued pre-training"]

    assert (words or "") in found.words
    assert ("validation" in found.words) == (words is not None) == found.warns


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


def card_of(root: Path, scores: dict[str, Any]) -> str:
    job = report_run.job(root, Recipe.model_validate(PLAIN), scores=scores)
    run(job)
    return (job.out / "model_card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("released", "bits"),
    [
        ("adapted", {"base": 2.0, "adapted": 2.2, "finetuned": 3.8}),
        ("finetuned", {"base": 2.0, "adapted": 3.8, "finetuned": 2.2}),
        ("merged", {"base": 2.0, "adapted": 3.8, "finetuned": 3.6, "merged": 2.2}),
    ],
)
def test_every_sentence_is_about_the_model_that_is_released(
    tmp_path: Path, released: str, bits: dict[str, float]
) -> None:
    facts = of(tmp_path, scores=scored(released, text="en", half=0.02, **bits))

    (warning,) = (each for each in verdict(facts)["warnings"] if each.startswith("Forgetting"))
    assert warning == (
        f"Forgetting: en costs the {released} model 10 % more bits per byte than the base (95 % interval 8.0 % to 12 %)."
    )
    assert {each["of"] for each in scores_view(facts)["headlines"]} == {released}
    assert f"{released}, released" in measures_view(facts)[0].table.columns


def test_where_none_is_released_each_model_is_named(tmp_path: Path) -> None:
    facts = of(tmp_path, scores=scored(None, base=2.0, adapted=2.4, finetuned=3.8))

    warnings = " ".join(verdict(facts)["warnings"])
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
