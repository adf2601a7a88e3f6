"""Write a model as one GGUF file for llama.cpp, Ollama and LM Studio, a tensor at a time.

Source: llama.cpp, folder `conversion`; names are those of the package gguf, gguf-py/gguf/tensor_mapping.py.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anadil.artifacts.base_kind import stored_template
from anadil.artifacts.local_directory import check_space
from anadil.core.errors import DataError, PreflightError
from anadil.core.progress import progress
from anadil.model.architecture import check_fit, read_config
from anadil.model.chat_template import end_ids, turn_begin, turn_end
from anadil.model.family import Gguf, ModuleNames
from anadil.model.gguf_layers import FULL, SLIDING, layer_period, layer_types, of_kind
from anadil.model.load import load_tokenizer
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.release.export import gguf_refusal
from anadil.text.pieces import BYTE_TOKENS, adds_blank, is_of_pieces

log = logging.getLogger(__name__)

PADDING = "[PAD{}]"
"""Text of a row of the embedding that no token has, by its id. Source: llama.cpp, convert_hf_to_gguf.py."""
PRECISIONS: Mapping[str, Type] = MappingProxyType(
    {"fp32": Type.F32, "fp16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
)
KINDS: Mapping[type, GGUFValueType] = MappingProxyType(
    {
        int: GGUFValueType.UINT32,
        float: GGUFValueType.FLOAT32,
        str: GGUFValueType.STRING,
        list: GGUFValueType.ARRAY,
    }
)
QUANTIZATION_VERSION = 2
"""Version of quantized blocks. Source: llama.cpp, ggml/include/ggml.h, GGML_QNT_VERSION."""
HEAD = ModuleNames().tables[1]
ENTRY = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.weight")
"""Name of a matrix of one expert."""
DIVIDED = ("llama3", "proportional")
"""Scalings of the rotation that are written as a divisor for each pair of a head."""
RENAMED = {"dt_bias": "dt_proj.bias", "layer_scalar": "layer_scalar.weight"}
"""Ends of names -> what the package gguf calls them."""
CONSTANTS = (".rotary_emb.inv_freq",)
"""Ends of names of constants in old files, which are recomputed."""
TORCH = MappingProxyType({Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16})
# Numbers that share a scale in Q8_0; rows of other widths stay in FP16, as in llama.cpp's own converter.
BLOCK = 32
# Rows that are quantized at a time, as numpy needs several times their bytes.
ROWS = 4_096


IN_FP32 = re.compile(r"\.(ffn_gate_inp|ssm_conv1d|shortconv\.conv)\.")
"""Names of what llama.cpp keeps in FP32: what chooses experts, and convolutions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer in the fields of GGUF."""

    tokens: Sequence[str]
    """Byte symbols of ordinary tokens and the text of added ones, by id."""
    types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    """Scores by id; only for SentencePiece's kind."""
    adds_blank: bool
    """A text gets a space in front; only for SentencePiece's kind."""
    pre_tokenizer: str
    adds_bos: bool
    adds_eos: bool
    special: Mapping[str, int]
    """`bos`, `eos`, `eot`, `pad` or `unk` -> id; `eot` ends a turn of a chat."""
    template: str | None


