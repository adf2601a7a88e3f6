"""`trains: new_rows` changes the rows of new tokens and nothing else, in every layout."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import RecipeError, Stopped
from anadil.model.load import load_model
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.pretrain.optimizer import make_optimizer, set_eps
from anadil.pretrain.run import run
from anadil.pretrain.short_run import short_recipe
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.recipe.sections import Recipe
from tests.kit.marks import matrix
from tests.kit.pretraining import (
    SignalAt,
    losses,
    make_job,
    make_recipe,
    make_tokenizer_artifact,
    run_in_child,
    run_in_several,
)

NEW = range(200, 290)
ROWS = [[row - 150, row - 140] if row in NEW else [row] for row in range(300)]
SETTINGS: dict[str, Any] = {
    "phases": [{"trains": "new_rows", "steps": 6, "lr": 0.01}], "batch_size": 4, "micro_batch_size": 1,
}  # fmt: skip


def extended(base: Path) -> Path:
    """Give the inputs beside `base` a tokenizer with new tokens."""
    artifact = base.with_name("tokenizer")
    for file in artifact.iterdir():
        file.unlink()
    make_tokenizer_artifact(artifact, ROWS)
    return base


@pytest.mark.parametrize("model", ["model", "untied"])
@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"shard": 2},
        matrix({"tensor": 2}),
        matrix({"pipeline": 2}),
        matrix({"context": 2}),
        matrix({"shard": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_new_rows_learn_and_all_else_stays(
    tmp_path: Path, base: Path, model: str, degrees: dict[str, int]
) -> None:
    place = extended(base).with_name(model)
    begin = load_model(place)
    fit_vocabulary(begin, tmp_path / "tokenizer")
    run(make_job(tmp_path, make_recipe(place, **SETTINGS), "one"))
    if degrees:
        job = make_job(tmp_path, make_recipe(place, **SETTINGS, parallelism=degrees))
        assert set(run_in_several(job, math.prod(degrees.values()))) == {0}
    else:
        job = make_job(tmp_path, make_recipe(place, **SETTINGS), "one")

    before, one = dict(begin.named_parameters()), dict(load_model(tmp_path / "one/out").named_parameters())
    for name, found in load_model(job.out).named_parameters():
        old, new = before[name].detach(), found.detach()
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            learnt = (new - old).abs().amax(1) > 0
            rows = set(learnt.nonzero().flatten().tolist())
            assert rows <= set(NEW)
            # As an output each is a wrong answer somewhere; as an input it has to occur.
            assert len(rows) == len(NEW) if model == "model" or name.startswith("lm_head") else rows
            assert (new - one[name]).norm() < 1e-3 * (new - old).norm()
        else:
            assert torch.equal(new, old), name


def test_rows_of_rare_tokens_move_as_little_as_their_gradients(tmp_path: Path, base: Path) -> None:
    place = extended(base)
    begin = load_model(place)
    fit_vocabulary(begin, tmp_path / "tokenizer")

    run(make_job(tmp_path, make_recipe(place, **SETTINGS)))

    found = load_model(tmp_path / "a/out").get_input_embeddings().weight
    moved = (found - begin.get_input_embeddings().weight).norm(dim=1)[list(NEW)].sort().values
    # With Adam's own epsilon the quietest third moves three quarters as far as the loudest rows.
    assert moved[:30].mean() < 0.2 * moved[-5:].mean()


def test_a_killed_phase_of_new_rows_goes_on(tmp_path: Path, base: Path) -> None:
    recipe = make_recipe(extended(base), **SETTINGS)
    run(make_job(tmp_path, recipe, "one"))

    code = run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(4, signal.SIGTERM)))
    again = run_in_child(make_job(tmp_path, recipe))

    assert (code, again) == (Stopped.exit_code, 0)
    assert losses(tmp_path / "a/out") == losses(tmp_path / "one/out")
    one, other = (load_model(tmp_path / name / "out").get_input_embeddings() for name in ("one", "a"))
    assert torch.equal(one.weight, other.weight)


def test_a_recipe_that_keeps_its_tokens_has_more_than_new_rows(base: Path) -> None:
    content = make_recipe(base, **SETTINGS).model_dump(mode="json")

    with pytest.raises(
        ValueError, match=r"new_rows alone, and the tokenizer is the base's.*choice to extend"
    ):
        Recipe.model_validate(content | {"tokenizer": {"choice": "base"}})


def test_a_row_without_a_gradient_stays_a_number() -> None:
    table = torch.nn.Parameter(torch.ones(3, 2))
    table.grad = torch.zeros(3, 2)
    phase = Phase(trains="new_rows", steps=1, lr=0.1)
    optimizer = make_optimizer({"table": table}, phase, Pretrain(), ("table",))

    set_eps(optimizer, 0.0)
    optimizer.step()

    assert torch.equal(table, torch.ones(3, 2))


def test_a_vocabulary_without_new_tokens_leaves_the_phase_out(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RecipeError, match=r"new_rows alone.* no new token. Add a phase .*choice: extend"):
        run(make_job(tmp_path, make_recipe(base, **SETTINGS), "none"))
    phases = [*SETTINGS["phases"], {"trains": "all", "steps": 2, "lr": 0.005}]

    # One step for all phases: of these two it is a step of new_rows.
    recipe = make_recipe(base, **SETTINGS | {"phases": phases, "max_epochs": 1e-6})
    run(make_job(tmp_path, recipe))

    assert "6 steps of new_rows are left out" in caplog.text
    assert len(losses(tmp_path / "a/out")) == 1
    short = short_recipe(recipe, 4, tmp_path / "tokenizer").pretrain.phases
    assert [(phase.trains, phase.steps) for phase in short] == [("all", 4)]
    written = json.loads((tmp_path / "a/out/training.json").read_text())
    assert [phase["trains"] for phase in written["phases"]] == ["all"]
