"""Several processes share a model and each batch: the losses of one, also after a signal or a kill."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from trl.trainer.base_trainer import _BaseTrainer

from anadil.core.errors import PreflightError
from anadil.core.stages import STAGES
from anadil.finetune.learning import refuse_quantization
from anadil.finetune.trainer import SharedModel
from anadil.model.load import pick_device
from anadil.recipe.load import load_recipe
from anadil.runtime.job import most_processes
from tests.finetune.test_preference import pair
from tests.kit.marks import matrix
from tests.kit.ranks import Fork, module_in_ranks
from tests.kit.rows import write_rows

WORDS = [
    "salam", "Bakı", "gözəl", "şəhər", "Azərbaycan", "paytaxtı", "hansıdır", "necəsən", "balans", "düyməni", "basın",
]  # fmt: skip
SMALL = (
    "finetune.rank=16", "finetune.batch_size=8", "finetune.epochs=2", "finetune.lr=0.01",
    "finetune.max_length=256", "finetune.checkpoint_every=2", "finetune.heldout_fraction=0",
    # Each process drops other numbers.
    "finetune.dropout=0",
)  # fmt: skip
LONG = "finetune.epochs=16"


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """21 chats of many lengths: the last batch of each epoch has five of them."""
    draw = random.Random(0)
    rows = [
        {
            "prompt": f"{number} {' '.join(draw.choices(WORDS, k=draw.randint(1, 6)))}",
            "response": " ".join(draw.choices(WORDS, k=draw.randint(1, 8))),
        }
        for number in range(21)
    ]
    return write_rows(tmp_path_factory.mktemp("chats") / "chats.jsonl", rows)


def words(model: Path, chats: Path, out: Path, *overrides: str) -> list[str]:
    """The command line of the stage."""
    settings = [word for each in (*SMALL, *overrides) for word in ("--set", each)]
    return ["--model", str(model), "--chats", str(chats), *settings, "--out", str(out)]


def by_torchrun(model: Path, chats: Path, out: Path, processes: int, *overrides: str) -> list[Fork]:
    """The stage as a user starts it: it starts torchrun by itself, and torchrun an interpreter for each process."""
    settings = (*overrides, f"cluster.processes_per_node={processes}")
    return forked(model, chats, out, 1, *settings)


def forked(model: Path, chats: Path, out: Path, processes: int, *overrides: str) -> list[Fork]:
    """The processes that torchrun would start, without its interpreters; what they say is beside `out`."""
    log = out.with_suffix(".log")
    return module_in_ranks(processes, log, "anadil.finetune", *words(model, chats, out, *overrides))


def finetuned(model: Path, chats: Path, out: Path, processes: int, *overrides: str) -> list[float]:
    """The loss of each step."""
    running = forked(model, chats, out, processes, *overrides)
    assert [each.wait() for each in running] == [0] * processes, out.with_suffix(".log").read_text()
    return losses(out)


def losses(out: Path) -> list[float]:
    """Of training and, where it was measured, of validation."""
    lines = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("finetune.trains=adapter", "finetune.trains_embeddings=control", "finetune.validation_fraction=0.3"),
        matrix(("finetune.trains=all",)),
        matrix(
            ("finetune.trains=adapter", "finetune.trains_embeddings=none", "finetune.gradient_accumulation=2")
        ),
    ],
)
def test_four_processes_have_the_losses_and_the_weights_of_one(
    model_dir: Path, chats: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Of two tests/finetune/test_preference_processes.py tells."""
    one, four = (finetuned(model_dir, chats, tmp_path / str(num), num, *settings) for num in (1, 4))
    expected, merged = (load_file(tmp_path / f"{num}/merged/model.safetensors") for num in (1, 4))

    assert four == pytest.approx(one, abs=1e-5)
    assert merged.keys() == expected.keys()
    # AdamW divides by the size of a gradient, of which rounding decides where it is nearly 0.
    assert max((merged[name] - each).abs().max().item() for name, each in expected.items()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "how", "settings"),
    [
        matrix(forked, signal.SIGTERM, ("finetune.trains=adapter", "finetune.trains_embeddings=control")),
        # tests/pretrain/resilience/test_signals.py sends a signal to torchrun.
        matrix(by_torchrun, signal.SIGTERM, ("finetune.trains=all",)),
        # tests/finetune/test_preference_processes.py kills two processes too.
        matrix(by_torchrun, signal.SIGKILL, ("finetune.trains=all",)),
        matrix(
            by_torchrun, signal.SIGKILL, ("finetune.trains=adapter", "finetune.trains_embeddings=control")
        ),
    ],
)
def test_two_processes_that_were_ended_go_on_to_equal_losses(
    model_dir: Path,
    chats: Path,
    tmp_path: Path,
    start: Callable[..., list[Fork]],
    how: signal.Signals,
    settings: tuple[str, ...],
) -> None:
    whole = finetuned(model_dir, chats, tmp_path / "whole", 2, LONG, *settings)
    out = tmp_path / "ended"
    running = start(model_dir, chats, out, 2, LONG, *settings)
    trainer = Path(f"{out}.work/trainer")
    wait_for(trainer / "checkpoint-4" / "manifest.json", running[0])

    for each in running:
        children = started_by(each.pid) if how == signal.SIGKILL else []
        for process in [each.pid, *children]:
            os.kill(process, how)
    codes = {each.wait(120) for each in running}
    steps = [int(each.parent.name.partition("-")[2]) for each in trainer.glob("*/manifest.json")]

    assert codes == {143 if how == signal.SIGTERM else -how}, out.with_suffix(".log").read_text()
    assert 4 <= max(steps) < len(whole)
    assert finetuned(model_dir, chats, out, 2, LONG, *settings) == whole


def started_by(process: int) -> list[int]:
    """Processes that a process has started, those of torchrun, which lead groups of their own."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    return [found for child in map(int, text.split()) for found in (child, *started_by(child))]


def wait_for(file: Path, running: Fork) -> None:
    deadline = time.monotonic() + 300
    while not file.is_file():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_more_processes_than_chats_of_a_batch_and_one_for_four_bits() -> None:
    stage = STAGES["finetune"]
    four_bits = load_recipe("smoke", ["finetune.trains=adapter", "finetune.quantization=4bit"])

    assert most_processes(stage, load_recipe("smoke", ["finetune.batch_size=3"])) == 3
    assert most_processes(stage, four_bits) == 1
    assert most_processes(STAGES["pretrain"], load_recipe("smoke")) > 1_000
    with pytest.raises(PreflightError, match="torchrun has started 2 processes; start one"):
        refuse_quantization(four_bits.finetune, pick_device(), 2)


def test_where_accelerate_shards_itself_gradients_in_bf16_are_summed_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on GPUs, which are not here: accelerate's own policy sums in BF16."""

    def as_on_gpus(self: Any) -> None:
        plugin = SimpleNamespace(mixed_precision_policy="its own")
        state = SimpleNamespace(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
        self.accelerator = SimpleNamespace(state=state)

    monkeypatch.setattr(_BaseTrainer, "create_accelerator_and_postprocess", as_on_gpus)
    trainer = SharedModel.__new__(SharedModel)
    trainer.args = SimpleNamespace(fsdp=["full_shard"], bf16=True)

    trainer.create_accelerator_and_postprocess()

    policy = trainer.accelerator.state.fsdp_plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


PAIRS = 10
"""The last batch of four lacks two."""


def curve(out: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (out / "preference.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        matrix(("finetune.trains=adapter", "finetune.trains_embeddings=control")),
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
