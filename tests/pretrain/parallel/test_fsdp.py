"""FSDP2 between the phases of a run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.kit.pretraining import make_corpus, make_job, make_recipe, run_in_several
from tests.kit.pretraining_texts import PRETRAINING_TEXTS


@pytest.mark.parametrize("reshard", [True, False], ids=["freed", "kept"])
def test_a_validation_between_two_phases_leaves_no_parameter_out_of_the_next_step(
    tmp_path: Path, base: Path, reshard: bool
) -> None:
    phases = [{"trains": "embeddings", "steps": 1, "lr": 0.01}, {"trains": "all", "steps": 1, "lr": 0.01}]
    parallelism = {"shard": 2, "reshard": reshard}
    job = make_job(tmp_path, make_recipe(base, phases=phases, parallelism=parallelism))
    job.inputs["corpus"] = make_corpus(tmp_path / "scored", heldout=PRETRAINING_TEXTS[:1])

    codes = run_in_several(job)

    assert codes == [0, 0]
    before, after = (load_file(path / "model.safetensors") for path in (base, job.out))
    assert [name for name, tensor in after.items() if torch.equal(tensor, before[name])] == []
