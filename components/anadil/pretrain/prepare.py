"""Everything before the first step: the processes, the base model's weights, the tokens, the number of steps."""

import copy
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.core.errors import DataError, RecipeError
from anadil.core.stages import STAGES, WRITERS, forms_of, last_form
from anadil.estimate.schedule import within_epochs
from anadil.estimate.text_use import week_settings
from anadil.model.architecture import check_fit, empty_model
from anadil.model.attention import use_packed_attention
from anadil.model.family_table import check_family, logit_scale_and_cap
from anadil.model.kernels import check_compiler, set_up_device, use_liger_kernels
from anadil.model.load import document_frame, load_model, load_tokenizer, pick_device
from anadil.model.loss import IGNORED, cap_, has_fast_bf16, uses_liger
from anadil.model.process_group import Group, group, peers
from anadil.model.tensor_names import ModelFiles
from anadil.model.tiny import base_model
from anadil.plan.plan import plan_as_file
from anadil.pretrain.callback import Section
from anadil.pretrain.checkpoint.start_point import Start, StartPoint, StartWeights, check_start, read_start
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.data.order import TrainingData, sizes_of, text_parts
from anadil.pretrain.data.training_tokens import tokens_of
from anadil.pretrain.embedding_init import fit_vocabulary, new_row_ids, vocabulary_rows
from anadil.pretrain.metrics.metrics import Metrics
from anadil.pretrain.metrics.throughput import rates_of, usd_per_hour
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.parallelize import (
    ParallelModel,
    check_layout,
    compute_dtype,
    load_weights,
    parallelize,
)
from anadil.pretrain.resilience import burn_in
from anadil.pretrain.resilience.out_of_memory import micro_batch_size, no_room
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.retrain import part_name
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import (
    base_files,
    base_identity,
    extended,
    recipe_origin,
    result_keys,
    result_version,
    split_shares,
)
from anadil.runtime.job import Job, is_left_out, word_of
from anadil.runtime.tracking_spool import SPOOL_VARIABLE
from anadil.tokens.packing import Packed
from anadil.tokens.probabilities import StoredProbabilities, open_probabilities
from anadil.tokens.stored_tokens import StoredTokens

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
    word, last = last_form("tokenizer", job.inputs), forms_of("tokenizer")[-1]
    job = replace(job, inputs={**job.inputs, "tokenizer": job.inputs[word]})
    if word != last and not is_left_out(WRITERS[last], job.recipe) and processes.is_first:
        log.warning(
            "%s is set, but no %s is given: the tokenizer is the one that was chosen by cost",
            WRITERS[last].only_if, last,
        )  # fmt: skip
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
    # First: epochs, weeks and the place of a checkpoint are counted in the steps that are done.
    job = replace(job, recipe=fit_phases(job.recipe, job.inputs["tokenizer"]))
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
    data = TrainingData(sources=_packed(job.recipe, tokens), teachers=_teachers(job, tokens))
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
    trainer.new_rows = new_row_ids(tokenizer)
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
        **split_shares(recipe_origin(job.recipe, result_keys(STAGES["pretrain"], job.recipe)))[0],
        **{
            f"input tokens.{name}" if name else "input tokens": packed.stream.digest
            for name, packed in trainer.data.sources.items()
        },
        "input tokenizer": artifact.digest_of(job.inputs["tokenizer"]),
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


def _teachers(job: Job, tokens: Mapping[str, StoredTokens]) -> dict[str, StoredProbabilities]:
    """Open the base's probabilities of each part of a source whose teacher it is."""
    recipe, teachers = job.recipe, {}
    for source in (name for name, each in recipe.sources.items() if each.teacher):
        facts, stream = tokens[source].facts, job.streams[word_of("probabilities", source)]
        expected = {
            "base": base_identity(recipe.base), "tokenizer": artifact.digest_of(job.inputs["tokenizer"]),
            "stream": facts.stream, "k": recipe.pretrain.distillation.top_k,
        }  # fmt: skip
        teachers[source] = open_probabilities(stream.uri, stream.manifest, expected)
        if recipe.continues_champion:
            teachers[part_name(source, is_new=True)] = replace(teachers[source], first=facts.earlier.tokens)
    return teachers


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


