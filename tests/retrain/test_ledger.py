"""Past retrainings, as the ledger tells the next one of them."""

from pathlib import Path

import pytest

from anadil.retrain.ledger import Ledger, Retraining, lines_of_past, usual_interval

DAY = 86_400.0
MONDAY = 1_793_000_000.0


def week(number: float, **more: object) -> Retraining:
    return Retraining(id=f"run-{number}", started=MONDAY + number * 7 * DAY, champion="1", **more)  # type: ignore[arg-type]  # of a test


def test_missed_times_are_told_by_the_next_retraining() -> None:
    past = [week(number, outcome="champion") for number in range(5)]

    def said(weeks: float) -> list[str]:
        return list(lines_of_past(past, MONDAY + weeks * 7 * DAY))

    assert len(said(5)) == 1
    assert said(7)[1].startswith(
        "2 scheduled times missed: retrainings come every 168 h, and the last one began 504 h ago"
    )


def test_times_that_follow_no_schedule_are_not_missed() -> None:
    assert usual_interval([MONDAY + each for each in (0, DAY, 9 * DAY, 10 * DAY, 40 * DAY)]) == 0
    assert usual_interval([MONDAY, MONDAY + DAY]) == 0
    assert not list(lines_of_past([], MONDAY))


def test_a_retry_an_hour_later_at_most_is_no_time_of_its_own() -> None:
    starts = [MONDAY + number * DAY + retry for number in range(4) for retry in (0, 600, 1_800)]

    assert usual_interval(starts) == pytest.approx(DAY)


@pytest.mark.parametrize("place", ["tmp_path", "bucket"])
def test_clocks_that_jump_cost_a_sentence_and_nothing_else(
    request: pytest.FixtureRequest, place: str
) -> None:
    ledger = Ledger(str(request.getfixturevalue(place)), "anadil-az")
    for number in (3, 1, 0, 2):
        ledger.write(week(number, outcome="nothing"))

    past = ledger.read()

    assert [each.id for each in past] == ["run-0", "run-1", "run-2", "run-3"]
    assert len(list(lines_of_past(past, MONDAY - 40 * DAY))) == 1


def test_the_last_end_is_told_with_its_reason(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "anadil-az")
    ledger.write(week(0))
    assert "it was stopped without a word; finished steps are reused" in next(
        lines_of_past(ledger.read(), MONDAY)
    )

    ledger.write(week(0, outcome="refused", reason="retained.en is 1.4, the limit 1.25"))
    (tmp_path / "retrain/anadil-az/2-damaged.json").write_text("{")

    assert len(ledger.read()) == 1
    assert next(lines_of_past(ledger.read(), MONDAY)).endswith(
        "the gate refused the result, and the champion stayed: retained.en is 1.4, the limit 1.25"
    )