def read_vocabulary(directory: Path, rows: int) -> Vocabulary:
    """The vocabulary of a model's directory without `gguf_refusal`."""
    file = directory / "tokenizer.json"
    tokenizer = gguf_refusal.read_tokenizer(directory)
    if note := gguf_refusal.gguf_note(tokenizer):
        log.warning("%s: %s", file, note)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    tokens, types = _tokens(file, tokenizer, content, rows)
    pieces = is_of_pieces(content)
    score = gguf_refusal.scores(content["model"]) if pieces else {}
    before, after = gguf_refusal.frame(tokenizer)
    special = gguf_refusal.special_ids(directory, tokenizer)
    # Beside EOS, GGUF has a key for the end of a turn, and one for one more.
    eos = special.get("eos")
    loaded: Any = load_tokenizer(directory)
    turn = loaded.get_vocab().get(turn_end(loaded))
    turns = [each for each in dict.fromkeys([turn, *end_ids(loaded, directory)]) if each not in (None, eos)]
    # llama.cpp takes EOS for an end whatever else a file names.
    roles = dict(
        zip(("eot", "eom"), [turn, *turns[turn in turns :]] if turn is not None else turns, strict=False)
    )
    if lost := set(turns) - set(roles.values()):
        log.warning(
            "%s: GGUF names three ends of a text, and it has %d more: %s; set them as stop words where it is served",
            directory, len(lost), ", ".join(loaded.convert_ids_to_tokens(sorted(lost))),
        )  # fmt: skip
    special |= roles
    return Vocabulary(
        tokens=tokens, types=types, merges=[] if pieces else list(map(" ".join, content["model"]["merges"])),
        scores=[score.get(token, 0.0) for token in tokens] if pieces else [],
        adds_blank=pieces and adds_blank(content), pre_tokenizer=gguf_refusal.gguf_name(content),
        adds_bos=bool(before) and _chats_begin_with(str(tokenizer.id_to_token(before[0])), directory),
        adds_eos=bool(after), special=special, template=stored_template(directory),
    )  # fmt: skip


def _chats_begin_with(token: str, directory: Path) -> bool:
    """Return True if llama.cpp may set a token before every prompt, of a text and of a chat alike."""
    begin = turn_begin(load_tokenizer(directory))
    if begin in ("", token):
        return True
    log.info(
        "%s: its chats begin with %s, so the file asks for no %s before a prompt. Write it before a plain text yourself",
        directory, begin, token,
    )  # fmt: skip
    return False


