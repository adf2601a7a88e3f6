"""corpus, tokenizer -> model: continued pre-training in phases, resumable at every step.

python -m anadil.pretrain --recipe smoke --corpus DIR --tokenizer DIR --out DIR
torchrun --nproc-per-node 8 -m anadil.pretrain ...the same
"""

import json
import logging
import shutil
from typing import Any

import torch
from transformers import PreTrainedModel

from anadil.config import Recipe
from anadil.errors import PreflightError
from anadil.model.kernels import patch_llama
from anadil.model.load import load_model, pick_device, save_model
from anadil.model.loss import uses_liger
from anadil.model.tiny import base_model
from anadil.pretrain.checkpoint import State
from anadil.pretrain.embeddings import fit_vocabulary
from anadil.pretrain.journal import FILE, Journal
from anadil.pretrain.loop import Training
from anadil.pretrain.packing import Packed, pack
from anadil.pretrain.parallel.group import Group, group
from anadil.pretrain.probe import check_architecture
from anadil.pretrain.tokens import token_stream
from anadil.pretrain.trainer import Trainer
from anadil.pretraining import Pretrain
from anadil.stage import Figures, Job

log = logging.getLogger(__name__)


def run(job: Job) -> Figures:
    """Train the base model on the corpus, in the vocabulary of the tokenizer.

    Raises:
        DataError: Corpus, tokenizer or base model cannot be used, or do not fit together.
        PreflightError: The recipe asks for what this machine or this version cannot do.
        RecipeError: Training diverged, or a checkpoint of other settings is in the way.
        Stopped: SIGTERM arrived; a checkpoint was written.
    """
    device = pick_device()
    _check_layout(job.recipe.pretrain)
    liger = uses_liger(job.recipe.pretrain.kernels, device)
    with group(device) as processes:
        packed = _packed(job, processes)
        if liger:
            patch_llama(job.recipe.pretrain.activation_checkpointing)
        model = _model(job, processes, device)
        trainer = Trainer(model, packed, job.recipe, processes)
        training = Training(job=job, trainer=trainer, group=processes)
        state = training.train(training.resumed())
        figures = _write(job, trainer, training.journal, state) if processes.is_first else {}
        processes.wait()
    return figures


def _check_layout(settings: Pretrain) -> None:
    """Refuse degrees of parallelism that only the planner knows.

    Raises:
        PreflightError: A degree is above 1.
    """
    degrees = settings.parallelism.model_dump().items()
    above = {f"pretrain.parallelism.{name}": degree for name, degree in degrees if degree > 1}
    if above:
        asked = ", ".join(f"{key} is {degree}" for key, degree in above.items())
        raise PreflightError(
            f"{asked}: sharded training is not in this version, whose trainer keeps a full copy of the model "
            f"on each device; set {' and '.join(above)} to 1 (more processes share the batch as it is)"
        )


def _packed(job: Job, processes: Group) -> Packed:
    settings = job.recipe.pretrain
    writes = processes.local_rank == 0
    if not writes:
        processes.wait()
    stream = token_stream(job.inputs["corpus"], job.inputs["tokenizer"], job.work, write=writes)
    if writes:
        processes.wait()
    packed = pack(stream, settings.sequence_length)
    epochs = settings.steps * settings.batch_size / packed.num_sequences
    log.info(
        "%s documents, %s tokens in %s sequences of %s (%.1f %% padding); %s steps are %.2f epochs",
        f"{len(stream.starts) - 1:,}",
        f"{packed.num_targets:,}",
        f"{packed.num_sequences:,}",
        f"{packed.length:,}",
        100 * packed.waste,
        f"{settings.steps:,}",
        epochs,
    )
    return packed


def _model(job: Job, processes: Group, device: torch.device) -> PreTrainedModel:
    """The base model on its device, in FP32 (also for the checks), with a row for each token."""
    makes = processes.local_rank == 0
    if not makes:
        processes.wait()
    path = base_model(job.recipe.base, job.base_cache)
    if makes:
        processes.wait()
    model = load_model(path)
    fit_vocabulary(model, job.inputs["tokenizer"])
    placed: Any = model
    placed.to(device)
    check_architecture(model)
    return model


def _write(job: Job, trainer: Trainer, journal: Journal | None, state: State) -> Figures:
    """The artifact: model, tokenizer, journal, summary."""
    assert journal is not None
    recipe = job.recipe
    save_model(trainer.model, job.inputs["tokenizer"], job.out, trainer.dtype)
    shutil.copyfile(job.work / FILE, job.out / FILE)
    summary = _summary(recipe, trainer, journal, state)
    (job.out / "training.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    job.records.update(
        documents=len(trainer.packed.stream.starts) - 1, sequences=trainer.packed.num_sequences
    )
    shown = ("loss", "steps", "tokens", "tokens_per_s", "parameters")
    return {name: summary[name] for name in shown}


def _summary(recipe: Recipe, trainer: Trainer, journal: Journal, state: State) -> dict[str, Any]:
    packed = trainer.packed
    phases = [
        {**phase.model_dump(mode="json"), "trainable_parameters": trainer.num_trainable(phase)}
        for phase in recipe.pretrain.phases
    ]
    return {
        "loss": journal.lines[-1]["loss"],
        "steps": state.step,
        "tokens": state.tokens,
        "tokens_per_s": round(state.tokens / max(state.seconds, 1e-9), 1),
        "seconds": round(state.seconds, 1),
        "parameters": sum(parameter.numel() for parameter in trainer.parameters.values()),
        "phases": phases,
        "documents": len(packed.stream.starts) - 1,
        "sequences": packed.num_sequences,
        "sequence_length": packed.length,
        "tokens_per_epoch": packed.num_targets,
        "epochs": round(state.step * recipe.pretrain.batch_size / packed.num_sequences, 4),
        "packing_waste": round(packed.waste, 6),
        "device": _device_name(trainer.device),
        **_peak_memory(journal),
        "precision": "bf16" if trainer.dtype == torch.bfloat16 else "fp32",
        "world_size": trainer.group.size,
    }


def _peak_memory(journal: Journal) -> dict[str, int]:
    """The most that a logged step of the first process needed; nothing where no GPU told it."""
    peaks = [line["peak_memory_bytes"] for line in journal.lines if "peak_memory_bytes" in line]
    return {"peak_memory_bytes": max(peaks)} if peaks else {}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
