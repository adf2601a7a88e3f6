"""Several processes share each batch of pairs: the curve of one, also after a kill."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.finetune.test_preference import pair
from tests.finetune.test_processes import finetuned, forked, wait_for
from tests.kit.marks import matrix
from tests.kit.rows import write_rows

PAIRS = 10
"""The last batch of four lacks two."""


def curve(out: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (out / "preference.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("finetune.trains=adapter", "finetune.trains_embeddings=control"),
        matrix(("finetune.trains=all", "finetune.lr=0.001")),
    ],
)
def test_two_processes_that_were_killed_go_on_to_the_curve_of_one(
    model_dir: Path, many_chats: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    pairs = write_rows(tmp_path / "pairs.jsonl", map(pair, range(PAIRS)))
    words = (
        *settings, "finetune.epochs=1", f"finetune.preference.inputs=[{pairs}]", "finetune.preference.epochs=12",
        "finetune.preference.gradient_accumulation=2", "finetune.preference.lr=0.001",
        "finetune.heldout_fraction=0.2", "finetune.checkpoint_every=4",
    )  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    finetuned(model_dir, many_chats, one, 1, *words)

    running = forked(model_dir, many_chats, two, 2, *words)
    trainer = Path(f"{two}.work/preference/trainer")
    wait_for(trainer / "checkpoint-4/manifest.json", running[0])
    for process in running:
        process.kill()
    before = [int(each.parent.name.partition("-")[2]) for each in trainer.glob("*/manifest.json")]
    finetuned(model_dir, many_chats, two, 2, *words)

    assert max(before) < len(curve(one, "loss"))
    for name in ("loss", "reward_margin", "heldout_margin"):
        assert curve(two, name) == pytest.approx(curve(one, name), abs=2e-5), name
    found, expected = (load_file(out / "merged/model.safetensors") for out in (two, one))
    assert max((found[name] - each).abs().max().item() for name, each in expected.items()) < 1e-3
