import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import PreflightError, RetryableError
from anadil.model.process_group import Group
from anadil.pretrain.resilience.out_of_memory import FILE, micro_batch_size, no_room, note, out_of_memory
from anadil.recipe.sections import Recipe
from tests.kit.pretraining import in_child

ERROR = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.11 GiB\nmore"
)


def recipe(on: str = "halve", **pretrain: Any) -> Recipe:
    settings = {
        "batch_size": 8,
        "micro_batch_size": 8,
        "sequence_length": 512,
        "faults": {"on_out_of_memory": on},
    }
    return Recipe.model_validate({"base": {"model": "tiny"}, "pretrain": {**settings, **pretrain}})


def test_halve_notes_half_the_micro_batch_for_the_next_start_and_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(RetryableError) as caught, out_of_memory(recipe(), tmp_path, 8, step=12, rank=3):
        raise ERROR

    text = str(caught.value)
    assert caught.value.exit_code == 138
    assert "out of memory in step 12 on rank 3 with micro-batch 8 (CUDA out of memory. Tried to" in text
    assert "resumes from the last checkpoint with micro-batch 4" in text
    assert "more" not in text
    assert micro_batch_size(recipe(), tmp_path, Group()) == 4


def test_processes_that_run_out_of_memory_at_once_note_it_side_by_side(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(100):
            note(tmp_path, recipe(), 4, 1)

    children = [in_child(work) for _ in range(4)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    assert codes == [0] * 4
    assert micro_batch_size(recipe(), tmp_path, Group()) == 4
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_each_start_halves_again_until_there_is_one_sequence(tmp_path: Path) -> None:
    sizes = []
    for _ in range(3):
        sizes.append(micro_batch_size(recipe(), tmp_path, Group()))
        with pytest.raises(RetryableError), out_of_memory(recipe(), tmp_path, sizes[-1], step=1, rank=0):
            raise ERROR
    last = micro_batch_size(recipe(), tmp_path, Group())

    with pytest.raises(PreflightError) as caught, out_of_memory(recipe(), tmp_path, last, step=1, rank=0):
        raise ERROR

    assert sizes == [8, 4, 2]
    assert last == 1
    assert "with micro-batch 1" in str(caught.value)


def test_stop_tells_what_the_planner_would_change(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught, out_of_memory(recipe("stop"), tmp_path, 8, step=1, rank=0):
        raise ERROR

    text = str(caught.value)
    assert "the planner expects " in text
    assert "  --set pretrain.activation_checkpointing=" in text
    assert "  --set pretrain.micro_batch_size=4" in text
    assert "--set pretrain.faults.on_out_of_memory=halve" in text
    assert not (tmp_path / FILE).exists()


def test_a_cpu_without_memory_is_told_the_same_way(tmp_path: Path) -> None:
    with pytest.raises(RetryableError), out_of_memory(recipe(), tmp_path, 8, step=1, rank=0):
        torch.empty(2**50)


def test_what_does_not_fit_outside_a_step_is_not_told_to_halve_the_micro_batch(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught, no_room(recipe(), "loading the base model", rank=3):
        raise ERROR

    text = str(caught.value)
    assert "out of memory while loading the base model on rank 3 on " in text
    assert "(CUDA out of memory. Tried to" in text
    assert "the planner expects " in text
    assert "micro_batch" not in text
    assert "halve" not in text
    assert "activation_checkpointing" not in text


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
        "Registering memory failed with cudaError: 2. It's possible",
    ],
)
def test_main_memory_beside_a_gpu_is_told_from_the_gpu_s(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    with pytest.raises(PreflightError) as caught, no_room(recipe(), "saving step 3", rank=0):
        raise RuntimeError(words)

    assert "out of memory while saving step 3 on rank 0 on " in str(caught.value)
    assert "that is main memory, not the GPU's" in str(caught.value)
    assert "raise cluster.memory" in str(caught.value)
    assert "DSA" not in str(caught.value)


def test_other_errors_pass(tmp_path: Path) -> None:
    for block in (out_of_memory(recipe(), tmp_path, 8, step=1, rank=0), no_room(recipe(), "saving", rank=0)):
        with pytest.raises(RuntimeError, match="shapes"), block:
            raise RuntimeError("shapes differ")


def test_the_note_is_dropped_when_the_recipe_asks_for_another_micro_batch_or_for_none(tmp_path: Path) -> None:
    with pytest.raises(RetryableError), out_of_memory(recipe(), tmp_path, 8, step=1, rank=0):
        raise ERROR

    assert micro_batch_size(recipe(micro_batch_size=6), tmp_path, Group()) == 6
    assert micro_batch_size(recipe("stop"), tmp_path, Group()) == 8


def test_the_smaller_micro_batch_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text(json.dumps({"asked": 8, "micro_batch_size": 2}))

    with caplog.at_level(logging.WARNING):
        micro_batch_size(recipe(), tmp_path, Group())

    assert (
        "micro-batch 2 instead of pretrain.micro_batch_size 8: an earlier start ran out of memory"
        in caplog.text
    )


def test_a_note_that_cannot_be_read_is_left_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text("{")

    assert micro_batch_size(recipe(), tmp_path, Group()) == 8

    assert "cannot be read" in caplog.text
