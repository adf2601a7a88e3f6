"""Accounts of time: they add up, and outlive a process that is killed at any moment."""

import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anadil.pretrain.metrics import metrics as module
from anadil.pretrain.metrics.metrics import CAUSES, FILE, MOST_MARKS, Goodput
from tests.kit.pretraining import in_child


class Clock:
    """Both clocks of a machine, set by the test."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.skew = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds + self.skew

    def goodput(self, work: Path, age_s: float = 0.0) -> Goodput:
        return Goodput(work, age_s=age_s, now=self.now, wall=self.wall)

    def spend(self, accounts: Goodput, cause: module.Cause, seconds: float) -> None:
        with accounts.spend(cause):
            self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(clock: Clock, tmp_path: Path) -> Goodput:
    return clock.goodput(tmp_path)


def train(clock: Clock, accounts: Goodput, steps: range, step_s: float = 2.0) -> None:
    for step in steps:
        clock.spend(accounts, "step", step_s)
        accounts.step_done(step)


def test_what_is_done_outside_of_any_block_is_init_until_the_first_step_and_other_after(
    clock: Clock, tmp_path: Path
) -> None:
    accounts = clock.goodput(tmp_path, age_s=7.0)

    clock.seconds += 3
    train(clock, accounts, range(1, 3))
    clock.seconds += 5

    assert accounts.total_s == 19
    assert accounts.seconds["init"] == 10
    assert accounts.seconds["step"] == 4
    assert accounts.seconds["other"] == 5


def test_a_block_inside_another_takes_its_time_out(clock: Clock, accounts: Goodput) -> None:
    with accounts.spend("step"):
        clock.seconds += 2
        clock.spend(accounts, "data", 1)
        clock.seconds += 3

    assert accounts.seconds["step"] == 5
    assert accounts.seconds["data"] == 1


def test_steps_after_the_checkpoint_of_a_resume_are_wasted(clock: Clock, tmp_path: Path) -> None:
    first = clock.goodput(tmp_path)
    first.resume_after(0)
    train(clock, first, range(1, 14))  # the last beat was at or after step 11
    clock.seconds += 60

    second = clock.goodput(tmp_path, age_s=10.0)
    second.resume_after(10)

    assert second.seconds["step"] == 20
    assert second.seconds["wasted"] + second.seconds["restart"] == pytest.approx(6 + 50)
    assert second.seconds["wasted"] >= 2
    assert second.seconds["init"] == 10
    assert second.starts == 2
    assert second.total_s == pytest.approx(clock.seconds - 1000)


def test_a_roll_back_within_a_start_wastes_the_steps_it_takes_back(clock: Clock, accounts: Goodput) -> None:
    train(clock, accounts, range(1, 11))

    accounts.resume_after(7)
    train(clock, accounts, range(8, 11), step_s=1.0)

    assert accounts.seconds["wasted"] == 6
    assert accounts.seconds["step"] == 14 + 3
    assert accounts.steps == 10


def test_a_work_directory_that_was_lost_makes_no_steps_wasted(clock: Clock, accounts: Goodput) -> None:
    accounts.resume_after(5_000)
    train(clock, accounts, range(5_001, 5_003))

    assert accounts.seconds["wasted"] == 0
    assert accounts.seconds["step"] == 4


def test_a_long_run_remembers_few_steps_and_still_knows_the_time_of_each(
    clock: Clock, accounts: Goodput, tmp_path: Path
) -> None:
    train(clock, accounts, range(1, 1_001))
    accounts.heartbeat(force=True)
    size = (tmp_path / FILE).stat().st_size

    accounts.resume_after(333)

    assert size < 40 * MOST_MARKS
    assert accounts.seconds["step"] == pytest.approx(666)


def test_a_hang_is_what_was_open_when_the_watchdog_saw_it(
    clock: Clock, accounts: Goodput, tmp_path: Path
) -> None:
    train(clock, accounts, range(1, 6))
    with accounts.spend("step"):
        clock.seconds += 600
        accounts.hung()

        after = clock.goodput(tmp_path)

    assert after.seconds["hang"] == 600
    assert after.seconds["step"] == 10
    assert after.seconds["restart"] == 0


def test_a_clock_that_was_set_while_the_run_was_down_does_not_count(clock: Clock, tmp_path: Path) -> None:
    clock.goodput(tmp_path)
    clock.seconds += 40
    clock.skew -= 3600

    after = clock.goodput(tmp_path)

    assert after.seconds["restart"] == pytest.approx(40)


def test_on_another_machine_the_wall_clock_tells_and_never_less_than_nothing(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.goodput(tmp_path)
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "none")
    clock.seconds += 40

    clock.skew += 100
    later = clock.goodput(tmp_path)
    clock.skew -= 3600
    set_back = clock.goodput(tmp_path)

    assert later.seconds["restart"] == pytest.approx(140)
    assert set_back.seconds["restart"] == pytest.approx(140)


def test_a_process_older_than_the_last_beat_is_not_counted_twice(clock: Clock, tmp_path: Path) -> None:
    clock.goodput(tmp_path, age_s=5)
    clock.seconds += 10

    after = clock.goodput(tmp_path, age_s=15)

    assert after.seconds["init"] == 5
    assert after.seconds["restart"] == 10


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": {}}', '{"seconds": 3}', "null"])
def test_a_damaged_file_begins_the_accounts_anew_with_a_warning(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / FILE).write_text(text)

    accounts = clock.goodput(tmp_path)

    clock.seconds += 2
    assert accounts.total_s == 2
    assert "is damaged" in caplog.text


def test_a_full_disk_costs_one_warning(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).with_suffix(".draft").mkdir()

    accounts = clock.goodput(tmp_path)
    train(clock, accounts, range(1, 20))

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert accounts.seconds["step"] == 38


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["data", "step", "checkpoint", "validation", "restore", "idle"]), st.floats(0, 50)
        ),
        st.tuples(st.sampled_from(["kill", "back", "hang"]), st.floats(0, 1)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_the_shares_add_up_to_one_and_the_seconds_to_the_clock_whatever_happens(
    tmp_path: Path, events: list[tuple[str, float]]
) -> None:
    (tmp_path / FILE).unlink(missing_ok=True)
    clock = Clock()
    accounts = clock.goodput(tmp_path)
    accounts.resume_after(0)
    step = 0
    for what, number in events:
        if what == "idle":
            clock.seconds += number
        elif what == "kill":
            clock.seconds += number
            accounts = clock.goodput(tmp_path, age_s=number / 2)
            step = int(step * number)
            accounts.resume_after(step)
        elif what == "back":
            step = int(step * number)
            accounts.resume_after(step)
        elif what == "hang":
            clock.seconds += number
            accounts.hung()
        else:
            clock.spend(accounts, what, number)  # type: ignore[arg-type]  # one of the causes
            if what == "step":
                step += 1
                accounts.step_done(step)

    assert accounts.total_s == pytest.approx(clock.seconds - 1000, abs=1e-6)
    assert sum(accounts.shares().values()) == pytest.approx(1)
    assert all(seconds >= -1e-9 for seconds in accounts.seconds.values())
    assert set(accounts.shares()) == set(CAUSES)


def count_for_ever(work: Path, ready: int) -> None:
    accounts = Goodput(work, age_s=0)
    accounts.resume_after(0)
    os.write(ready, b"x")
    for step in itertools.count(1):
        with accounts.spend("step"):
            time.sleep(0.0005)
        accounts.step_done(step)


def test_a_process_killed_at_any_moment_leaves_accounts_that_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.001)
    began = time.monotonic()
    told, tell = os.pipe()
    for trial in range(12):
        child = in_child(partial(count_for_ever, tmp_path, tell))
        os.read(told, 1)
        time.sleep(0.013 * trial % 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(told)
    os.close(tell)

    after = Goodput(tmp_path, age_s=0)

    assert after.starts == 13
    assert "damaged" not in caplog.text
    assert after.total_s <= time.monotonic() - began + 1
    assert sum(after.shares().values()) == pytest.approx(1)


def test_a_process_knows_how_old_it_is() -> None:
    code = "import time; time.sleep(0.2); from anadil.pretrain.metrics.metrics import process_age_s; print(process_age_s())"

    began = time.monotonic()
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert 0.15 <= float(said.stdout) <= time.monotonic() - began + 0.02
