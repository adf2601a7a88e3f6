"""A checkpoint as a Hugging Face model directory, without the nodes that trained it."""

import json
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.artifacts.base_vocabulary import read_embedding_map
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import DataError
from anadil.core.json_text import write_indented
from anadil.model.architecture import empty_model, read_config
from anadil.model.family_table import check_family, families
from anadil.model.load import save_settings
from anadil.model.mxfp4 import unpacked_tensors
from anadil.model.safetensors_files import SHARD_BYTES, SafetensorsFiles, TensorLayout, write_weights
from anadil.model.tensor_names import Part, in_files, names_in_model, parts_of, written_names
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.dcp import VerifiedCheckpoint, read_metadata, read_tensors
from anadil.pretrain.state import State

log = logging.getLogger(__name__)


def open_checkpoint(path: Path) -> VerifiedCheckpoint:
    """Open a checkpoint of any run, with every byte compared with its manifest."""
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: no finished checkpoint there (no {MANIFEST}); give a step-N directory")
    manifest = directory.manifest_of(path)
    directory.verify_part(path, manifest)
    file = path / directory.STATE
    state = State.from_json(file.read_bytes(), str(file))
    return VerifiedCheckpoint(path=path, state=state, metadata=read_metadata(path, manifest.files))


def export_checkpoints(
    paths: Sequence[Path], base: Path, tokenizer: Path, out: Path, *, dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, int]:  # fmt: skip
    """Write a directory that transformers 4 and 5 and vLLM load as it is: one checkpoint, or the mean of several; return its counts.

    A tensor larger than `shard_bytes` has a file of its own. Without `dtype` weights keep the type of training.

    Source: a mean of checkpoints, LAWA, arXiv:2306.03241.
    """
    check_family(model_config(base), {})
    checkpoints = [open_checkpoint(path) for path in paths]
    for path in paths:
        trained = directory.manifest_of(path).origin.get("input tokenizer")
        if trained is not None and trained != artifact.digest_of(tokenizer):
            raise DataError(f"{tokenizer}: is not the tokenizer that {path} was trained with; give that one")
    out.mkdir(parents=True, exist_ok=True)
    _write_config(checkpoints[0].metadata.state_dict_metadata, base, tokenizer, out, dtype)
    counts = _write_mean(checkpoints, base, out, dtype, shard_bytes)
    clean_generation_settings(out, tokenizer)
    return {"step": checkpoints[-1].state.step, **counts}


def _write_mean(
    checkpoints: Sequence[VerifiedCheckpoint], base: Path, out: Path, dtype: torch.dtype | None,
    shard_bytes: int,
) -> dict[str, int]:  # fmt: skip
    """Write the mean of checkpoints, tensor by tensor: a model never has to fit into memory as a whole."""
    model: Any = empty_model(base)
    kind, stored = model.config.model_type, unpacked_tensors(base)
    names = names_in_model(stored, model)
    entries = {names[name]: each for name, each in stored.items()}
    parts = parts_of(entries, model)
    of_base = written_names(names)
    saved: dict[str, Any] = checkpoints[0].metadata.state_dict_metadata
    # Name in files -> the checkpoint's tensor, and which part of it.
    places: dict[str, tuple[str, Part]] = {}
    for name in sorted(each for each in saved if " " not in each):
        for part in parts.get(name, [Part(stored=name)]):
            places[of_base.get(part.stored) or in_files(part.stored, kind)] = name, part
    constants = {of_base[name]: tensor for name, tensor in _constants(model, base).items()}
    layout = {
        each: TensorLayout(
            dtype or saved[name].properties.dtype,
            tuple(saved[name].size) if part.rows is None else entries[part.stored].shape,
        )
        for each, (name, part) in places.items()
    }
    layout |= {
        each: TensorLayout(dtype or tensor.dtype, tuple(tensor.shape)) for each, tensor in constants.items()
    }
    # A layer's experts lie one after another in a file, out of two stacks.
    mean = lru_cache(maxsize=2)(partial(_mean, checkpoints))

    def tensors(stored: str) -> list[torch.Tensor]:
        if stored in constants:
            return [constants[stored]]
        name, part = places[stored]
        return [_mean(checkpoints, name) if part.rows is None else part.of(mean(name))]

    return write_weights(out, layout, tensors, shard_bytes)


