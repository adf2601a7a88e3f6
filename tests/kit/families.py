"""Small random models of each family, and the losses and gradients of plain transformers to hold layouts against."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from anadil.artifacts.text_part import text_name
from anadil.model.process_group import Group
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.pretrain.parallel.fsdp import Replicas
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.prepare import build
from anadil.recipe.pretrain import Parallelism, Pretrain
from tests.kit.pretraining import make_tokenizer_artifact

LENGTH, ROWS = 32, 2
NUM_TOKENS = 306
"""Of a tokenizer that adds to a base's 300."""
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "pad_token_id": None,
}
GRANITE_FACTORS = {"embedding_multiplier": 6.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA_RULE = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
CHANGES: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.7},
    "cohere2": {"logit_scale": 0.7},
    "exaone4": {"sliding_window": 4 * LENGTH, "sliding_window_pattern": 4},
    "gemma2": {
        "query_pre_attn_scalar": 10,
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.0,
    },
    "gemma3_text": {
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 10,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
        },
    },
    "gemma4_text": {
        "final_logit_softcapping": 3.0,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 32,  # norms of less amplify rounding tenfold
        "vocab_size_per_layer_input": NUM_TOKENS,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "glm4": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.25}},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    "granite": {**GRANITE_FACTORS, "logits_scaling": 0.6},
    "granitemoehybrid": {
        **GRANITE_FACTORS,
        "logits_scaling": 0.6,
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
    },
    "hyperclovax": {**GRANITE_FACTORS, "logits_scaling": 0.6},
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "olmo_hybrid": DELTA_RULE,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"attention_bias": True},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_5_moe_text": {**DELTA_RULE, **EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": DELTA_RULE,
    "qwen3_moe": EXPERTS,
}
"""What makes a family differ from Llama, where its defaults do not."""
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14
}  # fmt: skip
QWEN_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 32,
    "num_position_embeddings": 16,
}  # fmt: skip
WRAPPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", VISION),
    "gemma4": ("gemma4_text", {**VISION, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16}),
    "mistral3": ("mistral", {**VISION, "model_type": "pixtral", "head_dim": 8}),
    "qwen3_5": ("qwen3_5_text", QWEN_VISION),
    "qwen3_5_moe": ("qwen3_5_moe_text", QWEN_VISION),
}  # fmt: skip
"""Models of text and images -> the text model in them, and sizes of the other part."""
CPU = torch.device("cpu")


def make_family(folder: Path, kind: str, **changes: Any) -> Path:
    """A Hugging Face directory of a random model; norms and biases are random too."""
    if kind in WRAPPERS:
        make_wrapper(folder, kind)
        return folder
    known = AutoConfig.for_model(kind).to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in known}
    config = AutoConfig.for_model(kind, **{**sizes, **CHANGES.get(kind, {}), **changes})
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    remember(model)
    model.save_pretrained(folder)
    return folder


def remember(model: Any) -> None:
    """Let states last for documents: at random they are gone after a token or two."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.sub_(3)


def make_wrapper(folder: Path, kind: str) -> Any:
    """A directory of a random model of text and images, and the model."""
    text, vision = WRAPPERS[kind]
    # Gemma 4 reads the id of padding in place of images.
    sizes = {**SIZES, "pad_token_id": 0, **CHANGES.get(text, {}), "model_type": text}
    others: dict[str, Any] = {"tie_word_embeddings": kind in {"gemma3", "gemma4"}}
    if kind == "gemma3":
        sizes["final_logit_softcapping"] = None  # transformers has none in the wrapper
        others["mm_tokens_per_image"] = 1
    config = AutoConfig.for_model(kind, text_config=sizes, vision_config=vision, **others)
    torch.manual_seed(1)
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    remember(model)
    model.save_pretrained(folder)
    return model.eval()


def make_vocabulary(folder: Path) -> Path:
    """A tokenizer artifact with tokens that the base does not have."""
    rows = [[299 - token] for token in range(300)] + [[0, 1, 2], [7, 9]] * 3
    return make_tokenizer_artifact(folder, rows, vocab_size=NUM_TOKENS)


def batches(number: int, seed: int = 7, length: int = LENGTH, num_tokens: int = NUM_TOKENS) -> list[Batch]:
    """Micro-batches whose rows hold several documents."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(number):
        inner = torch.randperm(ROWS * length - 1, generator=random)[:4] + 1
        borders = sorted({0, *range(length, ROWS * length + 1, length), *inner.tolist()})
        positions = torch.cat([torch.arange(end - begin) for begin, end in pairwise(borders)])
        made.append(
            Batch(
                input_ids=torch.randint(0, num_tokens, (ROWS, length), generator=random),
                position_ids=positions.view(ROWS, length),
                labels=torch.randint(0, num_tokens, (ROWS, length), generator=random),
                borders=torch.tensor(borders, dtype=torch.int32),
            )
        )
    return made


def by_transformers(
    folder: Path, tokenizer: Path, given: Sequence[Batch]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Summed loss and gradients of each document by itself, by the model's own forward and torch's loss."""
    kind: Any = AutoModelForImageTextToText if folder.name in WRAPPERS else AutoModelForCausalLM
    model: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
    fit_vocabulary(model, tokenizer)
    total = 0.0
    for batch in given:
        ids, labels = batch.input_ids.flatten(), batch.labels.flatten()
        for begin, end in pairwise(batch.borders.tolist()):
            logits = model(input_ids=ids[None, begin:end], use_cache=False).logits[0]
            loss = nn.functional.cross_entropy(logits.float(), labels[begin:end], reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.item()
    return total, {text_name(name) or name: each.grad for name, each in model.named_parameters()}


def build_in(
    degrees: dict[str, int], folder: Path, tokenizer: Path, rank: int, size: int, device: torch.device = CPU
) -> ParallelModel:
    """This process's part of a model in a layout."""
    how = Parallelism.model_validate(degrees)
    settings = Pretrain(
        precision="fp32", sequence_length=LENGTH, batch_size=4 * ROWS, micro_batch_size=ROWS, parallelism=how
    )
    mesh = Mesh() if size == 1 else mesh_of(how, Group(rank=rank, size=size), device.type)
    return build(folder, tokenizer, settings, mesh, device)


def by_layout(
    folder: Path,
    tokenizer: Path,
    degrees: dict[str, int],
    rank: int,
    size: int,
    given: Sequence[Batch],
    device: torch.device = CPU,
) -> tuple[float, dict[str, torch.Tensor]]:
    """The same by this engine in a layout; gradients are those of this process's parameters, whole."""
    net = build_in(degrees, folder, tokenizer, rank, size, device)
    replicas = Replicas(net.parameters().values(), net.replicas_group())
    mine = [net.share(batch) for batch in given[net.mesh.data_rank :: net.mesh.data]]
    loss = net.backward(mine, 1.0, replicas=replicas)
    replicas.wait()
    total = loss if net.counts else torch.zeros_like(loss)
    if not net.mesh.is_alone:
        torch.distributed.all_reduce(total)
    gradients = {}
    for name, parameter in net.parameters().items():
        gradient: Any = parameter.grad
        gradients[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return total.item(), gradients