def _tokens(file: Path, tokenizer: Tokenizer, content: Any, rows: int) -> tuple[list[str], list[int]]:
    """Text and type of each row of the embedding."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = {each["content"]: each for each in content.get("added_tokens", ())}
    single = BYTE_TOKENS if is_of_pieces(content) else {}
    names, types = [PADDING.format(index) for index in range(rows)], [int(TokenType.UNUSED)] * rows
    tokens = [f"[{name}]" if name in vocab else name for name in names]  # llama.cpp ends where two are equal
    for text, index in vocab.items():
        if index >= rows:
            raise DataError(
                f"{file}: {text!r} has id {index}, and the model's embedding has {rows} rows; give the tokenizer that "
                "the model was trained with"
            )
        tokens[index] = text
        kind = TokenType.BYTE if text in single else TokenType.NORMAL
        if text in added and text not in single:
            kind = TokenType.CONTROL if added[text]["special"] else TokenType.USER_DEFINED
        types[index] = int(kind)
    return tokens, types


def write_gguf(directory: Path, out: Path, *, name: str, precision: str | None = None) -> bool:
    """Write a model's directory as a GGUF file.

    Returns:
        True if the file says that BOS is put before a text.
    """
    gguf_refusal.check_gguf(directory)
    check_fit(directory)
    config = read_config(directory)
    vocabulary = read_vocabulary(directory, config.vocab_size)
    kind = gguf_refusal.gguf_family(config)
    assert kind is not None, "refused before"
    weights = StackedFiles(directory)
    names = gguf_names(weights, config, kind)
    requested = PRECISIONS[precision] if precision else None
    types = {
        each: gguf_type(name, weights.shape(each), weights.dtype(each), requested)
        for each, name in names.items()
    }
    writer = GGUFWriter(out, kind.architecture)
    try:
        writer.add_name(name)
        stored = types["model.embed_tokens.weight"].name
        writer.add_file_type(LlamaFileType["ALL_F32" if stored == "F32" else f"MOSTLY_{stored}"])
        writer.add_quantization_version(QUANTIZATION_VERSION)
        # Layers may differ in the width of their MLPs.
        columns = {name: weights.shape(each)[-1] for each, name in names.items()}
        layers = [f"blk.{layer}.ffn_down.weight" for layer in range(config.num_hidden_layers)]
        widths = [columns.get(name, getattr(config, "intermediate_size", None)) for name in layers]
        for key, value in _shape(config, kind, widths if len({*widths}) > 1 else widths[0]).items():
            if value is not None:
                writer.add_key_value(f"{kind.architecture}.{key}", value, KINDS[type(value)])
        _add_vocabulary(writer, vocabulary)
        _write_tensors(writer, weights, names, types, config, kind, out)
    finally:
        writer.close()
    return vocabulary.adds_bos


def _write_tensors(
    writer: GGUFWriter, weights: SafetensorsFiles, names: Mapping[str, str], types: Mapping[str, Type],
    config: PreTrainedConfig, kind: Gguf, out: Path,
) -> None:  # fmt: skip
    scaling = gguf_refusal.rotation(config)
    factors = frequency_divisors(config, scaling) if scaling["rope_type"] in DIVIDED else None
    sizes = {each: num_bytes(weights.shape(each), types[each]) for each in names}
    check_space(out, sum(sizes.values()))
    for each, name in names.items():
        writer.add_tensor_info(
            name, gguf_shape(weights.shape(each)), np.dtype(np.float32), sizes[each], raw_dtype=types[each]
        )
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
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


def _shape(config: PreTrainedConfig, kind: Gguf, mlp: object) -> dict[str, Any]:
    """Keys of GGUF behind the architecture's name, for all but the tokenizer."""
    size = gguf_refusal.head_size(config)
    scaling, by_layer = gguf_refusal.rotation(config), kind.windows == "own_head"
    keys: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": gguf_refusal.context_length(config, kind),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": mlp,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": gguf_refusal.key_value_heads(config),
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size if by_layer else int(size * scaling.get("partial_rotary_factor", 1)),
        "rope.freq_base": float(scaling["rope_theta"]),
    }
    if kind.windows != "none" and SLIDING in (types := layer_types(config)):
        keys["attention.sliding_window"] = config.sliding_window
        period = [each == SLIDING for each in types] if by_layer else layer_period(config)
        keys["attention.sliding_window_pattern"] = period
    if by_layer:
        widths = ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa")
        keys |= dict.fromkeys(widths, of_kind(config, SLIDING).head_dim)
    if local := config.rope_parameters.get(SLIDING):
        keys["rope.freq_base_swa"] = float(local["rope_theta"])
    if scaling["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": float(scaling["factor"])}
    if scaling["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.original_context_length": int(scaling["original_max_position_embeddings"]),
            "rope.scaling.yarn_beta_fast": float(scaling.get("beta_fast") or 32),
            "rope.scaling.yarn_beta_slow": float(scaling.get("beta_slow") or 1),
        }
    for key, of in kind.numbers.items():
        number = getattr(config, of, scaling.get(of)) if isinstance(of, str) else of
        # 0 switches off, where a file without the key gets llama.cpp's own number.
        keys[key] = float(number or 0)
    return keys | {
        key: getattr(config, of) if isinstance(of, str) else of(config) for key, of in kind.counts.items()
    }


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


class StackedFiles(SafetensorsFiles):
    """The weights of a directory, with one tensor for a matrix of all experts of a layer."""

    def __init__(self, folder: Path) -> None:
        """Look into the headers of all files of a local directory."""
        super().__init__(folder)
        self._stacks: dict[str, list[str]] = {}
        for entry in filter(None, map(ENTRY.fullmatch, self.stored)):
            self._stacks.setdefault(f"{entry[1]}{entry[3]}.weight", []).append(entry[0])
        for name, entries in self._stacks.items():
            entries.sort(key=lambda each: int(ENTRY.fullmatch(each)[2]))  # type: ignore[index]  # each did match
            first = self.stored[entries[0]]
            self.stored[name] = replace(first, shape=(len(entries), *first.shape))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.stored if not ENTRY.fullmatch(name))

    def read(self, name: str, offset: Sequence[int] | None = None, shape: Sequence[int] = ()) -> torch.Tensor:
        """Read a tensor as `SafetensorsFiles.read` does, or a whole stack."""
        if name not in self._stacks:
            return super().read(name, offset, shape)
        return torch.stack([super(StackedFiles, self).read(each) for each in self._stacks[name]])


