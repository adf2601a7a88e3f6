"""corpus, tokenizer -> model: continued pre-training in phases, resumable at every step.

python -m anadil.pretrain --recipe smoke --corpus DIR --tokenizer DIR --out DIR
torchrun --nproc-per-node 8 -m anadil.pretrain ...the same
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anadil.artifacts.mlmodel import write_mlmodel
from anadil.model.architecture import empty_model
from anadil.model.compile import check_compiler
from anadil.model.kernels import set_up_device, use_liger_kernels
from anadil.model.load import document_frame, load_tokenizer, pick_device, save_model
from anadil.model.loss import has_fast_bf16, uses_liger
from anadil.model.peer_failure import peers
from anadil.model.process_group import Group, group
from anadil.model.tiny import base_model
from anadil.plan.plan_file import plan_as_file
from anadil.pretrain.build_model import build
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.generation_settings import clean_generation_settings
from anadil.pretrain.checkpoint.hf_export import export_checkpoint
from anadil.pretrain.checkpoint.state import State
from anadil.pretrain.checkpoint.tiers import CHECKPOINTS, Tiers
from anadil.pretrain.data.packing import Packed, packed_stream
from anadil.pretrain.data.tokens import token_stream
from anadil.pretrain.first_position import probe_first_position, tell_first_position
from anadil.pretrain.focus import similar_tokens
from anadil.pretrain.loop import PROFILE, SCORE, Training, training_origin
from anadil.pretrain.metrics.metrics import Metrics, metrics_of
from anadil.pretrain.metrics.tensorboard import FOLDER
from anadil.pretrain.metrics.throughput import rates_of, usd_per_hour
from anadil.pretrain.metrics.training_log import FILE
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.parallelize import ParallelModel, compute_dtype
from anadil.pretrain.resilience import burn_in
from anadil.pretrain.resilience.fault_injection import injected
from anadil.pretrain.resilience.out_of_memory import micro_batch_size, no_room
from anadil.pretrain.resilience.watchdog import Watchdog, connect_store
from anadil.pretrain.trainer import Trainer
from anadil.pretrain.validation import validation_of
from anadil.recipe.pretrain import Pretrain
from anadil.runtime.job import Figures, Job
from anadil.runtime.mlflow_spool import SPOOL_VARIABLE

log = logging.getLogger(__name__)

SUMMARY = "training.json"


def run(job: Job) -> Figures:
    """Train the base model on the corpus, in the vocabulary of the tokenizer.

    Raises:
        DataError: Corpus, tokenizer or base model cannot be used, or do not fit together.
        PreflightError: The recipe asks for what this node cannot do.
        RecipeError: Training diverged, or a checkpoint of other settings is in the way.
        BudgetReached: The budget is used up; a checkpoint was written.
        Stopped: SIGTERM arrived; a checkpoint was written.
    """
    device = pick_device()
    uses_liger(job.recipe.pretrain.kernels, device)
    # Around the group too: another node may be gone while they meet, and when they part.
    with peers(int(os.environ.get("RANK", "0"))), group(device) as processes:
        return _run(job, processes, device)


def _run(job: Job, processes: Group, device: torch.device) -> Figures:
    if "trial" in job.inputs:  # its choice, as a tokenizer artifact holds one
        job = replace(job, inputs={**job.inputs, "tokenizer": job.inputs["trial"]})
    elif job.recipe.tokenizer.trial is not None and processes.is_first:
        log.warning(
            "tokenizer.trial is set, but no trial is given: the tokenizer is the one that was chosen by cost"
        )
    if processes.is_first and job.recipe.cluster.instance:
        _tell_cost(job)
    training, state = train(job, processes, device)
    figures = _write(training.job, training, state) if processes.is_first else {}
    processes.wait()
    return figures


def _tell_cost(job: Job) -> None:
    """Keep with the run what its machines cost, and the plan for them."""
    if (price := usd_per_hour(job.recipe.cluster)) is not None:
        job.tracker.run_tags({"anadil.usd_per_hour": price})
    if SPOOL_VARIABLE not in os.environ:  # `anadil run` keeps the plan for the machine that it runs on
        job.tracker.files(plan_as_file(job.recipe, job.recipe.language_code, here=False))


def train(job: Job, processes: Group, device: torch.device) -> tuple[Training, State]:
    """Do all steps of the recipe, from the last checkpoint in `job.work` on; write no artifact.

    Args:
        job: With `corpus` and `tokenizer` among its inputs.
        processes: All that train together; each of them calls it.
        device: That of this process.

    Raises:
        AnadilError: As `run`.
    """
    settings = job.recipe.pretrain
    metrics = metrics_of(job, processes, device)
    watchdog = Watchdog(
        job.work,
        settings.faults.hang_after_s,
        rank=processes.rank,
        size=processes.size,
        store=connect_store(processes.rank) if processes.size > 1 else None,
        on_hang=metrics.goodput.hung,
    )
    with ExitStack() as held:
        # It ends before what `held` closes: copies that are being finished are no hang.
        with watchdog.running():
            trainer, job = _trainer(job, processes, device, metrics, watchdog)
            origin = training_origin(job, trainer)
            held.callback(metrics.close)
            tiers = Tiers(
                job.recipe, job.work, trainer, processes, origin, beat=lambda: watchdog.beat("start")
            )
            held.callback(tiers.close)
            training = Training(
                job=job,
                trainer=trainer,
                group=processes,
                metrics=metrics,
                watchdog=watchdog,
                validation=validation_of(
                    job.inputs["corpus"],
                    job.inputs["tokenizer"],
                    job.recipe.pretrain,
                    rows=trainer.micro_batch_size,
                ),
                tiers=tiers,
            )
            held.enter_context(injected(training))
            with no_room(job.recipe, "resuming from a checkpoint", rank=processes.rank):
                state = training.resumed()
            if not state.step:
                _ask_first_position(training)
            state = training.train(state)
        tiers.finished()
    return training, state


def _ask_first_position(training: Training) -> None:
    """Say whether the base leans on what stands at position 0."""
    trainer, job = training.trainer, training.job
    with no_room(job.recipe, "scoring the base's first positions", rank=training.group.rank):
        found = probe_first_position(trainer.net, trainer.packed)
    if found is not None and training.group.is_first:
        tell_first_position(found, trainer.packed, job.inputs["tokenizer"])


def _trainer(
    job: Job, processes: Group, device: torch.device, metrics: Metrics, watchdog: Watchdog
) -> tuple[Trainer, Job]:
    """What is trained, on what: tested nodes, the base model's weights, the encoded corpus; and in how many steps."""
    settings = job.recipe.pretrain
    if burn_in.burn_in_enabled(settings.faults.burn_in, device):
        copies = settings.copies
        burn_in.burn_in(
            processes,
            device,
            compute_dtype(settings, device),
            job.work,
            copies.archive,
            Path(copies.local_path) if copies.local_every and copies.local_path else None,
        )
    mesh = mesh_of(settings.parallelism, processes, device.type)
    watchdog.beat("load")
    with no_room(job.recipe, "loading the base model", rank=processes.rank):
        net = _net(job, processes, mesh, device)
    with metrics.section("data"):
        packed = _packed(job, processes)
    settings = settings.within_epochs(packed.num_sequences)
    job = replace(job, recipe=job.recipe.model_copy(update={"pretrain": settings}))
    _say_what_is_read(packed, settings, job.inputs["tokenizer"])
    watchdog.beat("start")
    if processes.is_first:
        _warn_of_lengths(net, packed, settings)
    trainer = Trainer(net, packed, job.recipe, processes)
    trainer.micro_batch_size = micro_batch_size(job.recipe, job.work, processes)
    metrics.rates = rates_of(
        net.model.config, context=settings.sequence_length, devices=processes.size, device=device
    )
    return trainer, job


