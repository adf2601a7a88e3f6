import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.bases import trial
from anadil.bases.candidates import take
from anadil.bases.extrapolate import Curve, extrapolate
from anadil.bases.measure import Measured, encode, measure, read_texts
from anadil.bases.view import lines_of, result_of
from anadil.pretrain.state import Step
from anadil.recipe.sections import Recipe
from tests.kit.pretraining import make_corpus, make_model
from tests.kit.pretraining_texts import PRETRAINING_TEXTS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bases, a corpus and text to score; not to be changed."""
    folder = tmp_path_factory.mktemp("trial-bases")
    make_model(folder / "first", seed=1)
    make_model(folder / "second", vocab_size=280, seed=2)
    make_corpus(folder / "corpus", PRETRAINING_TEXTS * 3, PRETRAINING_TEXTS[:6])
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in PRETRAINING_TEXTS[:6])
    (folder / "text.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def recipe(folder: Path, root: Path, **pretrain: Any) -> Recipe:
    settings = {
        "batch_size": 2,
        "micro_batch_size": 2,
        "sequence_length": 32,
        "precision": "fp32",
        "checkpoint_every": 3,
    }
    phases = [{"trains": "all", "steps": 60, "lr": 0.005}]
    return Recipe.model_validate({
        "base": {"model": str(folder / "first")}, "storage": {"root": str(root)}, "tokenizer": {"strategies": ["base"]},
        "pretrain": settings | {"phases": phases} | pretrain,
        "evaluate": {"heldout": [str(folder / "text.jsonl")], "max_new_tokens": 2},
    })  # fmt: skip


def tried(folder: Path, root: Path, **pretrain: Any) -> tuple[Recipe, list[Measured]]:
    """Both bases measured, and trained with a fifth of the compute."""
    settings = recipe(folder, root, **pretrain)
    candidates, _ = take([str(folder / "first"), str(folder / "second")], settings)
    measured, _ = measure(encode(candidates, read_texts(settings, 3_000))[0], settings, root)
    trial.try_candidates(measured, settings, 0.2, {"": folder / "corpus"}, root)
    return settings, measured


@pytest.fixture(scope="session")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, list[Measured], Path]:
    """A trial that nothing interrupts."""
    root = tmp_path_factory.mktemp("whole")
    return *tried(folder, root), root


def without_time(measured: list[Measured]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in each.table["trial"].items() if name != "seconds"} for each in measured
    ]


def test_a_trial_gives_every_candidate_the_same_compute_and_extrapolates_it(
    whole: tuple[Recipe, list[Measured], Path], folder: Path
) -> None:
    settings, measured, root = whole

    result = result_of("mine", settings, read_texts(settings, 3_000), measured, [])

    for each in measured:
        table = each.table["trial"]
        assert abs(table["share"] - 0.2) <= 0.2 / table["steps"]
        assert [point["step"] for point in table["curve"]][:: len(table["curve"]) - 1] == [0, table["steps"]]
        assert table["curve"][-1]["bits_per_byte"] < table["curve"][0]["bits_per_byte"]
        low, high = table["extrapolated"]["bits_per_byte_interval"]
        assert low <= table["extrapolated"]["bits_per_byte"] <= high
    assert result["sorted_by"] == "extrapolated"
    assert "Extrapolated from 20" in "\n".join(lines_of(result))
    # Its weights are gone, so that nobody can take them for a model.
    assert [*root.rglob("*.safetensors"), *root.rglob("step-*")] == []


def test_a_killed_trial_goes_on_from_its_last_checkpoint_and_trains_no_candidate_twice(
    whole: tuple[Recipe, list[Measured], Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = trial.PointScores.post_step

    def note(curve: trial.PointScores, step: Step) -> None:
        steps.append(curve.training.state.step)
        if len(steps) == 20:
            raise KeyboardInterrupt
        real(curve, step)

    monkeypatch.setattr(trial.PointScores, "post_step", note)
    with pytest.raises(KeyboardInterrupt):
        tried(folder, tmp_path)

    _, again = tried(folder, tmp_path)

    assert steps[:12] == [*range(1, 13)]
    assert steps[20] == steps[19] // 3 * 3 + 1  # of the second, after a checkpoint
    assert without_time(again) == without_time(whole[1])


def test_the_whole_training_has_no_steps_of_new_rows(folder: Path, tmp_path: Path) -> None:
    phases = [{"trains": "all", "steps": 60, "lr": 0.005}]
    plain = recipe(folder, tmp_path, phases=phases)
    more = recipe(folder, tmp_path, phases=[{"trains": "new_rows", "steps": 40, "lr": 0.005}, *phases])

    assert trial.whole_flops(more, []) == trial.whole_flops(plain, [])


def test_curves_fall_on_by_the_median_of_their_exponents_and_every_one_is_in_the_interval() -> None:
    shares = [0, *(0.01 * 0.5 ** (place / 2) for place in range(8, -1, -1))]
    sizes = np.full(60, 500.0)

    def curve(first: float, exponent: float) -> Curve:
        values = [first * (max(share, 1e-4) * 100) ** -exponent for share in shares]
        return Curve(shares=shares, nats=np.array(values)[:, None] * sizes * np.log(2), num_bytes=sizes)

    first, second, third = extrapolate([curve(4, 0.1), curve(5, 0.2), curve(3, 0.3)], seed=0)

    assert np.allclose(
        [each.value for each in (first, second, third)], [first_of * 100**-0.2 for first_of in (4, 5, 3)]
    )
    assert np.allclose(second.interval, [5 * 100**-0.3, 5 * 100**-0.1])
    assert (first.draws > second.draws).any()  # which of the two is better nobody knows
    assert (first.draws < second.draws).any()