def _mean(checkpoints: Sequence[VerifiedCheckpoint], name: str) -> torch.Tensor:
    """Read a tensor of one checkpoint as it is; the mean of several is summed in FP64, in the order of their steps."""
    total: torch.Tensor | None = None
    for checkpoint in checkpoints:
        saved: Any = checkpoint.metadata.state_dict_metadata[name]
        tensor = torch.empty(saved.size, dtype=saved.properties.dtype)
        read_tensors(checkpoint, {name: tensor}, None)
        if not checkpoints[1:]:
            return tensor
        # In FP32 the mean of equal numbers may be another number, and a row that no step trained would move.
        total = tensor.double() if total is None else total.add_(tensor)
    assert total is not None
    return total.div_(len(checkpoints)).float()


def _constants(model: PreTrainedModel, base: Path) -> dict[str, torch.Tensor]:
    """Tensors that the base's files hold and no step trains, such as an activation's constants."""
    weights = SafetensorsFiles(base)
    trained = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: weights.read(name, [0] * buffer.dim(), buffer.shape)
        for name, buffer in model.state_dict().items()
        if name not in trained and name in weights
    }


def _write_config(
    tensors: dict[str, Any], base: Path, tokenizer: Path, out: Path, dtype: torch.dtype | None
) -> None:
    """Write the base's config with the vocabulary of the checkpoint and the special tokens of the tokenizer."""
    config = read_config(base)
    family = families()[config.model_type]
    inputs, outputs = family.names.tables
    if inputs not in tensors:
        raise DataError(
            f"{base}: the checkpoint holds no {inputs}; give the base model that it was trained from"
        )
    rows, width = tensors[inputs].size
    if width != config.hidden_size:
        raise DataError(
            f"{base}: hidden size {config.hidden_size}, and the checkpoint has {width}; "
            "give the base model that it was trained from"
        )
    config.architectures = config.architectures or [type(empty_model(base)).__name__]
    config.vocab_size = rows
    if (more := family.layer_tables) and more.name in tensors:
        setattr(config, more.rows, tensors[more.name].size[0])
    config.tie_word_embeddings = outputs not in tensors
    config.dtype = dtype or tensors[inputs].properties.dtype
    save_settings(base, out, config, tokenizer)


FILE, MAP = "generation_config.json", "embedding_map.json"
LISTED = ("suppress_tokens", "begin_suppress_tokens")
"""Ids, each for itself."""
SINGLE = ("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id")
SEQUENCES = ("bad_words_ids", "force_words_ids")
"""Lists of ids, or of such lists."""
ID_AT = {"forced_decoder_ids": 1, "sequence_bias": 0}
"""Pairs of a place and an id; pairs of ids and a number. Source: transformers' GenerationConfig."""
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def clean_generation_settings(folder: Path, tokenizer: Path) -> None:
    """Remove settings that name tokens by ids that they no longer have from the generation_config.json in `folder`."""
    # Ids are not renumbered: what the base wrote with one token, a new vocabulary writes with others.
    file = folder / FILE
    settings: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    sampling = ", ".join(f"{key} {settings[key]}" for key in SAMPLING if settings.get(key) is not None)
    if sampling:
        log.info("%s: the base's sampling is kept: %s", FILE, sampling)
    rows = read_embedding_map(tokenizer)[0] if (tokenizer / MAP).is_file() else None
    if rows is None:
        return
    same = {index for index, row in enumerate(rows) if row == [index]}
    valid = {key: _valid(key, value, same) for key, value in settings.items()}
    lost = sorted(key for key in valid if valid[key] != settings[key])
    if lost:
        log.warning(
            "%s: %s named tokens by ids that they no longer have; these are removed", FILE, ", ".join(lost)
        )
    valid = {key: value for key, value in valid.items() if value not in (None, [])}
    write_indented(file, valid, 2)


def _valid(key: str, value: object, same: AbstractSet[int]) -> object:
    """Return the value of a key without the ids of other tokens, and the lists that hold one."""
    if key in SINGLE:
        return value if _are(value, same) else None
    if key in (*LISTED, *SEQUENCES) and isinstance(value, list):
        return [each for each in value if _are(each, same)]
    if key in ID_AT and isinstance(value, list):
        return [pair for pair in value if _are(pair[ID_AT[key]], same)]
    return value


def _are(ids: object, same: AbstractSet[int]) -> bool:
    return all(_are(each, same) for each in ids) if isinstance(ids, list) else ids in same
