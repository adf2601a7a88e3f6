"""A model's weights in the names, order and precision of GGUF, a tensor at a time.

Source: llama.cpp, folder `conversion`; names are those of the package gguf, gguf-py/gguf/tensor_mapping.py.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from anadil.core.errors import DataError, PreflightError
from anadil.model.family import Gguf, ModuleNames
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.release.export.gguf_shape import head_size, key_value_heads

HEAD = ModuleNames().tables[1]
CONSTANTS = (".rotary_emb.inv_freq",)
"""Ends of names of constants in old files, which are recomputed."""
STORED: Mapping[str, Type] = MappingProxyType({"F32": Type.F32, "F16": Type.F16, "BF16": Type.BF16})
"""safetensors' names of precisions that GGUF has too."""
TORCH = MappingProxyType({Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16})
# Numbers that share a scale in Q8_0; rows of other widths stay in FP16, as in llama.cpp's own converter.
BLOCK = 32
# Rows that are quantized at a time, as numpy needs several times their bytes.
ROWS = 4_096


def gguf_names(weights: SafetensorsFiles, config: PreTrainedConfig, kind: Gguf) -> dict[str, str]:
    """Name of every tensor -> its name in GGUF."""
    number = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    gguf_name_of: dict[str, str] = {}
    for name in weights:
        if name.endswith(CONSTANTS) or (config.tie_word_embeddings and name == HEAD):
            continue  # without an output llama.cpp takes the embedding
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if ours is None:
            raise PreflightError(
                f"{weights.folder}: llama.cpp's {kind.architecture} has no place for {name}; export with --format hf, and "
                "serve it with vLLM"
            )
        gguf_name_of[name] = ours
    return gguf_name_of


def gguf_type(shape: tuple[int, ...], stored: str, requested: Type | None) -> Type:
    """Precision of a tensor in the file."""
    if len(shape) == 1:  # norms and biases are small
        return Type.F32
    if requested is Type.Q8_0 and shape[-1] % BLOCK:
        return Type.F16
    return STORED.get(stored, Type.F32) if requested is None else requested  # F32 is 0


def num_bytes(shape: tuple[int, ...], kind: Type) -> int:
    """Bytes of a tensor in the file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def packed(tensor: torch.Tensor, kind: Type, name: str) -> NDArray[Any]:
    """A tensor's bytes in a precision of GGUF."""
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


def converted(name: str, tensor: torch.Tensor, config: PreTrainedConfig, kind: Gguf) -> torch.Tensor:
    """A tensor by its name in GGUF, as llama.cpp computes with it."""
    part = name.split(".")[-2]
    if kind.norm_offset and part.endswith("norm"):
        tensor = tensor.float() + kind.norm_offset
    if part == "attn_q_norm" and (scalar := getattr(config, "query_pre_attn_scalar", None)):
        # Square of llama.cpp's divisor of queries. Source: llama.cpp, src/models/gemma3.cpp: 62 layers are the 27B's.
        is_27b = config.num_hidden_layers == 62
        width = config.hidden_size / config.num_attention_heads if is_27b else head_size(config)
        tensor = tensor * math.sqrt(width / scalar)
    heads = {"attn_q": config.num_attention_heads, "attn_k": key_value_heads(config)}
    if not kind.turns_neighbours or part not in heads:
        return tensor
    pairs = tensor.reshape(heads[part], 2, tensor.shape[0] // heads[part] // 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def llama3_factors(config: PreTrainedConfig, scaling: Mapping[str, Any]) -> NDArray[np.float32]:
    """Divisors of the frequencies for the scaling of Llama 3.1 and later; shape (head / 2,).

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """
    size = head_size(config)
    frequencies = float(scaling["rope_theta"]) ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    before = float(scaling["original_max_position_embeddings"])
    turns = before * frequencies / (2 * math.pi)
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(turns > high, 1.0, np.where(turns < low, factor, between))
    return factors.astype(np.float32)
