"""base model, tokenizer -> a model ready to be trained, whole in each process or spread over them.

What training relies on is tried on the model itself before the first step: an architecture that attends
in a way of its own would train on leaking documents without a sign of it, and the loss takes logits to
be the head's product with the last hidden state.
"""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from anadil.artifacts.base_model import model_config
from anadil.core.errors import DataError
from anadil.model.architecture import check_fit, empty_model
from anadil.model.attention import use_packed_attention
from anadil.model.family_table import check_family
from anadil.model.load import load_model
from anadil.model.loss import IGNORED
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.data.packing import Batch
from anadil.pretrain.embedding_init import fit_vocabulary, vocabulary_rows
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import ParallelModel, check_layout, load_weights, parallelize
from anadil.recipe.pretrain import Pretrain

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""Sizes of the model that is tested in place of a large one."""
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
    base: Path,
    tokenizer: Path,
    settings: Pretrain,
    mesh: Mesh,
    device: torch.device,
    *,
    seed: int = 0,
    is_adapted: bool = False,
) -> ParallelModel:
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
    for name, size in SMALL.items():
        setattr(changed, name, size)
    changed.pad_token_id = None
    rotation = getattr(changed, "rope_parameters", None) or {}
    if rotation.get("rope_type") == "longrope":  # its factors are those of the width of the model's own heads
        changed.rope_parameters = {**rotation, "rope_type": "default"}
    small: Any = AutoModelForCausalLM.from_config(changed, dtype=torch.float32).eval()
    use_packed_attention(small)
    check_architecture(small.to(device))
    net = parallelize(model, settings, mesh, device)
    load_weights(net.model, SafetensorsFiles(base), device, rows=rows)
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
    if _differs(logits, nn.functional.linear(alone, head.weight)):
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
