import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.pretrain.run import run
from tests.kit.checkpoint_samples import Make, maker
from tests.kit.pretraining import make_corpus, make_job, make_model, make_recipe, make_tokenizer_artifact
from tests.kit.sources import make_source_corpora


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices, forks, and equal sums: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a tokenizer artifact, a base model, and one whose two tables are apart; not to be changed."""
    folder = tmp_path_factory.mktemp("inputs")
    make_corpus(folder / "corpus")
    make_tokenizer_artifact(folder / "tokenizer")
    make_model(folder / "model")
    make_model(folder / "untied", tied=False)
    return folder


@pytest.fixture
def base(inputs: Path, tmp_path: Path) -> Path:
    """A base model with a corpus and a tokenizer artifact beside it."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model"


@pytest.fixture
def untied(base: Path) -> Path:
    """The same with two tables."""
    return base.with_name("untied")


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora of three sources; not to be changed."""
    folder = tmp_path_factory.mktemp("corpora")
    make_source_corpora(folder)
    return folder


@pytest.fixture
def mixed(untied: Path, corpora: Path) -> Path:
    """A base model with two tables, and the corpora of three sources beside it."""
    for each in corpora.iterdir():
        untied.with_name(each.name).symlink_to(each)
    return untied


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes `CheckpointFolder` of one process in `tmp_path/checkpoints`, and closes them."""
    yield from maker(tmp_path / "checkpoints")


def trained(folder: Path, base: Path, **pretrain: Any) -> Path:
    """The model that a run of one process gives which nothing interrupts; for a fixture of many tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in ("corpus", "tokenizer"):
        (folder / name).symlink_to(base.with_name(name))
    job = make_job(folder, make_recipe(base, **pretrain))
    run(job)
    torch.set_num_threads(before)
    return job.out


@pytest.fixture(scope="session")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipe of `make_recipe` gives."""
    return trained(tmp_path_factory.mktemp("whole"), inputs / "model")


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an archive that is not there yet."""
    if request.param == "directory":
        return str(tmp_path / "far" / "archive")
    return f"{request.getfixturevalue('bucket')}/runs/archive"