def _packed(job: Job, processes: Group) -> Packed:
    settings = job.recipe.pretrain
    writes = processes.local_rank == 0
    if not writes:
        processes.wait()
    stream = token_stream(job.inputs["corpus"], job.inputs["tokenizer"], job.work, write=writes)
    packed = packed_stream(stream, settings.sequence_length, job.work, write=writes)
    if writes:
        processes.wait()
    return packed


def _say_what_is_read(packed: Packed, settings: Pretrain, tokenizer: Path) -> None:
    log.info("documents: %s", document_frame(load_tokenizer(tokenizer), str(tokenizer)))
    log.info(
        "%s documents, %s tokens in %s sequences of %s (%.1f %% padding); %s steps are %.2f epochs",
        f"{len(packed.stream.starts) - 1:,}",
        f"{packed.num_targets:,}",
        f"{packed.num_sequences:,}",
        f"{packed.length:,}",
        100 * packed.waste,
        f"{settings.steps:,}",
        settings.steps * settings.batch_size / packed.num_sequences,
    )


def _warn_of_lengths(net: ParallelModel, packed: Packed, settings: Pretrain) -> None:
    """Say what a run may be asked for by mistake: nothing stops it."""
    positions = getattr(net.model.config, "max_position_embeddings", None)
    if positions is not None and settings.sequence_length > positions:
        log.warning(
            "pretrain.sequence_length: %s tokens, but base.model was made for at most %s: it has never seen the "
            "positions beyond; a shorter one, or a base model of longer texts, is surer",
            f"{settings.sequence_length:,}", f"{positions:,}",
        )  # fmt: skip
    if settings.batch_size > packed.num_sequences:
        log.warning(
            "pretrain.batch_size: %s sequences, and the corpus has only %s: each step sees some of them more than "
            "once; a smaller batch_size or sequence_length, or more text, gives each step its own",
            f"{settings.batch_size:,}", f"{packed.num_sequences:,}",
        )  # fmt: skip


