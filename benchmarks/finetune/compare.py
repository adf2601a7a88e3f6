"""The finetune stage beside TRL's SFTTrainer: losses, trained tokens a CPU second, memory.

Each row is a process of its own, with one thread, on the same random Llama, chats of mixed length, seed and LoRA:
TRL in its own random batches, TRL on the batches that the stage makes (whose losses are compared), and the stage.

OMP_NUM_THREADS=1 python benchmarks/finetune/compare.py
python benchmarks/finetune/compare.py --device cuda   # Llama 3.2 1B's sizes at rank 64, TRL with Liger; not run yet
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_model import model_of, tokenizer_of

SEED = 7
TEXTS = "builtin:az/prose.jsonl"
CONTROL = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
ANSWER_WORDS = (3, 5, 8, 12, 20, 30, 50, 80, 120, 240)
"""Lengths that answers have, each as often: short help beside long explanations."""
SIZES = {
    "cpu": {"vocabulary": 100_000, "hidden": 256, "layers": 4, "chats": 96, "batch": 8, "rank": 16},
    "cuda": {"vocabulary": 128_256, "hidden": 2_048, "layers": 16, "chats": 2_048, "batch": 16, "rank": 64},
}
LR = 1e-3
CONTEXT = 1_024
Figures = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line; sizes default to those of the device."""
    made = argparse.ArgumentParser(description="Compare the finetune stage with TRL.")
    made.add_argument("--device", choices=tuple(SIZES), default="cpu")
    for name in SIZES["cpu"]:
        made.add_argument(f"--{name}", type=int)
    made.add_argument("--only", choices=tuple(WAYS), help="one row, in this process")
    return made


def chats_of(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Questions with answers of mixed length, out of running text: no two are alike."""
    from anadil.artifacts import storage

    with storage.local_copy(TEXTS) as path:
        texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    words = " ".join(texts).split()
    drawn = random.Random(SEED)  # noqa: S311  no secret
    lengths = [ANSWER_WORDS[at % len(ANSWER_WORDS)] for at in range(asked.chats)]
    drawn.shuffle(lengths)
    starts = [sum(lengths[:at]) + 8 * at for at in range(asked.chats)]
    return [
        {
            "messages": [
                {"role": "user", "content": " ".join(words[at : at + 8]) + "?"},
                {"role": "assistant", "content": " ".join(words[at + 8 : at + 8 + count])},
            ]
        }
        for at, count in zip(starts, lengths, strict=True)
    ]


def model_for(asked: argparse.Namespace) -> Any:
    """The model that is trained."""
    import torch

    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    sizes = {name: getattr(asked, name) for name in ("vocabulary", "hidden", "layers")}
    return model_of(**sizes, context=CONTEXT, seed=SEED, use_cache=False).to(asked.device, dtype)


def prepare(asked: argparse.Namespace, folder: Path) -> Path:
    """Model, tokenizer and chats as the stage reads them."""
    from trl.chat_template_utils import llama3_training_chat_template

    from anadil.artifacts import artifact

    chats = chats_of(asked)
    text = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats)
    (folder / "chats.jsonl").write_text(text, encoding="utf-8")
    base = folder / "model"
    model_for(asked).save_pretrained(base)
    tokenizer = tokenizer_of([each["content"] for chat in chats for each in chat["messages"]], CONTROL)
    tokenizer.chat_template = llama3_training_chat_template
    tokenizer.save_pretrained(base)
    artifact.seal(base, kind="model", origin={})
    return base


def stage_trainer(asked: argparse.Namespace, base: Path) -> Any:
    """The trainer of the stage."""
    from anadil.finetune.rows import read_rows
    from anadil.finetune.training import new_trainer, num_steps
    from anadil.model.load import load_tokenizer
    from anadil.model.process_group import Group
    from anadil.recipe.sections import Recipe
    from anadil.runtime.job import Job
    from anadil.text.chats import DroppedChats

    settings = {
        "rank": asked.rank, "alpha": asked.rank, "dropout": 0.0, "lr": LR, "schedule": "constant", "epochs": 1,
        "warmup_fraction": 0.0, "batch_size": asked.batch, "checkpoint_every": 10**6, "heldout_fraction": 0.0,
        "max_length": CONTEXT, "trains_embeddings": "none",
    }  # fmt: skip
    recipe = Recipe.model_validate({"finetune": settings, "seed": SEED})
    folder = base.parent
    job = Job(
        recipe=recipe, inputs={"model": base}, files=(str(folder / "chats.jsonl"),),
        out=folder, work=folder, base_cache=folder,
    )  # fmt: skip
    tokenizer = load_tokenizer(base)
    dropped = DroppedChats()
    rows = read_rows(job, tokenizer, dropped)
    assert dropped.total == 0, str(dropped)
    import torch

    steps = num_steps(len(rows.train), recipe.finetune)
    trainer = new_trainer(job, torch.device(asked.device), tokenizer, rows, steps, Group(), start=None)
    trainer.args.save_strategy = "no"
    return trainer


def trl_trainer(asked: argparse.Namespace, base: Path, order: Sequence[int] | None = None) -> Any:
    """TRL's trainer on the same chats; `order` makes it take them one after another."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl.kernels import chunked_logprob
    from trl.trainer import utils as trl_utils
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    # As TRL has it: who asks the stage for its batches has loaded the stage's trainer, which changes this.
    trl_utils._use_triton = chunked_logprob._use_triton  # noqa: SLF001
    on_gpu = asked.device == "cuda"
    chats = chats_of(asked)
    rows = Dataset.from_list([chats[at] for at in order] if order else chats)
    config = SFTConfig(
        output_dir=str(base.parent / "trl"), per_device_train_batch_size=asked.batch, num_train_epochs=1,
        learning_rate=LR, lr_scheduler_type="constant", seed=SEED, max_length=CONTEXT, assistant_only_loss=True,
        eos_token=CONTROL[2], use_cpu=not on_gpu, bf16=on_gpu, activation_checkpointing=on_gpu,
        use_liger_kernel=on_gpu, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        dataloader_pin_memory=on_gpu, train_sampling_strategy="sequential" if order else "random",
    )  # fmt: skip
    lora = LoraConfig(
        r=asked.rank, lora_alpha=asked.rank, lora_dropout=0.0, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    set_seed(SEED)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=dtype),
        args=config, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(base), peft_config=lora,
    )  # fmt: skip


