"""Everything before the first step: the processes, the base model's weights, the tokens, the number of steps."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from anadil.artifacts import artifact
from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.encode.packing import Packed
from anadil.encode.run import digest_of
from anadil.encode.stored_tokens import StoredTokens
from anadil.model.architecture import empty_model
from anadil.model.kernels import check_compiler, set_up_device, use_liger_kernels
from anadil.model.load import document_frame, load_tokenizer, pick_device
from anadil.model.loss import has_fast_bf16, uses_liger
from anadil.model.process_group import Group, group, peers
from anadil.model.tiny import base_model
from anadil.plan.mixture import within_epochs
from anadil.plan.plan import plan_as_file
from anadil.plan.text_use import week_settings
from anadil.pretrain.build_model import build
from anadil.pretrain.callback import Section
from anadil.pretrain.checkpoint.start_point import Start, StartPoint, StartWeights, check_start, read_start
from anadil.pretrain.data.mixture import TrainingData, sizes_of, text_parts, tokens_of
from anadil.pretrain.metrics.metrics import Metrics
from anadil.pretrain.metrics.throughput import rates_of, usd_per_hour
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.parallelize import ParallelModel, compute_dtype
from anadil.pretrain.resilience import burn_in
from anadil.pretrain.resilience.out_of_memory import micro_batch_size, no_room
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.retrain import part_name
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import base_files, extended, recipe_origin, result_version, split_shares
from anadil.runtime.job import Job, word_of
from anadil.runtime.tracking_spool import SPOOL_VARIABLE

log = logging.getLogger(__name__)


@contextmanager
def in_training_group(job: Job) -> Iterator[tuple[Group, torch.device]]:
    """Let the processes of a job meet; give all of them, and the device of this one."""
    device = pick_device()
    # Kernels that are missing are an error of each process, not of the group.
    uses_liger(job.recipe.pretrain.kernels, device)
    # Around the group too: another node may be gone while they meet, and when they part.
    with peers(int(os.environ.get("RANK", "0"))), group(device) as processes:
        yield processes, device


def inputs_of(job: Job, processes: Group) -> Job:
    """Take the tokenizer from the trial, where there is one, and track price and plan."""
    if "trial" in job.inputs:
        job = replace(job, inputs={**job.inputs, "tokenizer": job.inputs["trial"]})
    elif job.recipe.tokenizer.trial is not None and processes.is_first:
        log.warning(
            "tokenizer.trial is set, but no trial is given: the tokenizer is the one that was chosen by cost"
        )
    if processes.is_first and job.recipe.cluster.instance:
        if (price := usd_per_hour(job.recipe.cluster)) is not None:
            job.tracker.texts("run tags", {"anadil.usd_per_hour": price})
        if SPOOL_VARIABLE not in os.environ:  # `anadil run` keeps the plan for the machine that it runs on
            job.tracker.files(plan_as_file(job.recipe, job.recipe.language_code, here=False))
    return job


def prepare(
    job: Job, processes: Group, device: torch.device, metrics: Metrics, heartbeat: Callable[[Section], None]
) -> tuple[Trainer, Mapping[str, StoredTokens], Job, Start | None]:
    """Test the nodes, load the model and open the tokens; return both, the job with its steps, and what it begins with."""
    settings = job.recipe.pretrain
    start = processes.run_on_first(lambda: _start(job)) if settings.start_from else None
    if burn_in.burn_in_enabled(settings.faults.burn_in, device):
        copies = settings.copies
        local = Path(copies.local_path) if copies.local_every and copies.local_path else None
        burn_in.burn_in(processes, device, compute_dtype(settings, device), job.work, copies.archive, local)
    mesh = mesh_of(settings.parallelism, processes, device.type)
    heartbeat("load")
    with no_room(job.recipe, "loading the base model", rank=processes.rank):
        net = _net(job, start, processes, mesh, device)

    def opened(writes: bool) -> dict[str, StoredTokens]:
        # By name: the order of the recipe's table decides nothing.
        names = sorted(job.recipe.sources) or [""]
        return {name: tokens_of(job, name, write=writes) for name in names}

    with metrics.section("data"):
        tokens = processes.local_first(opened)
    data = TrainingData(sources=_packed(job.recipe, tokens))
    # Only the packed corpus knows how many steps an epoch has.
    settings = _settings(job.recipe, data, start)
    job = replace(job, recipe=job.recipe.model_copy(update={"pretrain": settings}))
    try:
        job.recipe.refuse_few_checkpoints()
    except ValueError as error:
        key = "retrain.epochs" if job.recipe.continues_champion else "pretrain.max_epochs"
        raise RecipeError(f"{key} leaves {settings.steps:,} steps: {error}") from None
    tokenizer = job.inputs["tokenizer"]
    log.info("documents: %s", document_frame(load_tokenizer(tokenizer), str(tokenizer)))
    # Encoding is over: from here on silence is suspicious sooner.
    heartbeat("start")
    if processes.is_first:
        _log_lengths(net, data, settings)
    trainer = Trainer(net, data, job.recipe, processes)
    trainer.micro_batch_size = micro_batch_size(job.recipe, job.work, processes)
    metrics.rates = rates_of(
        net.model.config, context=settings.sequence_length, devices=processes.size, device=device
    )
    return trainer, tokens, job, start


def training_origin(job: Job, trainer: Trainer) -> dict[str, str]:
    """Settings and data that decide the losses after a resume."""
    shapes = {name: str(list(shape)) for name, shape in sorted(trainer.net.shapes.items())}
    return {
        **result_version(STAGES["pretrain"]),
        **split_shares(recipe_origin(job.recipe, STAGES["pretrain"].sections))[0],
        **{
            f"input tokens.{name}" if name else "input tokens": packed.stream.digest
            for name, packed in trainer.data.sources.items()
        },
        "input tokenizer": digest_of(job.inputs["tokenizer"]),
        **extended(STAGES["pretrain"], job.recipe),
        **base_files(job.recipe.base.model),
        "model shapes": artifact.origin_key(shapes),
    }


def _packed(recipe: Recipe, tokens: Mapping[str, StoredTokens]) -> dict[str, Packed]:
    """Packed text by source; in a retraining what the champion was trained on, and what came since, are two."""
    if not recipe.continues_champion:
        return {name: each.packed for name, each in tokens.items()}
    parts: dict[str, Packed] = {}
    for source, whole in tokens.items():
        # A corpus that was taken as it is has no new text, and its tokens may hold the border of an earlier week.
        all_earlier = recipe.retrain and recipe.retrain.kept(word_of("corpus", source))
        halves = (whole,) if all_earlier else whole.parts()
        for is_new, each in enumerate(halves):
            if each.facts.sequences:
                parts[part_name(source, is_new=bool(is_new))] = each.packed
    return dict(sorted(parts.items()))


def _settings(recipe: Recipe, data: TrainingData, start: Start | None) -> Pretrain:
    """Section `pretrain` with the steps of this text.

    `max_epochs` shortens the phases; with sources it counts passes over those in the taught language. In a retraining the
    steps follow from the new text.
    """
    if recipe.continues_champion:
        begin = (start.settings, start.step) if isinstance(start, StartPoint) else None
        return week_settings(recipe, text_parts(recipe, data.sources), begin)
    if not data.names:
        return recipe.pretrain.within_epochs(data.num_sequences)
    return within_epochs(recipe.pretrain, sizes_of(recipe, data.sources), recipe.target_sources)


def _log_lengths(net: ParallelModel, data: TrainingData, settings: Pretrain) -> None:
    """Log the lengths of the data, and warn of those that are likely a mistake."""
    log.info(
        "%s documents, %s tokens in %s sequences of %s (%.1f %% padding); %s steps are %.2f epochs",
        f"{data.num_documents:,}", f"{data.num_targets:,}", f"{data.num_sequences:,}",
        f"{data.length:,}", 100 * data.waste, f"{settings.steps:,}",
        settings.steps * settings.batch_size / data.num_sequences,
    )  # fmt: skip
    positions = getattr(net.model.config, "max_position_embeddings", None)
    if positions is not None and settings.sequence_length > positions:
        log.warning(
            "pretrain.sequence_length: %s tokens, but base.model was made for at most %s: it has never seen the "
            "positions beyond; a shorter one, or a base model of longer texts, is surer",
            f"{settings.sequence_length:,}", f"{positions:,}",
        )  # fmt: skip
    if settings.batch_size > data.num_sequences:
        log.warning(
            "pretrain.batch_size: %s sequences, and the corpus has only %s: each step sees some of them more than "
            "once; a smaller batch_size or sequence_length, or more text, gives each step its own",
            f"{settings.batch_size:,}", f"{data.num_sequences:,}",
        )  # fmt: skip


def _start(job: Job) -> Start:
    """Read what `pretrain.start_from` names, and compare it with the recipe."""
    start = read_start(str(job.recipe.pretrain.start_from))
    # Before anything is loaded; with all that is known, a checkpoint is compared again when it is read.
    origin = {**base_files(job.recipe.base.model), "input tokenizer": digest_of(job.inputs["tokenizer"])}
    for line in check_start(start, job.recipe, origin):
        if isinstance(start, StartWeights):
            log.info("%s", line)
    return start


def _net(job: Job, start: Start | None, processes: Group, mesh: Mesh, device: torch.device) -> ParallelModel:
    """Load the base model in the tokenizer's vocabulary, or the model that training begins with, and parallelize it."""
    settings = job.recipe.pretrain
    dtype = compute_dtype(settings, device)
    set_up_device(device, dtype)
    _warn_of_waste(settings, mesh, device, dtype, is_first=processes.is_first)
    if settings.compile:
        check_compiler(device)
    weights = start if isinstance(start, StartWeights) else None
    base = processes.local_first(
        lambda first: weights.folder(verify=first) if weights else base_model(job.recipe.base, job.base_cache)
    )
    if uses_liger(settings.kernels, device):
        check_compiler(device, "pretrain.kernels", "torch")
        use_liger_kernels(
            settings.activation_checkpointing,
            compiled=settings.compile,
            config=empty_model(base).config,
            kernels=settings.kernels,
        )
    return build(
        base,
        job.inputs["tokenizer"],
        settings,
        mesh,
        device,
        seed=job.recipe.seed,
        is_adapted=weights is not None,
    )


def _warn_of_waste(
    settings: Pretrain, mesh: Mesh, device: torch.device, dtype: torch.dtype, *, is_first: bool
) -> None:
    """Warn of settings that make this machine slow."""
    if not has_fast_bf16(device):
        if settings.state == "bf16":
            log.warning(
                "this CPU has no BF16 products of its own: set pretrain.state to fp32, which is faster here"
            )
        elif settings.precision == "bf16" and dtype == torch.float32:
            log.warning(
                "this CPU has no BF16 products of its own: they are computed in FP32, which is faster here"
            )
    if settings.batch_size % mesh.data and is_first:
        idle = -settings.batch_size % mesh.data
        log.warning(
            "pretrain.batch_size: %s sequences do not divide by %s: in every step %s of so many groups of processes "
            "wait for the others; a multiple leaves none waiting",
            settings.batch_size, mesh.data, idle,
        )  # fmt: skip