def gguf_names(weights: SafetensorsFiles, config: PreTrainedConfig, kind: Gguf) -> dict[str, str]:
    """Name of every tensor -> its name in GGUF."""
    number = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    gguf_name_of: dict[str, str] = {}
    for name in weights:
        if name.endswith(CONSTANTS) or (config.tie_word_embeddings and name == HEAD):
            continue  # without an output llama.cpp takes the embedding
        *parents, last = name.split(".")
        ours = names.get_name(
            ".".join([*parents, RENAMED.get(last, last)]), try_suffixes=(".weight", ".bias")
        )
        if ours is None:
            raise PreflightError(
                f"{weights.folder}: llama.cpp's {kind.architecture} has no place for {name}; export with --format hf, and "
                "serve it with vLLM"
            )
        gguf_name_of[name] = ours
    return gguf_name_of


def gguf_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a tensor in the file, where a convolution of each channel has no axis of one input."""
    return (shape[0], shape[2]) if len(shape) == 3 and shape[1] == 1 else shape


def gguf_type(name: str, shape: tuple[int, ...], stored: str, requested: Type | None) -> Type:
    """Precision of a tensor in the file."""
    if len(shape) == 1 or IN_FP32.search(name):  # norms and biases are small
        return Type.F32
    if requested is Type.Q8_0 and shape[-1] % BLOCK:
        return Type.F16
    same = Type[stored] if stored in ("F16", "BF16") else Type.F32  # safetensors' names
    return same if requested is None else requested  # F32 is 0


def num_bytes(shape: tuple[int, ...], kind: Type) -> int:
    """Bytes of a tensor in the file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def packed(tensor: torch.Tensor, kind: Type, name: str) -> NDArray[Any]:
    """A tensor's bytes in a precision of GGUF."""
    if kind is Type.Q8_0:
        tensor = tensor.flatten(end_dim=-2)
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
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if kind.norm_offset and part.endswith("norm") and part != "ssm_norm":
        tensor = tensor.float() + kind.norm_offset
    if part == "ssm_a":
        tensor = -tensor.float().exp()
    if part in kind.value_heads:
        tensor = by_turns(part, tensor, config)
    if part == kind.queries and (scalar := getattr(config, "query_pre_attn_scalar", None)):
        # Square of llama.cpp's divisor of queries. Source: llama.cpp, src/models/gemma3.cpp: it knows the 27B by its layers.
        is_27b = config.num_hidden_layers == kind.widest
        width = config.hidden_size / config.num_attention_heads if is_27b else gguf_refusal.head_size(config)
        tensor = tensor * math.sqrt(width / scalar)
    heads = {"attn_q": config.num_attention_heads, "attn_k": gguf_refusal.key_value_heads(config)}
    if not kind.turns_neighbours or part not in heads:
        return tensor
    pairs = tensor.reshape(heads[part], 2, tensor.shape[0] // heads[part] // 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def by_turns(part: str, tensor: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Heads of values, one of each head of keys in turn. transformers has all of a head of keys together."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    axis = int(part == "ssm_out")
    rows = tensor.movedim(axis, 0)
    values = rows[-heads * config.linear_value_head_dim :]  # all of those with one row for a head
    turned = (
        values.reshape(groups, heads // groups, -1, *values.shape[1:]).transpose(0, 1).reshape(values.shape)
    )
    return torch.cat([rows[: -len(values)], turned]).movedim(0, axis)


def frequency_divisors(config: PreTrainedConfig, scaling: Mapping[str, Any]) -> NDArray[np.float32]:
    """Unscaled frequencies over scaled ones, shape (head / 2,)."""
    kind = {"layer_type": FULL} if FULL in config.rope_parameters else {}
    scaled, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", **kind)
    size = gguf_refusal.head_size(config)
    whole = 1.0 / scaling["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    divisors: NDArray[np.float32] = (whole / scaled).clamp(max=1e30).numpy()  # which turns by nothing
    return divisors