def _net(job: Job, processes: Group, mesh: Mesh, device: torch.device) -> ParallelModel:
    """The base model in the tokenizer's vocabulary, parallelized."""
    settings = job.recipe.pretrain
    dtype = compute_dtype(settings, device)
    set_up_device(device, dtype)
    if not has_fast_bf16(device):
        if settings.state == "bf16":
            log.warning(
                "this CPU has no BF16 products of its own: set pretrain.state to fp32, which is faster here"
            )
        elif settings.precision == "bf16" and dtype == torch.float32:
            log.warning(
                "this CPU has no BF16 products of its own: they are computed in FP32, which is faster here"
            )
    if settings.batch_size % mesh.data and processes.is_first:
        idle = -settings.batch_size % mesh.data
        log.warning(
            "pretrain.batch_size: %s sequences do not divide by %s: in every step %s of so many groups of processes "
            "wait for the others; a multiple leaves none waiting",
            settings.batch_size, mesh.data, idle,
        )  # fmt: skip
    if settings.compile:
        check_compiler(device)
    base = _base(job, processes)
    if uses_liger(settings.kernels, device):
        check_compiler(device, "pretrain.kernels", "torch")
        use_liger_kernels(
            settings.activation_checkpointing,
            compiled=settings.compile,
            config=empty_model(base).config,
            kernels=settings.kernels,
        )
    tokenizer, similar = job.inputs["tokenizer"], None
    if settings.embedding_init == "focus":
        # On one process, since sums of another number of threads differ in their last bits.
        similar = processes.run_on_first(
            lambda: similar_tokens(job.inputs["corpus"], tokenizer, job.recipe.seed)
        )
    return build(base, tokenizer, settings, mesh, device, seed=job.recipe.seed, similar=similar)


def _base(job: Job, processes: Group) -> Path:
    """Local directory of the base model, which one process of each node makes or fetches."""
    makes = processes.local_rank == 0
    if not makes:
        processes.wait()
    path = base_model(job.recipe.base, job.base_cache)
    if makes:
        processes.wait()
    return path


def _write(job: Job, training: Training, state: State) -> Figures:
    """The artifact: model, tokenizer, journal, summary."""
    trainer, tokenizer = training.trainer, job.inputs["tokenizer"]
    if trainer.net.mesh.shares_model:
        last = directory.path_of(job.work / CHECKPOINTS, state.step)
        export_checkpoint(
            last, base_model(job.recipe.base, job.base_cache), tokenizer, job.out, dtype=trainer.dtype
        )
    else:
        save_model(trainer.net.model, tokenizer, job.out, trainer.dtype)
        clean_generation_settings(job.out, tokenizer)
    shutil.copyfile(job.work / FILE, job.out / FILE)
    for kept in (FOLDER, PROFILE):
        if (job.work / kept).is_dir():
            shutil.copytree(job.work / kept, job.out / kept, ignore=shutil.ignore_patterns("*.partial"))
    timed = [path for path in job.out.rglob("*") if path.is_file() and path.parent != job.out]
    job.varying.extend([*sorted(str(path.relative_to(job.out)) for path in timed), FILE, SUMMARY])
    job.varying.extend(write_mlmodel(job.out, chats=False))
    summary = _summary(job, training, state)
    (job.out / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    job.records.update(
        documents=len(trainer.packed.stream.starts) - 1, sequences=trainer.packed.num_sequences
    )
    shown = ("loss", "steps", "tokens", "tokens_per_s", "parameters")
    return {name: summary[name] for name in shown}


def _summary(job: Job, training: Training, state: State) -> dict[str, Any]:
    settings, trainer = job.recipe.pretrain, training.trainer
    packed, net = trainer.packed, trainer.net
    assert training.journal is not None
    lines = training.journal.lines
    phases = [
        {**phase.model_dump(mode="json"), "trainable_parameters": trainer.num_trainable(phase)}
        for phase in settings.phases
    ]
    scores = [line[SCORE] for line in lines if SCORE in line]
    return {
        "loss": lines[-1]["loss"],
        "steps": state.step,
        "tokens": state.tokens,
        "tokens_per_s": round(state.tokens / max(state.seconds, 1e-9), 1),
        "seconds": round(state.seconds, 1),
        "parameters": sum(math.prod(shape) for shape in net.shapes.values()),
        "phases": phases,
        "documents": len(packed.stream.starts) - 1,
        "sequences": packed.num_sequences,
        "sequence_length": packed.length,
        "tokens_per_epoch": packed.num_targets,
        "epochs": round(state.step * settings.batch_size / packed.num_sequences, 4),
        "packing_waste": round(packed.waste, 6),
        **({SCORE: scores[-1], f"first_{SCORE}": scores[0]} if scores else {}),
        "device": torch.cuda.get_device_name(net.device) if net.device.type == "cuda" else "cpu",
        **_peak_memory(lines),
        "precision": "bf16" if net.dtype == torch.bfloat16 else "fp32",
        "world_size": trainer.group.size,
        "parallelism": settings.parallelism.model_dump(mode="json"),
        **training.metrics.summary(settings.steps),
    }


def _peak_memory(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The most that a logged step of the first process needed; nothing where no GPU told it."""
    peaks = [line["peak_memory_bytes"] for line in lines if "peak_memory_bytes" in line]
    return {"peak_memory_bytes": max(peaks)} if peaks else {}
