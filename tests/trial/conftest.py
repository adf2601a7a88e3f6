from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, external_side_files
from anadil.tokenizer.run import run as make_candidates
from tests.kit.pretraining import SHORT, make_corpus, make_model
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices and equal sums: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(base: Path, steps: int = 20, **trial: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "base": {"model": str(base)},
            "tokenizer": {
                "vocab_sizes": [300],
                "pad_to": 1,
                "min_uses": 1,
                "trial": {"steps": steps, **trial},
            },
            "pretrain": {"phases": SHORT, "batch_size": 2, "micro_batch_size": 2, "sequence_length": 32},
        }
    )


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, a corpus, and the tokenizers of all strategies; not to be changed."""
    folder = tmp_path_factory.mktemp("trial")
    base = make_model(folder / "model")
    make_corpus(folder / "corpus", PRETRAINING_TEXTS * 3, PRETRAINING_TEXTS[:6])
    settings = recipe(base)
    out = folder / "tokenizer"
    out.mkdir()
    job = Job(
        recipe=settings,
        inputs={"corpus": folder / "corpus"},
        side_files=external_side_files(STAGES["tokenizer"], settings),
        out=out,
        work=folder / "work",
        base_cache=folder / "base",
    )
    make_candidates(job)
    artifact.seal(out, kind="tokenizer", origin={}, varying=job.varying)
    return folder


def trial_job(root: Path, folder: Path, **trial: Any) -> Job:
    """A trial of the tokenizers below `root`; a second one in the same folder goes on with the first."""
    settings = recipe(root / "model", **trial)
    (folder / "out").mkdir(parents=True, exist_ok=True)
    return Job(
        recipe=settings,
        inputs={"corpus": root / "corpus", "tokenizer": root / "tokenizer"},
        side_files=external_side_files(STAGES["trial"], settings),
        out=folder / "out",
        work=folder / "work",
        base_cache=folder / "base",
    )


@pytest.fixture
def make_job(root: Path, tmp_path: Path) -> MakeJob:
    def make(**trial: Any) -> Job:
        return trial_job(root, tmp_path, **trial)

    return make
