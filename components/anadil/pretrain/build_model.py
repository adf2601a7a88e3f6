"""base model, tokenizer -> a model ready to be trained, whole in each process or spread over them."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from anadil.artifacts.base_model import model_config
from anadil.model.attention import use_packed_attention
from anadil.model.families import check_family
from anadil.model.load import load_model
from anadil.pretrain.check_architecture import check_architecture, check_net
from anadil.pretrain.embedding_init import fit_vocabulary, vocabulary_rows
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import Net, check_layout, spread
from anadil.pretrain.parallel.safetensors_slices import Weights
from anadil.pretrain.parallel.sharded_load import empty_model, load_weights
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
"""Sizes of a model that stands for one that no process holds whole."""


def build(base: Path, tokenizer: Path, settings: Pretrain, mesh: Mesh, device: torch.device) -> Net:
    """Load a base model, give it the tokenizer's vocabulary, and lay it over the processes.

    Args:
        base: Local Hugging Face directory.
        tokenizer: Tokenizer artifact.
        settings: Section `pretrain`.
        mesh: This process's place.
        device: Where it is to be trained.

    Raises:
        DataError: The base model or the tokenizer cannot be used, or do not fit together.
        IntegrityError: Weights are damaged, or would run code.
        PreflightError: The layout is not proven for the model or does not fit it, or the device has not what is
            asked for.
        RecipeError: Keys of `pretrain` contradict each other.
    """
    check_family(model_config(base), settings.parallelism.model_dump())
    if not mesh.shares_model:
        model = load_model(base)
        check_layout(settings, model.config, mesh, device)
        fit_vocabulary(model, tokenizer)
        placed: Any = model
        placed.to(device)
        use_packed_attention(model)
        check_architecture(model)
        return spread(model, settings, mesh, device)
    config: Any = empty_model(base).config
    rows = vocabulary_rows(tokenizer, config.vocab_size)
    model = empty_model(base, num_tokens=None if rows is None else len(rows))
    check_layout(settings, model.config, mesh, device)
    small: Any = _small(config)
    check_architecture(small.to(device))
    net = spread(model, settings, mesh, device)
    load_weights(net.model, Weights(base), device, rows=rows)
    check_net(net, settings)
    return net


def _small(config: Any) -> PreTrainedModel:
    """A random model of the same architecture."""
    changed: Any = copy.deepcopy(config)
    for name, size in SMALL.items():
        setattr(changed, name, size)
    changed.pad_token_id = None
    rotation = getattr(changed, "rope_parameters", None) or {}
    if rotation.get("rope_type") == "longrope":  # its factors are those of the width of the model's own heads
        changed.rope_parameters = {**rotation, "rope_type": "default"}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(changed, dtype=torch.float32).eval()
    use_packed_attention(model)
    return model
