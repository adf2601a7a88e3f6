"""The chat format of a post-trained base on page and card: survived, damaged or lost."""

from pathlib import Path
from typing import Any

import pytest

from anadil.report.measures_view import measures_view
from anadil.report.read import read_facts
from anadil.report.verdict import own_chat_sentence, verdict
from tests.kit import report_run

FACTS = {"kind": "post-trained", "reasons": ["its name says instruct"], "language": "en"}


def own_chat(num_sound: int, outcome: str = "") -> dict[str, Any]:
    share = {"value": num_sound / 24, "num": 24, "interval": [0.1, 0.9]}
    shares = dict.fromkeys(("sound", "ended", "empty", "loop", "own_language"), share)
    return {"num": 24, "shares": shares} | ({"outcome": outcome} if outcome else {})


def scores(adapted: tuple[int, str], finetuned: tuple[int, str]) -> dict[str, Any]:
    made = report_run.scores()
    made["own_chat"] = FACTS
    for name, figures in (("base", (23,)), ("adapted", adapted), ("finetuned", finetuned)):
        made["candidates"][name]["own_chat"] = own_chat(*figures)
    return made


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        ((22, "survived"), "The base's chat format survived in the adapted model: 22 of 24 answers in English are sound, 23 of the base's."),
        ((9, "damaged"), "The base's chat format is damaged in the adapted model: 9 of 24 answers in English are sound, 23 of the base's."),
        ((0, "lost"), "The base's chat format is lost in the adapted model: 0 of 24 answers in English are sound, 23 of the base's."),
        ((0, "unknown"), "The base itself gives too few sound answers to tell of its chat format in the adapted model: 0 of 24 answers in English are sound, 23 of the base's."),
    ],
)  # fmt: skip
def test_one_sentence_has_outcome_and_figures(outcome: tuple[int, str], sentence: str) -> None:
    assert own_chat_sentence(scores(outcome, (0, "lost")), "adapted") == sentence


def test_the_page_has_a_row_for_each_candidate(tmp_path: Path) -> None:
    facts = read_facts(report_run.job(tmp_path, scores=scores((9, "damaged"), (22, "survived"))))

    measure = next(each for each in measures_view(facts) if each.title == "The base's own chat format")

    assert [(row[0], row[1], row[-1]) for row in measure.table.rows] == [
        ("base", "24", "before training"), ("adapted", "24", "damaged"), ("finetuned", "24", "survived"),
    ]  # fmt: skip
    assert "is damaged in the adapted model" in measure.table.note
    assert "survived in the finetuned model" in measure.table.note


def test_a_loss_of_the_released_model_is_a_warning(tmp_path: Path) -> None:
    harmed, unharmed = (
        verdict(read_facts(report_run.job(tmp_path / name, scores=scores((0, "lost"), (num, outcome)))))
        for name, num, outcome in (("a", 9, "damaged"), ("b", 22, "survived"))
    )

    assert any("is damaged in the finetuned model" in text for text in harmed.warnings)
    assert not any("chat format" in text for text in unharmed.warnings)


def test_a_base_that_could_not_be_asked_is_a_warning(tmp_path: Path) -> None:
    made = report_run.scores() | {"own_chat": FACTS | {"error": "its chat template needs tools"}}

    warnings = verdict(read_facts(report_run.job(tmp_path, scores=made))).warnings

    assert [text for text in warnings if "post-trained" in text] == [
        "The base is post-trained, but nobody was asked in its chat format: its chat template needs tools."
    ]


def test_nothing_is_said_of_a_pretrained_base(tmp_path: Path) -> None:
    facts = read_facts(report_run.job(tmp_path))

    assert not any("chat format" in text for text in verdict(facts).warnings)
    assert not any("chat format" in measure.title for measure in measures_view(facts))