def fit_phases(recipe: Recipe, tokenizer: Path) -> Recipe:
    """Leave the phases of new_rows out of a recipe where the tokenizer has no new token."""
    trained = {phase.trains for phase in recipe.pretrain.phases}
    if "new_rows" not in trained or new_row_ids(tokenizer):
        return recipe
    if trained == {"new_rows"}:
        raise RecipeError(
            "pretrain.phases: trains new_rows alone, and the tokenizer has no new token. Add a phase that trains "
            "embeddings or all, or make the tokenizer with tokenizer.choice: extend"
        )
    settings = recipe.pretrain.without_new_rows
    log.warning(
        "pretrain.phases: %s steps of new_rows are left out, since the tokenizer has no new token",
        f"{recipe.pretrain.steps - settings.steps:,}",
    )
    return recipe.model_copy(update={"pretrain": settings})


def _log_lengths(net: ParallelModel, data: TrainingData, settings: Pretrain) -> None:
    """Log the lengths of the data, and warn of those that are likely a mistake."""
    # Each source has epochs of its own, and a line that says them.
    epochs = settings.steps * settings.batch_size / data.num_sequences
    log.info(
        "%s documents, %s tokens in %s sequences of %s (%.1f %% padding)%s",
        f"{data.num_documents:,}", f"{data.num_targets:,}", f"{data.num_sequences:,}", f"{data.length:,}",
        100 * data.waste, "" if data.names else f"; {settings.steps:,} steps are {epochs:.2f} epochs",
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
    origin = {
        **base_files(job.recipe.base.model),
        "input tokenizer": artifact.digest_of(job.inputs["tokenizer"]),
    }
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
        base, job.inputs["tokenizer"], settings, mesh, device, seed=job.recipe.seed,
        is_adapted=weights is not None,
    )  # fmt: skip


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


SMALL = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
"""Sizes of the model that is tested in place of a large one."""
SMALL_OF_SOME = {
    "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 128, "mamba_expand": 1, "mamba_n_groups": 1,
    "mamba_n_heads": 4, "mamba_d_head": 16,
}  # fmt: skip
"""The same for types that have them: its two layers have no earlier ones to take keys and values from."""
LENGTHS = (5, 7)
"""Tokens of the two documents of the test."""
MOST_TOKENS = 128
"""Tokens of the test sequence for each process that shares it: no format of products needs more."""
TOLERANCE = 1e-3
"""Largest difference, as a share of the largest value; a leak gives 0.1 and more, rounding 1e-6."""
SAME = 1e-5
"""The same for a summed loss of equal products. A tenth of a mean over a sequence gives 9e-4."""
ROUGH = 0.02
"""The same where products are rounded to BF16 or less; formats of 8 bits scale all tokens by the largest."""


def build(
    base: Path, tokenizer: Path, settings: Pretrain, mesh: Mesh, device: torch.device, *, seed: int = 0,
    is_adapted: bool = False,
) -> ParallelModel:  # fmt: skip
    """Load a base model, give it the tokenizer's vocabulary unless it `is_adapted` already, and parallelize it."""
    check_family(model_config(base), settings.parallelism.model_dump())
    if not mesh.shares_model:
        model = load_model(base)
        check_layout(settings, model.config, mesh, device)
        if not is_adapted:
            fit_vocabulary(model, tokenizer, settings.embedding_init, seed=seed)
        placed: Any = model
        placed.to(device)
        use_packed_attention(model)
        check_architecture(model)
        return parallelize(model, settings, mesh, device)
    check_fit(base)
    config: Any = empty_model(base).config
    rows = (
        None
        if is_adapted
        else vocabulary_rows(tokenizer, config.vocab_size, settings.embedding_init, seed=seed)
    )
    model = empty_model(base, num_tokens=None if rows is None else len(rows))
    check_layout(settings, model.config, mesh, device)
    # A small random model of the same architecture stands for one that no process holds whole.
    changed: Any = copy.deepcopy(config)
    of_type = {name: size for name, size in SMALL_OF_SOME.items() if hasattr(changed, name)}
    for name, size in {**SMALL, **of_type}.items():
        setattr(changed, name, size)
    changed.pad_token_id = None
    rotation = getattr(changed, "rope_parameters", None) or {}
    if rotation.get("rope_type") == "longrope":  # its factors are those of the width of the model's own heads
        changed.rope_parameters = {**rotation, "rope_type": "default"}
    small: Any = AutoModelForCausalLM.from_config(changed, dtype=torch.float32).eval()
    use_packed_attention(small)
    check_architecture(small.to(device))
    net = parallelize(model, settings, mesh, device)
    load_weights(net.model, ModelFiles(base, net.model), device, rows=rows)
    check_net(net, settings)
    return net


