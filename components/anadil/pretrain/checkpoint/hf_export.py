"""A checkpoint as a Hugging Face model directory, without the nodes that trained it."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig

from anadil.artifacts.base_model import model_config
from anadil.artifacts.uri import MANIFEST
from anadil.artifacts.weight_files import files_of, write_weight_index
from anadil.core.errors import DataError
from anadil.core.progress import progress
from anadil.encode.run import digest_of
from anadil.model.architecture import empty_model, read_config
from anadil.model.family_table import check_family, families
from anadil.model.load import copy_tokenizer, end_ids, load_tokenizer
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.model.spellings import write_both_spellings
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.dcp import VerifiedCheckpoint, read_tensors
from anadil.pretrain.checkpoint.generation_settings import clean_generation_settings
from anadil.pretrain.checkpoint.safe_metadata import read_metadata
from anadil.pretrain.state import State

SHARD_BYTES = 5 * 1000**3
"""Most bytes of tensors in a file. Source: the former default of transformers, `max_shard_size`."""


def open_checkpoint(path: Path) -> VerifiedCheckpoint:
    """Open a checkpoint of any run, with every byte compared with its manifest.

    Raises:
        DataError: There is none.
        IntegrityError: It is damaged, or was made to run code.
    """
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: no finished checkpoint there (no {MANIFEST}); give a step-N directory")
    manifest = directory.manifest_of(path)
    directory.verify_part(path, manifest)
    file = path / directory.STATE
    state = State.from_json(file.read_bytes(), str(file))
    return VerifiedCheckpoint(path=path, state=state, metadata=read_metadata(path, manifest.files))


def export_checkpoint(
    path: Path,
    base: Path,
    tokenizer: Path,
    out: Path,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, int]:
    """Write a directory that transformers 4 and 5 and vLLM load as it is; return its counts.

    A tensor larger than `shard_bytes` has a file of its own. Without `dtype` weights keep the type of training.

    Raises:
        DataError: There is no such checkpoint, or it is not of this base model and tokenizer.
        IntegrityError: It is damaged, or was made to run code.
        PreflightError: The base model is of a type that is not trained.
    """
    config = model_config(base)
    check_family(config, {})
    in_files = families()[config["model_type"]].names.in_files
    checkpoint = open_checkpoint(path)
    trained = directory.manifest_of(path).origin.get("input tokenizer")
    if trained is not None and trained != digest_of(tokenizer):
        raise DataError(f"{tokenizer}: is not the tokenizer that {path} was trained with; give that one")
    saved: dict[str, Any] = checkpoint.metadata.state_dict_metadata
    parameters = sorted(name for name in saved if " " not in name)
    sizes = {
        name: saved[name].size.numel() * (dtype or saved[name].properties.dtype).itemsize
        for name in parameters
    }
    files = files_of(sizes, shard_bytes)
    out.mkdir(parents=True, exist_ok=True)
    _write_config(saved, base, tokenizer, out, dtype)
    constants = {
        in_files(name): tensor.to(dtype or tensor.dtype) for name, tensor in _constants(base).items()
    }
    places, total = {}, 0
    with progress("exporting", len(files)) as shown:
        # One file at a time: the model never has to fit into memory as a whole.
        for file, names in files.items():
            tensors = constants if file == [*files][-1] else {}
            for name in names:
                # Converted one by one: a file of FP32 and its BF16 are three times what is written.
                tensor = torch.empty(saved[name].size, dtype=saved[name].properties.dtype)
                read_tensors(checkpoint, {name: tensor}, None)
                tensors[in_files(name)] = tensor.to(dtype or tensor.dtype)
            save_file(tensors, out / file, metadata={"format": "pt"})
            # safetensors writes 0600, which a server under another user cannot read
            (out / file).chmod(0o644)
            total += sum(tensor.nbytes for tensor in tensors.values())
            places.update(dict.fromkeys(tensors, file))
            shown.advance()
    write_weight_index(out, places, total)
    clean_generation_settings(out, tokenizer)
    copy_tokenizer(tokenizer, out)
    return {"step": checkpoint.state.step, "tensors": len(places), "bytes": total, "files": len(files)}


def _constants(base: Path) -> dict[str, torch.Tensor]:
    """Tensors that the base's files hold and no step trains, such as an activation's constants."""
    model, weights = empty_model(base), SafetensorsFiles(base)
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
    inputs, outputs = families()[config.model_type].names.tables
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
    used = load_tokenizer(tokenizer)
    ends = end_ids(used)
    config.architectures = config.architectures or [type(empty_model(base)).__name__]
    config.vocab_size = rows
    config.tie_word_embeddings = outputs not in tensors
    config.dtype = dtype or tensors[inputs].properties.dtype
    config.bos_token_id = used.bos_token_id
    config.eos_token_id = ends[0] if ends else None
    config.pad_token_id = used.pad_token_id
    config.use_cache = True
    config.save_pretrained(out)
    write_both_spellings(out / "config.json")
    generating: Any = GenerationConfig.from_model_config(config)
    if (base / "generation_config.json").is_file():
        generating = GenerationConfig.from_pretrained(base, local_files_only=True)
    generating.bos_token_id = used.bos_token_id
    generating.eos_token_id = ends or None
    generating.pad_token_id = used.pad_token_id
    generating.save_pretrained(out)
