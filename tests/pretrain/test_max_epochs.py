"""How long a run is where the recipe names the passes over the text."""

import json
from pathlib import Path

import pytest

from anadil.pretrain.run import run
from anadil.recipe.pretrain import Phase, Pretrain
from tests.kit.pretraining import losses, make_job, make_recipe

PHASES = (Phase(trains="embeddings", steps=5_000, lr=1.0), Phase(trains="all", steps=15_000, lr=2.0))


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [(80, [5, 15]), (8_000, [500, 1_500]), (80_000, [5_000, 15_000]), (10**9, [5_000, 15_000]), (0.5, [1])],
)
def test_a_text_gets_its_epochs_and_a_large_one_the_steps_of_the_phases(
    sequences: float, expected: list[int]
) -> None:
    settings = Pretrain(phases=PHASES, batch_size=16, max_epochs=4)

    assert [phase.steps for phase in settings.within_epochs(sequences).phases] == expected
    unlimited = Pretrain(phases=PHASES, batch_size=16)
    assert unlimited.within_epochs(sequences) is unlimited


def test_a_run_ends_after_its_epochs_as_one_that_names_the_steps(tmp_path: Path, base: Path) -> None:
    phases = [
        {"trains": "embeddings", "steps": 100, "lr": 0.01},
        {"trains": "all", "steps": 300, "lr": 0.005},
    ]
    job = make_job(tmp_path, make_recipe(base, phases=phases, max_epochs=2))
    figures = run(job)
    summary = json.loads((job.out / "training.json").read_text(encoding="utf-8"))
    steps = [phase["steps"] for phase in summary["phases"]]
    named = [{**phase, "steps": number} for phase, number in zip(phases, steps, strict=True)]
    run(make_job(tmp_path, make_recipe(base, phases=named), "b"))

    assert summary["epochs"] == pytest.approx(2, abs=0.5)
    assert sum(steps) == figures["steps"] == max(losses(job.out)) < 400
    assert losses(job.out) == losses(tmp_path / "b/out")
