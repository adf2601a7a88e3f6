import json
from collections.abc import Iterable, Iterator

import pytest

from anadil.launch.kubernetes.pod_log import (
    MEDIAN_STEPS,
    SLOW_FRACTION,
    SLOW_STEPS,
    ThroughputMonitor,
    step_in_line,
)


def lines(*speeds: float, name: str = "tokens_per_s", phase: int = 1) -> Iterator[str]:
    for step, speed in enumerate(speeds, 1):
        yield json.dumps(
            {"level": "info", "msg": "step", "figures": {"step": step, "phase": phase, name: speed}}
        )


def warnings(log: Iterable[str]) -> list[str]:
    watch = ThroughputMonitor()
    return [text for line in log if (text := watch.add(line))]


USUAL = [9_000.0, 9_100.0, 8_900.0, 9_050.0] * 5


@pytest.mark.parametrize("name", ["tokens_per_s", "mfu"])
def test_a_lasting_fall_in_speed_is_told_once(name: str) -> None:
    slow = [speed * 0.6 for speed in USUAL]

    found = warnings(lines(*USUAL, *slow, name=name))

    assert len(found) == 1
    assert "at step 23, 60% of the 9,025 before" in found[0]


@pytest.mark.parametrize(
    "steps",
    [
        [*lines(*USUAL, *[100.0, 100.0, 9_000.0] * 2)],
        [*lines(*[9_000.0] * MEDIAN_STEPS, *[9_000.0 * SLOW_FRACTION] * 10)],
        [*lines(9_000.0, 9_000.0, *[10.0] * 4)],
        [*lines(*USUAL), *lines(*[4_000.0] * 30, phase=2)],
    ],
    ids=["that do not last", "just above the limit", "while there is no measure", "of another phase"],
)
def test_slow_steps_are_not_told(steps: list[str]) -> None:
    assert SLOW_STEPS == 3
    assert warnings(steps) == []


def test_words_of_a_step_are_read_too_and_others_are_left_alone() -> None:
    slow = [f"step={step} loss=2.1 tokens_per_s={9000 if step < 30 else 3000}" for step in range(40)]
    junk = [
        "", "no json {", '{"figures": 3}', '{"msg": null, "figures": {"step": "x"}}', "[1, 2]",
        "step=1e tokens_per_s=.",
    ]  # fmt: skip

    found = warnings([*junk, *slow])

    assert len(found) == 1


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ('{"msg": "pre-training: 1,200 of 20,000, 3 h left, loss 2.3"}', 1_200),
        ('{"msg": "finetune: 5 of 10, loss 1.0"}', 5),
        ('{"figures": {"step": 7, "loss": 2.0}}', 7),
        ("step=120 loss=2.31", 120),
        ('{"msg": "packing: 5 of 10, 1 min left"}', None),
        ('{"msg": "resuming after step 5"}', None),
    ],
)
def test_the_step_of_a_line(line: str, step: int | None) -> None:
    assert step_in_line(line) == step