def trl_on_our_batches(asked: argparse.Namespace, base: Path) -> Any:
    """TRL with the chats in the order in which the stage trains on them."""
    batches = stage_trainer(asked, base).get_train_dataloader().batch_sampler.batches()
    return trl_trainer(asked, base, [int(at) for batch in batches for at in batch])


WAYS: dict[str, Callable[[argparse.Namespace, Path], Any]] = {
    "TRL": trl_trainer,
    "TRL, our batches": trl_on_our_batches,
    "anadil": stage_trainer,
}


def run(name: str, asked: argparse.Namespace) -> Figures:
    """One trainer: losses, rates over the training loop, memory of the whole process."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        trainer = WAYS[name](asked, prepare(asked, Path(folder)))
        trained = sum(_trained_tokens(row) for row in trainer.train_dataset)
        baseline = _resident_mib()
        cpu, wall = time.process_time(), time.perf_counter()
        trainer.train()
        spent, passed = time.process_time() - cpu, time.perf_counter() - wall
    on_gpu = asked.device == "cuda"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "losses": [logs["loss"] for logs in trainer.state.log_history if "loss" in logs],
        "trained_tokens": trained,
        "cpu_s": spent,
        "per_cpu_s": trained / spent,
        "per_s": trained / passed,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak,
        "over_start_mib": peak - baseline,
    }


def _trained_tokens(row: dict[str, Any]) -> int:
    """Tokens with a loss, of rows with labels and of TRL's with a mask."""
    return sum(label != -100 for label in row["labels"]) if "labels" in row else sum(row["assistant_masks"])


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def difference(ours: Figures, theirs: Figures) -> str:
    """The largest difference of two loss curves, as a share of the loss."""
    pairs = list(zip(ours["losses"], theirs["losses"], strict=True))
    return f"{max(abs(one - other) / other for one, other in pairs):.1e}"


def main() -> None:
    """Print a Markdown table, or one row's figures."""
    asked = parser().parse_args()
    for name, value in SIZES[asked.device].items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    if asked.only:
        print(json.dumps(run(asked.only, asked)))
        return
    rows: dict[str, Figures] = {}
    for name in WAYS:
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--only", name]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {rows[name]}", file=sys.stderr)
    first, ordered = rows["TRL"], rows["TRL, our batches"]
    # A GPU works while the process waits for it.
    rate, unit = ("per_cpu_s", "CPU s") if asked.device == "cpu" else ("per_s", "s")
    print(
        f"| trainer | trained tokens | CPU s | trained/{unit} | x | peak MiB | over start MiB | losses differ |"
    )
    print("|---" * 8 + "|")
    for name, row in rows.items():
        apart = difference(row, ordered) if name == "anadil" else ""
        print(
            f"| {name} | {row['trained_tokens']:,} | {row['cpu_s']:.1f} | {row[rate]:,.1f} | "
            f"{row[rate] / first[rate]:.2f} | {row['peak_mib']:,.0f} | "
            f"{row['over_start_mib']:,.0f} | {apart} |"
        )


if __name__ == "__main__":
    main()
