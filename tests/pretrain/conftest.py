from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kit.pretraining import make_corpus, make_model, make_tokenizer_artifact


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices, forks, and equal sums: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model with a corpus and a tokenizer artifact beside it."""
    make_corpus(tmp_path / "corpus")
    make_tokenizer_artifact(tmp_path / "tokenizer")
    return make_model(tmp_path / "model")


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an archive that is not there yet."""
    if request.param == "directory":
        return str(tmp_path / "far" / "archive")
    return f"{request.getfixturevalue('bucket')}/runs/archive"
