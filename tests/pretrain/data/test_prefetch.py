import threading
import time

import pytest

from anadil.core.errors import DataError
from anadil.pretrain.data.packing import DEPTH, Prefetcher


def test_each_step_gets_its_own_in_order() -> None:
    made: list[int] = []

    def make(step: int) -> str:
        made.append(step)
        return f"batch {step}"

    with Prefetcher(make, 3, 8) as ahead:
        got = [ahead.get(step) for step in range(3, 8)]

    assert got == [f"batch {step}" for step in range(3, 8)]
    assert made == [3, 4, 5, 6, 7]


def test_what_comes_next_is_made_while_the_step_runs() -> None:
    ready = threading.Semaphore(0)

    def make(step: int) -> int:
        ready.release()
        return step

    with Prefetcher(make, 0, 10) as ahead:
        ahead.get(0)
        begun = [ready.acquire(timeout=10) for _ in range(1 + DEPTH)]
        beyond = ready.acquire(timeout=0.1)

    assert begun == [True] * (1 + DEPTH)
    assert not beyond


def test_an_error_is_raised_in_its_step_and_the_next_goes_on() -> None:
    def make(step: int) -> int:
        if step == 1:
            raise DataError("step 1: no")
        return step

    with Prefetcher(make, 0, 3) as ahead:
        first = ahead.get(0)
        with pytest.raises(DataError, match="step 1: no"):
            ahead.get(1)
        third = ahead.get(2)

    assert (first, third) == (0, 2)


def test_steps_can_be_left_out_and_done_again() -> None:
    with Prefetcher(lambda step: step, 0, 100) as ahead:
        got = [ahead.get(0), ahead.get(1)]
        for step in (1, 50):
            ahead.restart(step)
            got.append(ahead.get(step))

    assert got == [0, 1, 1, 50]


def test_nothing_is_made_beyond_the_end() -> None:
    made: list[int] = []

    with Prefetcher(made.append, 0, 3) as ahead:
        for step in range(3):
            ahead.get(step)

    assert made == [0, 1, 2]


def test_closing_leaves_what_was_not_begun_and_ends_the_thread() -> None:
    made: list[int] = []
    begun = threading.Event()

    def make(step: int) -> None:
        begun.set()
        time.sleep(0.05)
        made.append(step)

    with Prefetcher(make, 0, 100):
        begun.wait()

    assert made == [0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("anadil-prefetch")]
