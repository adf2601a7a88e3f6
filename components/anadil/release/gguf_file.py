"""A Llama as one GGUF file, which llama.cpp, Ollama and LM Studio read; memory holds one tensor of it at a time."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, LlamaFileType, RopeScalingType

from anadil.artifacts.base_model import model_config
from anadil.core.errors import PreflightError
from anadil.core.progress import progress
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.release import gguf_tensors as tensors
from anadil.release.disk_space import check_space
from anadil.release.gguf_cuts import GGUF_MODEL
from anadil.release.gguf_vocabulary import Vocabulary, read_vocabulary

log = logging.getLogger(__name__)

PRECISIONS: Mapping[str, Type] = MappingProxyType(
    {"fp32": Type.F32, "fp16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
)
FILE_TYPES: Mapping[Type, LlamaFileType] = MappingProxyType(
    {
        Type.F32: LlamaFileType.ALL_F32,
        Type.F16: LlamaFileType.MOSTLY_F16,
        Type.BF16: LlamaFileType.MOSTLY_BF16,
        Type.Q8_0: LlamaFileType.MOSTLY_Q8_0,
    }
)
ARCHITECTURE = GGUF_MODEL
QUANTIZATION_VERSION = 2
"""Of the blocks of Q8_0 and others. Source: llama.cpp, ggml/include/ggml.h, GGML_QNT_VERSION."""
ROTATIONS = ("default", "linear", "llama3")
FACTORS = "rope_freqs.weight"
INSTEAD = "export with --format hf, and serve it with vLLM, or convert that with llama.cpp's own converter"


def check_llama(directory: Path) -> dict[str, Any]:
    """The content of a Llama's config.json; nothing else is written as GGUF.

    Raises:
        DataError: There is no config.json.
        PreflightError: It is another architecture, or a Llama that llama.cpp computes otherwise.
    """
    config = model_config(directory)
    kind = config.get("model_type")
    if kind != ARCHITECTURE:
        raise PreflightError(
            f"{directory}: model type {kind!r} is not written as GGUF, only llama; {INSTEAD}"
        )
    _, scaling = rotation(config)
    rotates = scaling["rope_type"]
    if rotates not in ROTATIONS:
        raise PreflightError(
            f"{directory}/config.json: rotation scaled by {rotates!r} is not written as GGUF, only "
            f"{', '.join(ROTATIONS)}; {INSTEAD}"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise PreflightError(
            f"{directory}/config.json: hidden_act {activation!r}, and llama.cpp computes silu; {INSTEAD}"
        )
    return config


def rotation(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Base of the rotation, and how it is scaled: `rope_type` and its settings, in either spelling of config.json."""
    written = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta"),
        **(config.get("rope_scaling") or {}),
    }
    kind = written.get("rope_type") or written.get("type") or "default"
    # 10,000 is transformers' own where a config names none.
    return float(written.get("rope_theta") or 10_000.0), {**written, "rope_type": kind}


def write_gguf(directory: Path, out: Path, *, name: str, precision: str | None = None) -> dict[str, int]:
    """Write a model's directory as a GGUF file; what it holds, in numbers.

    Args:
        directory: Hugging Face directory of a Llama.
        out: File to write; the caller gives it its name when it is whole.
        name: Of the model, for whoever lists it.
        precision: One of `PRECISIONS`; as stored if it is not given.

    Raises:
        DataError: The model is not whole, or FP16 cannot hold its numbers.
        IntegrityError: A file is damaged.
        PreflightError: It is no Llama, or llama.cpp cannot read its tokenizer.
    """
    config = check_llama(directory)
    vocabulary = read_vocabulary(directory, int(config["vocab_size"]))
    return _write(SafetensorsFiles(directory), config, vocabulary, directory, out, name, precision)


def _write(
    weights: SafetensorsFiles,
    config: Mapping[str, Any],
    vocabulary: Vocabulary,
    directory: Path,
    out: Path,
    name: str,
    precision: str | None,
) -> dict[str, int]:
    names = tensors.gguf_names(weights, config, directory)
    wanted = PRECISIONS[precision] if precision else None
    types = {each: tensors.gguf_type(weights.shape(each), weights.dtype(each), wanted) for each in names}
    writer = GGUFWriter(out, ARCHITECTURE)
    try:
        writer.add_name(name)
        writer.add_file_type(FILE_TYPES[types["model.embed_tokens.weight"]])
        writer.add_quantization_version(QUANTIZATION_VERSION)
        _add_shape(writer, config)
        _add_vocabulary(writer, vocabulary)
        factors = _factors(config)
        sizes = {each: tensors.num_bytes(weights.shape(each), types[each]) for each in names}
        check_space(out, sum(sizes.values()))
        for each, gguf_name in names.items():
            writer.add_tensor_info(
                gguf_name, weights.shape(each), np.dtype(np.float32), sizes[each], raw_dtype=types[each]
            )
        if factors is not None:
            writer.add_tensor_info(FACTORS, factors.shape, factors.dtype, factors.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        with progress("writing GGUF", len(names)) as bar:
            for each, gguf_name in names.items():
                tensor = tensors.rotated(gguf_name, weights.read(each), config)
                writer.write_tensor_data(tensors.packed(tensor, types[each], each))
                bar.advance()
        if factors is not None:
            writer.write_tensor_data(factors)
        _flush(writer)
    finally:
        writer.close()
    return {"tensors": len(names), "bytes": out.stat().st_size, "adds_bos": vocabulary.adds_bos}


def _flush(writer: GGUFWriter) -> None:
    """Bring the file to the disk before it gets its name."""
    writer.flush()
    assert writer.fout is not None
    for file in writer.fout:
        os.fsync(file.fileno())


def _factors(config: Mapping[str, Any]) -> Any:
    theta, scaling = rotation(config)
    return tensors.llama3_factors(config, scaling, theta) if scaling["rope_type"] == "llama3" else None


def _add_shape(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    theta, scaling = rotation(config)
    size = tensors.head_size(config)
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_head_count_kv(tensors.key_value_heads(config))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", 1e-6)))  # transformers' own
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(theta)
    if scaling["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(scaling["factor"]))


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")  # llama.cpp's word for BPE over bytes
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    add = {
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "eot": writer.add_eot_token_id,
        "pad": writer.add_pad_token_id,
    }
    for role, index in vocabulary.special.items():
        add[role](index)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    if vocabulary.template:
        writer.add_chat_template(vocabulary.template)
