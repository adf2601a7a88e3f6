"""`trains: new_rows` changes the rows of new tokens and nothing else, in every layout."""

import json
import logging
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import RecipeError, Stopped
from anadil.model.load import load_model, load_tokenizer
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
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

NEW = range(200, 290)
ROWS = [[row - 150, row - 140] if row in NEW else [row] for row in range(300)]
SETTINGS: dict[str, Any] = {
    "phases": [{"trains": "new_rows", "steps": 6, "lr": 0.01}], "batch_size": 4, "micro_batch_size": 1,
}  # fmt: skip


def extended(base: Path) -> Path:
    """Give the inputs beside `base` a tokenizer with new tokens."""
    make_tokenizer_artifact(cleared(base.with_name("tokenizer")), ROWS)
    return base


def cleared(folder: Path) -> Path:
    """Remove the files of a folder."""
    for file in folder.iterdir():
        file.unlink()
    return folder


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
    learnt = {}
    for name, found in load_model(job.out).named_parameters():
        old, new = before[name].detach(), found.detach()
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            learnt[name] = set((new != old).any(1).nonzero().flatten().tolist())
            assert (new - one[name]).norm() < 1e-3 * (new - old).norm()
        else:
            assert torch.equal(new, old), name
    # A row that no batch held would only learn that it is a wrong answer.
    rows = set.union(*learnt.values())
    assert (
        rows == learnt[max(learnt, key=lambda name: len(learnt[name]))] <= tokens_of_text(tmp_path) & {*NEW}
    )
    written = json.loads((job.out / "training.json").read_text())
    assert written["phases"][0]["rows_unseen"] == len(NEW) - len(rows) > 0


def tokens_of_text(tmp_path: Path) -> set[int]:
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    return {token for text in PRETRAINING_TEXTS for token in tokenizer(text)["input_ids"]}


def test_a_batch_counts_where_its_token_is_text_and_the_count_is_said(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # Id 0 pads; the first token of the tokenizer stands in no text.
    rows = [[5, 6] if row in (0, *NEW) else [row] for row in range(300)]
    make_tokenizer_artifact(cleared(base.with_name("tokenizer")), rows)
    phases = [{"trains": "new_rows", "steps": steps, "lr": 0.01} for steps in (1, 40)]

    run(make_job(tmp_path, make_recipe(base, **SETTINGS | {"phases": phases, "micro_batch_size": 4})))

    written = json.loads((tmp_path / "a/out/training.json").read_text())
    few, all_text = (each["rows_unseen"] for each in written["phases"])
    assert all_text == len({0, *NEW} - tokens_of_text(tmp_path)) < few
    assert f"phase 2: {all_text} of {len(NEW) + 1} rows of new tokens stood in no batch" in caplog.text
    lines = (tmp_path / "a/out/training.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["rows_unseen"] == all_text


def test_a_mean_of_checkpoints_leaves_rows_of_the_base(tmp_path: Path, base: Path) -> None:
    mean = {"schedule": "wsd", "average_last": 3, "checkpoint_every": 2}
    run(make_job(tmp_path, make_recipe(extended(base), **SETTINGS, **mean)))

    found = load_model(tmp_path / "a/out").get_input_embeddings().weight
    before = load_model(base).get_input_embeddings().weight
    kept = [row for row in range(300) if row not in NEW]
    assert torch.equal(found[kept], before[kept])
    assert not torch.equal(found[list(NEW)], before[list(NEW)])


def test_rows_of_rare_tokens_move_as_little_as_their_gradients(tmp_path: Path, base: Path) -> None:
    place = extended(base)
    begin = load_model(place)
    fit_vocabulary(begin, tmp_path / "tokenizer")

    run(make_job(tmp_path, make_recipe(place, **SETTINGS)))

    found = load_model(tmp_path / "a/out").get_input_embeddings().weight
    moved = (found - begin.get_input_embeddings().weight).norm(dim=1)[list(NEW)].sort().values
    moved = moved[moved > 0]
    # With Adam's own epsilon the quietest third moves half as far as the loudest rows.
    assert moved[: len(moved) // 3].mean() < 0.35 * moved[-5:].mean()


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
