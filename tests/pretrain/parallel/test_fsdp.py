"""FSDP2 between the phases of a run."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anadil.artifacts import artifact
from anadil.text.corpus import Document, write_documents
from tests.kit.pretraining import TEXTS, make_job, make_recipe, run_in_two


@pytest.mark.parametrize("reshard", [True, False], ids=["freed", "kept"])
def test_a_validation_between_two_phases_leaves_no_parameter_out_of_the_next_step(
    tmp_path: Path, base: Path, reshard: bool
) -> None:
    corpus = tmp_path / "corpus"
    shutil.rmtree(corpus)
    documents = [
        Document(id=f"{i:04x}", text=text, source="", url="", lang="az") for i, text in enumerate(TEXTS)
    ]
    write_documents(corpus, "train", documents)
    write_documents(corpus, "heldout", documents[:1])
    artifact.seal(corpus, kind="corpus", origin={})
    phases = [{"trains": "embeddings", "steps": 1, "lr": 0.01}, {"trains": "all", "steps": 1, "lr": 0.01}]
    parallelism = {"shard": 2, "reshard": reshard}
    job = make_job(tmp_path, make_recipe(base, phases=phases, parallelism=parallelism))

    codes = run_in_two(job)

    assert codes == [0, 0]
    before, after = (load_file(path / "model.safetensors") for path in (base, job.out))
    assert [name for name, tensor in after.items() if torch.equal(tensor, before[name])] == []
