from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anadil.recipe.pretrain import Phase, scaled_phases
from anadil.report.corpus_view import pareto_front
from anadil.trial.outcome import FinalistResult, choose_winner

DOCUMENTS = 40


def result(name: str, rows: int, nats: list[float]) -> FinalistResult:
    return FinalistResult(
        name=name,
        strategy="extend",
        steps=1,
        tokens=1,
        flops=1.0,
        rows=rows,
        parameters=rows,
        loss=1.0,
        seconds=1.0,
        nats={"target": nats},
    )


def noisy(mean: float, seed: int) -> list[float]:
    values: list[float] = (mean + np.random.default_rng(seed).normal(0, 10, DOCUMENTS)).tolist()
    return values


@pytest.fixture
def texts() -> Any:
    return SimpleNamespace(num_bytes=lambda _: np.full(DOCUMENTS, 100))


def test_the_fewest_bits_per_byte_win_where_they_are_told_apart(texts: Any) -> None:
    winner = choose_winner([result("small", 1, noisy(150, 0)), result("large", 9, noisy(100, 1))], texts, 0)

    assert winner.name == "large"
    assert winner.differences["small"].low > 0
    assert winner.why_not["small"].endswith("than large")


def test_of_those_that_are_not_told_apart_the_smallest_vocabulary_wins(texts: Any) -> None:
    results = [
        result("small", 1, noisy(101, 0)),
        result("large", 9, noisy(100, 1)),
        result("far", 0, noisy(200, 2)),
    ]

    winner = choose_winner(results, texts, 0)

    assert winner.name == "small"
    assert "not told apart from large" in winner.reason
    assert set(winner.why_not) == {"large", "far"}


@pytest.mark.parametrize(("steps", "expected"), [(20, [5, 15]), (4, [1, 3]), (1, [1]), (2, [2])])
def test_phases_keep_their_share_of_the_steps(steps: int, expected: list[int]) -> None:
    phases = (Phase(trains="embeddings", steps=50, lr=1.0), Phase(trains="all", steps=150, lr=2.0))

    scaled = scaled_phases(phases, steps)

    assert [phase.steps for phase in scaled] == expected
    assert scaled[-1].trains == "all"


def test_the_front_holds_what_no_other_beats_in_every_figure() -> None:
    def entry(bits: float, english: float, parameters: int, words: int) -> dict[str, object]:
        keep = {"en": {"bits_per_byte": english}}
        return {"bits_per_byte": bits, "keep": keep, "parameters": parameters, "words_in_context": words}

    front = pareto_front(
        [
            ("base", entry(3.0, 1.0, 10, 50)),
            ("extend", entry(2.0, 1.1, 12, 90)),
            ("worse", entry(2.1, 1.2, 13, 80)),
            ("same", entry(2.0, 1.1, 12, 90)),
        ]
    )

    assert front == ("base", "extend", "same")
