"""What the pipeline has to reach on real Azerbaijani text; the figures are printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SMALL = (
    "clean.heldout_fraction=0.2",
    "pretrain.phases=[{trains: embeddings, steps: 12, lr: 0.0032}, {trains: all, steps: 60, lr: 0.0024}]",
    "tokenizer.vocab_sizes=[4096]",
    "finetune.epochs=0.1",
    "evaluate.max_new_tokens=8",
)


@pytest.fixture(scope="module")
def data() -> Path:
    """Directory with real text, one folder for each language."""
    if "ANADIL_DATA" not in os.environ:
        pytest.skip("ANADIL_DATA does not name a directory with real text")
    return Path(os.environ["ANADIL_DATA"])


def test_an_english_model_learns_azerbaijani(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Everything but the half of it that is law: prose, sentences, programs' texts, and web pages.
    inputs = [f"{data}/az/[!m]*.jsonl", f"{data}/warc/part-00000.warc.gz"]
    chats = [f"{data}/qa/az_native_instructions.jsonl"]
    settings = (*SMALL, f"clean.inputs={json.dumps(inputs)}", f"finetune.inputs={json.dumps(chats)}")
    command = [sys.executable, "-m", "anadil", "run", "--work", str(tmp_path), "-o", "json"]

    done = subprocess.run(
        [*command, *(word for setting in settings for word in ("--set", setting))],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )

    assert done.returncode == 0, done.stderr
    artifacts = json.loads(done.stdout)
    scores = json.loads((Path(artifacts["scores"]) / "scores.json").read_text(encoding="utf-8"))
    base, adapted = scores["candidates"]["base"], scores["candidates"]["adapted"]
    with capsys.disabled():
        print(f"\nfertility {base['fertility']:.3f} -> {adapted['fertility']:.3f}")
        print(f"bits per byte {base['bits_per_byte']:.4f} -> {adapted['bits_per_byte']:.4f}")
    assert adapted["fertility"] <= 0.5 * base["fertility"]
    # Guessing any of its tokens, with this tokenizer, would cost 0.48 of what the base needs.
    assert adapted["bits_per_byte"] <= 0.45 * base["bits_per_byte"]
    assert base["num_bytes"] == adapted["num_bytes"] > 100_000
