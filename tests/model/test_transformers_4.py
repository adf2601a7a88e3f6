"""What we save is the same model to transformers 4, in an environment of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from anadil.model.family_table import model_types
from anadil.model.load import load_model, save_model
from tests.kit.families import WRAPPERS, make_family
from tests.kit.llama import small_llama
from tests.kit.pretraining import make_tokenizer
from tests.kit.transformers_4 import python_with_4, read_by_4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with_4()


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits
    return logits


@pytest.mark.matrix
def test_version_4_predicts_the_same_tokens_of_a_llama_3_shape(python: Path, tmp_path: Path) -> None:
    rotation = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }  # fmt: skip
    model = small_llama(
        seed=3, vocab_size=300, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        max_position_embeddings=4096, initializer_range=0.2, rope_parameters=rotation,
    )  # fmt: skip
    saved = tmp_path / "model"
    save_model(model, make_tokenizer(tmp_path / "t"), saved, torch.float32)
    ids = torch.randint(0, 300, (2, 512), generator=torch.Generator().manual_seed(4))

    told = read_by_4(python, [saved], ids, tmp_path)

    ours, theirs = logits_of(saved, ids), torch.load(saved / "logits.pt", weights_only=True)
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() == 1.0
    assert told.split() == ["4096"]


@pytest.mark.matrix
def test_version_4_computes_every_family_that_it_knows_as_version_5_does(
    python: Path, tmp_path: Path
) -> None:
    ids = torch.randint(0, 300, (1, 64), generator=torch.Generator().manual_seed(4))
    make_tokenizer(tmp_path / "t")
    folders = []
    for kind in [*model_types(), *WRAPPERS]:
        made = make_family(tmp_path / "made" / kind, kind)
        save_model(load_model(made), tmp_path / "t", tmp_path / kind, torch.float32)
        folders.append(tmp_path / kind)

    read_by_4(python, folders, ids, tmp_path)

    known = [folder for folder in folders if (folder / "logits.pt").is_file()]
    assert {folder.name for folder in folders} - {folder.name for folder in known} == NEWER
    for folder in known:
        theirs = torch.load(folder / "logits.pt", weights_only=True)
        # Version 4 keeps the constants of Apertus in BF16.
        assert (logits_of(folder, ids) - theirs).norm() < 5e-3 * theirs.norm(), folder.name


NEWER = {
    "cwm",
    "gemma4",
    "gemma4_text",
    "hyperclovax",
    "jais2",
    "ministral3",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
}
"""Types that came with version 5."""


@pytest.mark.matrix
def test_version_4_reads_a_head_that_the_base_called_tied(python: Path, tmp_path: Path) -> None:
    ids = torch.randint(0, 300, (1, 64), generator=torch.Generator().manual_seed(4))
    make_tokenizer(tmp_path / "t")
    folders = []
    for kind in ("llama", "gemma3_text"):
        made = make_family(tmp_path / "made" / kind, kind, tie_word_embeddings=False)
        content = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": True}))
        save_model(load_model(made), tmp_path / "t", tmp_path / kind, torch.float32)
        folders.append(tmp_path / kind)

    read_by_4(python, folders, ids, tmp_path)

    for folder in folders:
        theirs = torch.load(folder / "logits.pt", weights_only=True)
        assert (logits_of(folder, ids) - theirs).norm() < 1e-4 * theirs.norm(), folder.name
