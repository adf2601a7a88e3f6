"""Short runs of the stage for tests of its settings."""

import json
from pathlib import Path

from tests.finetune.test_run import run_in

NUM_CHATS = 12
ALL = ("finetune.trains=all",)
VALIDATED = ("finetune.validation_fraction=0.3",)
WITHOUT_NOISE = ("finetune.dropout=0",)
SETTINGS: dict[str, tuple[str, ...]] = {
    "rows of control tokens": ("finetune.trains_embeddings=control",),
    "no rows": ("finetune.trains_embeddings=none",),
    "all rows": ("finetune.trains_embeddings=all",),
    "all weights": ALL,
    "rsLoRA": ("finetune.rslora=true",),
    "DoRA": ("finetune.dora=true",),
    "noise": ("finetune.neftune_alpha=5",),
    "noise, all weights": ("finetune.neftune_alpha=5", *ALL),
    "line": ("finetune.schedule=linear", "finetune.weight_decay=0.1", "finetune.warmup_fraction=0.2"),
    "no fall": ("finetune.schedule=constant",),
    "accumulation": ("finetune.gradient_accumulation=2",),
    "validation": VALIDATED,
    "early stop": (*VALIDATED, "finetune.patience=2", "finetune.lr=0.1"),
}
REPEATED = ("all rows", "line", "accumulation")
"""Settings that resume as others do."""


def trained(model: Path, chats: Path, work: Path, *overrides: str) -> Path:
    """The artifact of a short run."""
    work.mkdir(exist_ok=True)
    # A third of the chats may be held out to validate; see `split_of`.
    return run_in(work, model, chats, work / "out", "finetune.heldout_fraction=0", *overrides)


def lines_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]


def curve(out: Path, name: str) -> list[float]:
    return [line[name] for line in lines_of(out)]
