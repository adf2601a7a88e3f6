"""One trainer on what it is given, in a process of its own: a JSON line with its figures.

python benchmarks/train/one.py anadil '{"vocabulary": 512, ...}'   # compare.py starts it
"""

import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from given import END, SEED, Given, examples, loads, model, packed
from transformers.utils import logging as transformers_logging

from anadil.core.format import MIB


class Clocks:
    """Losses and times of the steps of one trainer."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.losses: list[float] = []
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.baseline = resident_mib()
        """Before the model: libraries and data."""
        self.graphs: int | None = None
        """Different graphs that were compiled, where the layers were."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what is done inside."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        if self.given.device == "cuda":
            torch.cuda.synchronize()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def figures(self) -> dict[str, Any]:
        """Figures for compare.py. Rates count every position of the timed steps."""
        given, first = self.given, self.given.warmup
        tokens = given.batch * given.length * given.steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        on_gpu = given.device == "cuda"
        return {
            "losses": self.losses,
            "tokens_per_cpu_s": tokens / sum(self.cpu[first:]),
            "tokens_per_s": tokens / sum(self.wall[first:]),
            "peak_mib": peak,
            "over_baseline_mib": peak - self.baseline,
            "graphs": self.graphs,
            "gpu_peak_mib": torch.cuda.max_memory_allocated() / MIB if on_gpu else None,
        }


def resident_mib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123  no file of ours
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def anadil(given: Given, *, kernels: str = "auto", **more: Any) -> Clocks:
    """The trainer of the pretrain stage."""
    from anadil.model.kernels import use_liger_kernels
    from anadil.model.loss import uses_liger
    from anadil.model.process_group import Group
    from anadil.pretrain.data.order import only
    from anadil.pretrain.parallel.mesh import Mesh
    from anadil.pretrain.parallel.parallelize import parallelize
    from anadil.pretrain.trainer import Trainer
    from anadil.recipe.load import load_recipe

    phase = f"[{{trains: all, steps: {given.all_steps}, lr: {given.lr}}}]"
    settings = {
        "seed": SEED,
        "clean.inputs": "[text]",  # one source, which is made here
        "pretrain.phases": phase,
        "pretrain.batch_size": given.batch,
        "pretrain.micro_batch_size": given.batch,
        "pretrain.sequence_length": given.length,
        "pretrain.precision": given.precision,
        "pretrain.kernels": kernels,
        "pretrain.warmup_fraction": 0,
        "pretrain.final_lr_fraction": 1,
        "pretrain.weight_decay": given.weight_decay,
        "pretrain.betas": list(given.betas),
        "pretrain.max_grad_norm": given.max_grad_norm,
        **{f"pretrain.{key}": value for key, value in more.items()},
    }
    recipe = load_recipe("smoke", [f"{key}={value}" for key, value in settings.items()])
    device = torch.device(given.device)
    if uses_liger(recipe.pretrain.kernels, device):
        use_liger_kernels("none")
    source = packed(given)
    clocks = Clocks(given)
    net = parallelize(model(given), recipe.pretrain, Mesh(), device)
    trainer = Trainer(net, only(source), recipe, Group())
    trainer.begin_phase(0)
    for step in range(given.all_steps):
        with clocks.step():
            done = trainer.gradients(step)
            trainer.apply()
        clocks.losses.append(done.loss)
    if recipe.pretrain.compile:
        from torch._dynamo.utils import counters

        clocks.graphs = counters["stats"]["unique_graphs"]
    return clocks


def anadil_compile(given: Given) -> Clocks:
    """The same with compiled layers."""
    return anadil(given, compile=True)


def anadil_fp8(given: Given) -> Clocks:
    """The same with matrix products in FP8."""
    return anadil(given, compile=True, matmul="float8_tensorwise")


def anadil_torch(given: Given) -> Clocks:
    """The same without Liger's kernels, as published figures of plain DDP are."""
    return anadil(given, kernels="torch")


def settings_of(given: Given, folder: str) -> dict[str, Any]:
    """Arguments of transformers' Trainer that make it do the same steps; the others are its defaults."""
    return {
        "output_dir": folder,
        "max_steps": given.all_steps,
        "per_device_train_batch_size": given.batch,
        "train_sampling_strategy": "sequential",
        "learning_rate": given.lr,
        "lr_scheduler_type": "constant",
        "weight_decay": given.weight_decay,
        "adam_beta1": given.betas[0],
        "adam_beta2": given.betas[1],
        "max_grad_norm": given.max_grad_norm,
        "bf16": given.precision == "bf16",
        "use_cpu": given.device == "cpu",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def timed(trainer: Any, clocks: Clocks) -> Clocks:
    """Train, with the clocks run from the end of one optimizer step to that of the next."""
    from transformers import TrainerCallback

    class Timer(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.open = clocks.step()
            self.open.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.open.__exit__(None, None, None)
            self.on_train_begin()

    inner = trainer.training_step

    def with_loss(*arguments: Any, **keywords: Any) -> Any:
        loss = inner(*arguments, **keywords)
        clocks.losses.append(loss.item())
        return loss

    trainer.training_step = with_loss
    trainer.add_callback(Timer())
    trainer.train()
    return clocks


def transformers_liger(given: Given) -> Clocks:
    """The Trainer of transformers with Liger's kernels, which need a GPU."""
    return transformers(given, liger=True)


def transformers(given: Given, *, liger: bool = False) -> Clocks:
    """The Trainer of transformers, with the loss of its Llama."""
    from transformers import Trainer, TrainingArguments

    rows = examples(given)
    clocks = Clocks(given)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(**settings_of(given, folder), use_liger_kernel=liger)
        return timed(Trainer(model=model(given), args=arguments, train_dataset=rows), clocks)


def trl(given: Given) -> Clocks:
    """TRL's SFTTrainer on the same tensors: it neither tokenizes nor packs, nor recomputes."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, default_data_collator
    from trl import SFTConfig, SFTTrainer

    rows = [{name: tensor.tolist() for name, tensor in row.items()} for row in examples(given)]
    dataset = Dataset.from_list(rows)
    words = Tokenizer(models.WordLevel({"end": END}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end")  # noqa: S106  a token of text
    clocks = Clocks(given)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            **settings_of(given, folder),
            packing=False,
            max_length=given.length,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        trainer = SFTTrainer(
            model=model(given),
            args=arguments,
            train_dataset=dataset,
            data_collator=default_data_collator,
            processing_class=tokenizer,
        )
        return timed(trainer, clocks)


def plain(given: Given) -> Clocks:
    """A loop of torch as a person writes it first: transformers' Llama, AdamW, and nothing else."""
    rows, net, clocks = examples(given), model(given), Clocks(given)
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=given.lr, betas=given.betas, weight_decay=given.weight_decay
    )
    for step in range(given.all_steps):
        batch = rows[step * given.batch : (step + 1) * given.batch]
        with clocks.step():
            inputs = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
            with torch.autocast(given.device, dtype=dtype, enabled=dtype != torch.float32):
                loss = net(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), given.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        clocks.losses.append(loss.item())
    return clocks


TRAINERS: dict[str, Callable[[Given], Clocks]] = {
    "anadil": anadil,
    "transformers": transformers,
    "trl": trl,
    "plain": plain,
    "anadil-torch": anadil_torch,
    "anadil-compile": anadil_compile,
    "anadil-fp8": anadil_fp8,
    "transformers-liger": transformers_liger,
}


def main() -> None:
    """Run the trainer that the command line names."""
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    name, given = sys.argv[1], loads(sys.argv[2])
    figures = TRAINERS[name](given).figures()
    sys.stdout.write("\n" + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
