"""What the pipeline has to reach on real Azerbaijani text; the figures are printed."""

import json
import math
import os
from pathlib import Path

import pytest

from anadil.recipe.load import load_recipe
from tests.kit.flow import made_folders

pytestmark = [
    pytest.mark.slow,
    # peft's warnings about transformers.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

TINY_STEPS = 8
"""Of 300 that the base model is trained otherwise, which take longer than all that follows."""
VOCABULARY = 4_096
SMALL = (
    "clean.heldout_fraction=0.1",
    "pretrain.phases=[{trains: embeddings, steps: 8, lr: 0.0032}, {trains: all, steps: 28, lr: 0.0024}]",
    f"tokenizer.vocab_sizes=[{VOCABULARY}]",
    "finetune.inputs=[]",
    "evaluate.max_new_tokens=8",
    "tracking.uri=off",
)


@pytest.fixture(scope="module")
def data() -> Path:
    """Directory with real text, one folder for each language."""
    if "ANADIL_DATA" not in os.environ:
        pytest.skip("ANADIL_DATA does not name a directory with real text")
    return Path(os.environ["ANADIL_DATA"])


@pytest.mark.usefixtures("clean_in_this_process")
def test_an_english_model_learns_azerbaijani(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("anadil.model.tiny.TINY_STEPS", TINY_STEPS)
    # Sentences, prose and texts of programs; six megabytes of law and of one program's pages only take time.
    inputs = [f"{data}/az/[!mr]*.jsonl"]
    settings = (*SMALL, f"clean.inputs={json.dumps(inputs)}")

    made = made_folders(load_recipe("smoke", [*settings, f"storage.root={tmp_path}"]))

    scores = json.loads((made["scores"] / "scores.json").read_text(encoding="utf-8"))
    base, adapted = scores["candidates"]["base"], scores["candidates"]["adapted"]
    with capsys.disabled():
        print(f"\nfertility {base['fertility']:.3f} -> {adapted['fertility']:.3f}")
        print(f"bits per byte {base['bits_per_byte']:.4f} -> {adapted['bits_per_byte']:.4f}")
    assert adapted["fertility"] <= 0.5 * base["fertility"]
    # The cost of guessing each new token, 12 bits; measured: 2.82 bits per byte against 3.28.
    assert adapted["bits_per_byte"] <= math.log2(VOCABULARY) / adapted["bytes_per_token"]
    assert adapted["bits_per_byte"] <= 0.5 * base["bits_per_byte"]
    assert base["num_bytes"] == adapted["num_bytes"] > 20_000
