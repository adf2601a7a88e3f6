from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from anadil.pretrain.run import run
from tests.kit.pretraining import make_corpus, make_job, make_model, make_recipe, make_tokenizer_artifact


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices, forks, and equal sums: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _make_inputs(folder: Path) -> Path:
    make_corpus(folder / "corpus")
    make_tokenizer_artifact(folder / "tokenizer")
    return make_model(folder / "model")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model with a corpus and a tokenizer artifact beside it."""
    return _make_inputs(tmp_path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the recipe of `make_recipe` gives where nothing interrupts it."""
    folder = tmp_path_factory.mktemp("whole")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    job = make_job(folder, make_recipe(_make_inputs(folder)))
    run(job)
    torch.set_num_threads(before)
    return job.out


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an archive that is not there yet."""
    if request.param == "directory":
        return str(tmp_path / "far" / "archive")
    return f"{request.getfixturevalue('bucket')}/runs/archive"
