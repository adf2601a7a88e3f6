"""A Llama's weights in the names, order and precision of GGUF, a tensor at a time.

Source: llama.cpp, conversion of `LlamaForCausalLM` in convert_hf_to_gguf.py, and gguf-py/gguf/tensor_mapping.py.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from anadil.artifacts.weight_files import holds_own_head
from anadil.core.errors import DataError, PreflightError
from anadil.model.family import ModuleNames
from anadil.model.safetensors_files import SafetensorsFiles

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
"""Module, of layers without its number -> GGUF's name."""
TABLES = ModuleNames().tables
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
CONSTANTS = (".rotary_emb.inv_freq",)
"""Ends of names that old files hold and that are recomputed."""
STORED: Mapping[str, Type] = MappingProxyType({"F32": Type.F32, "F16": Type.F16, "BF16": Type.BF16})
"""safetensors' names of precisions that GGUF has too."""
TORCH = MappingProxyType({Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16})
BLOCK = 32
"""Numbers that share a scale in Q8_0; rows of other widths stay in FP16, as in llama.cpp's own converter."""
ROWS = 4_096
"""Rows that are quantized at a time: numpy needs several times their bytes."""


def gguf_names(weights: SafetensorsFiles, config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Name of every tensor -> its name in GGUF.

    Raises:
        DataError: Some are missing, or shaped otherwise than config.json says.
        PreflightError: There are others, so that it is no plain Llama.
    """
    tied = bool(config.get("tie_word_embeddings")) and not holds_own_head(weights.stored, TABLES)
    found: dict[str, str] = {}
    for name in weights:
        if name.endswith(CONSTANTS) or (tied and name == TABLES[1]):
            continue  # llama.cpp takes the embedding where no output is
        ours = gguf_name(name)
        if ours is None:
            raise PreflightError(
                f"{directory}: holds {name}, which no plain Llama has; export with --format hf, and serve it with vLLM"
            )
        found[name] = ours
    layers = range(int(config["num_hidden_layers"]))
    wanted = [f"blk.{layer}.{part}" for layer in layers for part in NAMES.values() if _is_of_layer(part)]
    wanted += ["token_embd", "output_norm", *([] if tied else ["output"])]
    missing = sorted({f"{name}.weight" for name in wanted} - set(found.values()))
    if missing:
        raise DataError(
            f"{directory}: {len(missing)} tensors are missing, the first {missing[0]} in GGUF's words; fetch or make "
            "the model again"
        )
    rows = weights.shape(TABLES[0])[0]
    if rows != config["vocab_size"]:
        raise DataError(
            f"{directory}: vocab_size of config.json is {config['vocab_size']}, and the embedding has {rows} rows; "
            "fetch or make the model again"
        )
    return found


def gguf_name(name: str) -> str | None:
    """GGUF's name of a tensor of a Llama; None of one that a Llama does not have."""
    module, _, kind = name.rpartition(".")
    layer = LAYER.fullmatch(module)
    part = NAMES.get(layer[2] if layer else module)
    if part is None or _is_of_layer(part) != bool(layer) or kind not in ("weight", "bias"):
        return None
    return f"blk.{layer[1]}.{part}.{kind}" if layer else f"{part}.{kind}"


def _is_of_layer(part: str) -> bool:
    return part.startswith(("attn_", "ffn_"))


def gguf_type(shape: tuple[int, ...], stored: str, wanted: Type | None) -> Type:
    """Precision of a tensor in the file: norms and biases are small, and FP32 there.

    Args:
        shape: Of the tensor.
        stored: Its precision now, in safetensors' words.
        wanted: Precision of the file; None keeps what is stored.
    """
    if len(shape) == 1:
        return Type.F32
    if wanted is Type.Q8_0 and shape[-1] % BLOCK:
        return Type.F16
    return STORED.get(stored, Type.F32) if wanted is None else wanted  # F32 is 0


def num_bytes(shape: tuple[int, ...], kind: Type) -> int:
    """Of a tensor in the file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def packed(tensor: torch.Tensor, kind: Type, name: str) -> NDArray[Any]:
    """A tensor's bytes in a precision of GGUF.

    Raises:
        DataError: FP16 cannot hold a number of it.
    """
    if kind is Type.Q8_0:
        out = np.empty((tensor.shape[0], num_bytes(tuple(tensor.shape[1:]), kind)), dtype=np.uint8)
        for start in range(0, len(out), ROWS):
            out[start : start + ROWS] = gguf.quantize(tensor[start : start + ROWS].float().numpy(), kind)
        return out
    cast = tensor.to(TORCH[kind]).contiguous()
    if kind is Type.F16 and not bool(torch.isfinite(cast).all()):
        raise DataError(
            f"{name}: holds numbers beyond 65,504, the largest of FP16; export with --precision bf16"
        )
    return cast.view(torch.int16).numpy() if kind is Type.BF16 else cast.numpy()


def rotated(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Queries and keys with the rows in llama.cpp's order: pairs of a rotation side by side.

    transformers turns row i of a head with row i + half of it.
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": key_value_heads(config)}
    part = name.split(".")[-2]
    if part not in heads:
        return tensor
    count = int(heads[part])
    pairs = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Heads of keys and values."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def head_size(config: Mapping[str, Any]) -> int:
    """Numbers of a head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def llama3_factors(
    config: Mapping[str, Any], scaling: Mapping[str, Any], theta: float
) -> NDArray[np.float32]:
    """What llama.cpp divides each frequency by, where the rotation is scaled as in Llama 3.1 and later; (head / 2,).

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """
    size = head_size(config)
    frequencies = theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    before = float(scaling["original_max_position_embeddings"])
    turns = before * frequencies / (2 * math.pi)
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(turns > high, 1.0, np.where(turns < low, factor, between))
    return factors.astype(np.float32)
