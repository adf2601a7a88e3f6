"""New text is compared with the earlier weeks of its source."""

from pathlib import Path

import pytest

from anadil.core.errors import DataError
from tests.kit.admissions import admission, corpus_of_weeks, rows_of
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess
from tests.kit.texts import TURKISH

ROWS = rows_of(texts(150))


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())


def test_a_clean_week_is_admitted_with_each_figure_beside_the_usual_one(tmp_path: Path) -> None:
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], ROWS[60:120]])

    admitted = admission(tmp_path, {"corpus": corpus})

    assert (admitted["admitted"], admitted["documents"], admitted["earlier_weeks"]) == (True, 60, 1)
    assert [check["name"] for check in admitted["checks"]] == [
        *("language", "duplicates", "contaminated", "unusable", "personal_data", "contaminated"),
        *("growth", "growth", "mix", "quality"),
    ]
    assert all(check["passed"] for check in admitted["checks"])


def test_a_week_in_another_language_is_refused_with_figure_limit_key_and_place(tmp_path: Path) -> None:
    foreign = [{"text": f"{TURKISH} {number}", "url": "https://a.az"} for number in range(30)]
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], [*ROWS[60:90], *foreign]])

    with pytest.raises(DataError) as refusal:
        admission(tmp_path, {"corpus": corpus})

    text = str(refusal.value)
    assert "the new text is refused for 1 reason: 50.0 % of 60 documents are in another language" in text
    assert "(usual 0, limit 0.1: retrain.limits.language)" in text
    assert f"Look at rejected/ and stats/ of {corpus}" in text