@torch.no_grad()
def check_architecture(model: PreTrainedModel) -> None:
    """Run two documents packed and alone, and compare logits with the head's product."""
    kind = model.config.model_type
    device = next(model.parameters()).device
    ids = (torch.arange(sum(LENGTHS), device=device) * 7 + 3)[None] % model.config.vocab_size
    positions = torch.cat([torch.arange(num, device=device) for num in LENGTHS])[None]
    borders = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    packed = last_hidden(model, ids, positions, borders)
    ids, positions = ids[:, LENGTHS[0] :], positions[:, LENGTHS[0] :]
    alone = last_hidden(model, ids, positions, torch.tensor([0, LENGTHS[1]], dtype=torch.int32))
    if _differs(packed[:, LENGTHS[0] :], alone):
        raise DataError(
            f"base.model: in a {kind} model packed documents see each other; use a Llama-like base.model"
        )
    whole: Any = model
    head: Any = model.get_output_embeddings()
    logits = whole(input_ids=ids, position_ids=positions, use_cache=False).logits
    scale, cap = logit_scale_and_cap(model.config.to_dict())
    if _differs(logits, cap_(nn.functional.linear(alone * scale, head.weight), cap)):
        raise DataError(
            f"base.model: a {kind} model changes its logits after the head; use a Llama-like base.model"
        )


@torch.no_grad()
def check_net(net: ParallelModel, settings: Pretrain) -> None:
    """Test a large model itself with its weights; all processes call it.

    Its layers may differ by their number or width, which a small model of the same type does not show.
    """
    mesh, kind = net.mesh, net.model.config.model_type
    length = min(settings.sequence_length, MOST_TOKENS * mesh.context * mesh.tensor)
    # Compiled layers would be compiled for this length too.
    with torch.compiler.set_stance("force_eager"):
        first, second = (_loss(net, _test_sequence(net, length, first=first)) for first in (3, 11))
        if not math.isfinite(first):
            raise DataError(
                f"base.model: the loss of this {kind} model is {first} before its first step; its weights are "
                "damaged, or it cannot be shared by pretrain.parallelism; fetch it again, or use a Llama-like base.model"
            )
        if abs(second - first) > (SAME if settings.matmul == "same" else ROUGH) * first:
            raise DataError(
                f"base.model: in a {kind} model packed documents see each other; use a Llama-like base.model"
            )
        if mesh.context * mesh.tensor * mesh.pipeline > 1:
            return  # its own forward pass needs whole layers and whole sequences
        alone = _test_sequence(net, length)
        ours, its_own = _loss(net, alone), _own_loss(net, alone)
    exact = net.model.dtype == net.dtype == torch.float32
    if not abs(ours - its_own) <= (TOLERANCE if exact else ROUGH) * its_own:
        raise DataError(
            f"base.model: the loss of this {kind} model is {ours:.4f} in training and {its_own:.4f} by its own forward "
            "pass; use a Llama-like base.model"
        )


def _test_sequence(net: ParallelModel, length: int, *, first: int | None = None) -> Batch:
    """Make a sequence of one document, or of two with labels for the second; `first` changes the first one."""
    place = torch.arange(length)
    ids = (place * 7 + 3) % net.model.config.vocab_size
    labels = ids.roll(-1)
    labels[-1] = IGNORED
    begin = 0 if first is None else length // 3
    if first is not None:
        ids = torch.where(place < begin, (place * first + first) % net.model.config.vocab_size, ids)
        labels[:begin] = IGNORED
    return Batch(
        input_ids=ids[None],
        position_ids=torch.where(place < begin, place, place - begin)[None],
        labels=labels[None],
        borders=torch.tensor(sorted({0, begin, length}), dtype=torch.int32),
    )


def _loss(net: ParallelModel, batch: Batch) -> float:
    """Summed loss of a batch that every group of processes takes, equal on all of them."""
    return net.add_up(net.nats(batch).double()).item() / net.mesh.data


def _own_loss(net: ParallelModel, batch: Batch) -> float:
    """Summed loss by the model's own forward pass and torch's loss."""
    whole: Any = net.model
    trained = whole.forward
    # FSDP gathers parameters around the call of the model, whatever its forward pass is.
    whole.forward = type(net.model).forward.__get__(net.model)
    try:
        logits = whole(input_ids=batch.input_ids.to(net.device), use_cache=False).logits
    finally:
        whole.forward = trained
    labels = batch.labels.to(net.device).flatten()
    loss = nn.functional.cross_entropy(logits[0].float(), labels, reduction="sum")
    return net.add_up(loss.double()).item() / net.mesh.data


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    # NaN is a difference.
    return not bool((one - other).abs().max() <= TOLERANCE * other.abs().max())
