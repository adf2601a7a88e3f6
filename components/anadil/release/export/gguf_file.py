"""Write a model as one GGUF file for llama.cpp, Ollama and LM Studio, a tensor at a time."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, LlamaFileType, RopeScalingType
from transformers import PreTrainedConfig

from anadil.artifacts.local_directory import check_space
from anadil.core.progress import progress
from anadil.model.architecture import check_fit, read_config
from anadil.model.family import Gguf
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.release.export.gguf_shape import SLIDING, context_length, gguf_family, head_size, key_value_heads, layer_types, rotation, window_period
from anadil.release.export.gguf_tensors import converted, gguf_names, gguf_type, llama3_factors, num_bytes, packed
from anadil.release.export.gguf_refusal import check_gguf
from anadil.release.export.gguf_vocabulary import Vocabulary, read_vocabulary

log = logging.getLogger(__name__)

PRECISIONS: Mapping[str, Type] = MappingProxyType(
    {"fp32": Type.F32, "fp16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
)
FILE_TYPES: Mapping[Type, LlamaFileType] = MappingProxyType(
    {
        Type.F32: LlamaFileType.ALL_F32, Type.F16: LlamaFileType.MOSTLY_F16, Type.BF16: LlamaFileType.MOSTLY_BF16,
        Type.Q8_0: LlamaFileType.MOSTLY_Q8_0,
    }
)  # fmt: skip
QUANTIZATION_VERSION = 2
"""Version of quantized blocks. Source: llama.cpp, ggml/include/ggml.h, GGML_QNT_VERSION."""
SCALINGS: Mapping[str, RopeScalingType] = MappingProxyType(
    {"linear": RopeScalingType.LINEAR, "yarn": RopeScalingType.YARN}
)
FACTORS = "rope_freqs.weight"


def write_gguf(directory: Path, out: Path, *, name: str, precision: str | None = None) -> bool:
    """Write a model's directory as a GGUF file.

    Returns:
        True if the file says that BOS is put before a text.
    """
    check_gguf(directory)
    check_fit(directory)
    config = read_config(directory)
    vocabulary = read_vocabulary(directory, config.vocab_size)
    kind = gguf_family(config)
    assert kind is not None, "refused before"
    weights = SafetensorsFiles(directory)
    names = gguf_names(weights, config, kind)
    requested = PRECISIONS[precision] if precision else None
    types = {
        each: gguf_type(weights.shape(each), weights.dtype(each), requested) for each in names
    }
    writer = GGUFWriter(out, kind.architecture)
    try:
        writer.add_name(name)
        writer.add_file_type(FILE_TYPES[types["model.embed_tokens.weight"]])
        writer.add_quantization_version(QUANTIZATION_VERSION)
        _add_shape(writer, config, kind)
        _add_vocabulary(writer, vocabulary)
        _write_tensors(writer, weights, names, types, config, kind, out)
    finally:
        writer.close()
    return vocabulary.adds_bos


def _write_tensors(
    writer: GGUFWriter, weights: SafetensorsFiles, names: Mapping[str, str], types: Mapping[str, Type],
    config: PreTrainedConfig, kind: Gguf, out: Path,
) -> None:  # fmt: skip
    scaling = rotation(config)
    factors = llama3_factors(config, scaling) if scaling["rope_type"] == "llama3" else None
    sizes = {each: num_bytes(weights.shape(each), types[each]) for each in names}
    check_space(out, sum(sizes.values()))
    for each, name in names.items():
        writer.add_tensor_info(
            name, weights.shape(each), np.dtype(np.float32), sizes[each], raw_dtype=types[each]
        )
    if factors is not None:
        writer.add_tensor_info(FACTORS, factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with progress("writing GGUF", len(names)) as bar:
        for each, name in names.items():
            tensor = converted(name, weights.read(each), config, kind)
            writer.write_tensor_data(packed(tensor, types[each], each))
            bar.advance()
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.flush()
    # The bytes reach the disk before the file gets its name.
    assert writer.fout is not None
    for file in writer.fout:
        os.fsync(file.fileno())


def _add_shape(writer: GGUFWriter, config: PreTrainedConfig, kind: Gguf) -> None:
    size = head_size(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(context_length(config, kind))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(key_value_heads(config))
    writer.add_key_length(size)
    writer.add_value_length(size)
    for key, source in kind.numbers.items():
        value = getattr(config, source, None) if isinstance(source, str) else source
        if value is not None:
            writer.add_float32(f"{kind.architecture}.{key}", value)
    if kind.windows != "none" and SLIDING in layer_types(config):
        writer.add_sliding_window(config.sliding_window)
        period = window_period(config)
        assert period is not None, "refused before"
        writer.add_sliding_window_pattern(period)
    scaling = rotation(config)
    writer.add_rope_dimension_count(int(size * scaling.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(scaling["rope_theta"])
    if local := config.rope_parameters.get(SLIDING):
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if scaling["rope_type"] not in SCALINGS:
        return
    writer.add_rope_scaling_type(SCALINGS[scaling["rope_type"]])
    writer.add_rope_scaling_factor(scaling["factor"])
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling.get("beta_fast") or 32.0)
        writer.add_rope_scaling_yarn_beta_slow(scaling.get("beta_slow") or 1.0)


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    # llama.cpp's words for SentencePiece and for BPE over bytes
    writer.add_tokenizer_model("llama" if vocabulary.scores else "gpt2")
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.adds_blank)
    else:
        writer.add_token_merges(vocabulary.merges)
    for role, index in vocabulary.special.items():
        getattr(writer, f"add_{role}_token_id")(index)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    if vocabulary.template:
        writer.add_chat_template(vocabulary.template)
