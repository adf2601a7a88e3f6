"""Weights of a Hugging Face directory: their files, headers, and places of new ones.

Whoever loads, plans, merges, exports or checks a model asks here, so that all read the same files. Nothing here imports
torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts.text_part import NAMES, text_name, wrapper_of
from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import MIB
from anadil.core.json_text import parse_json

ALONE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Ends of weight files that run code when they are loaded."""
FLOATS = ("F64", "F32", "F16", "BF16")
BYTES = dict(zip(FLOATS, (8, 4, 2, 2), strict=True))
"""Types of weights that are numbers by themselves; those of fewer bits need scales, or another model's word for them."""
LENGTH_BYTES, MAX_HEADER_BYTES = 8, 100_000_000
"""Length of the header that begins a safetensors file, and the longest that is read. Source: safetensors, README."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor as the header of its file describes it."""

    file: Path
    name: str
    """In the file."""
    dtype: str
    """In safetensors' words, such as BF16."""
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    end: int


def has_weights(folder: Path) -> bool:
    """Return whether a directory names weights; one with a config alone can be planned."""
    return (folder / ALONE).is_file() or (folder / INDEX).is_file()


def weight_files(folder: Path) -> list[Path]:
    """The files that make the model: `model.safetensors`, or those that the index names."""
    names = sorted(set(_weight_map(folder).values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise IntegrityError(
            f"{folder}: {len(missing)} of {len(names)} files of weights are missing, the first is {missing[0]}; "
            "fetch the model again"
        )
    if not (folder / ALONE).is_file():
        return [folder / name for name in names] or _no_weights(folder)
    if names and names != [ALONE]:
        # transformers takes the one file, vLLM and others the index.
        raise IntegrityError(
            f"{folder}: holds two sets of weights, {ALONE} and those of {INDEX} ({names[0]}); remove the one that is "
            "left over"
        )
    return [folder / ALONE]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a directory's text model by name, out of the headers of its files."""
    tensors = all_tensors(folder)
    if not (wrapper := wrapper_of(folder)):
        return tensors
    of_text: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        key = text_name(name)
        if key in of_text:
            raise IntegrityError(f"{folder}: {of_text[key].name} and {name} are one tensor, remove one")
        if key:
            of_text[key] = tensor
    if not of_text:
        raise IntegrityError(
            f"{folder}: holds no tensors of the text model ({', '.join(NAMES)}), which {wrapper} has, fetch the model again"
        )
    return of_text


def outside_text(folder: Path) -> list[str]:
    """Names of tensors that are no part of a directory's text model, in the order of its files."""
    return [name for name in all_tensors(folder) if not text_name(name)] if wrapper_of(folder) else []


def all_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a directory by their names in its files."""
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise IntegrityError(
                    f"{folder}: {name} lies in {tensors[name].file.name} and in {file.name}; fetch the model again"
                )
            tensors[name] = tensor
    if lost := sorted(set(_weight_map(folder)) - set(tensors)):
        raise IntegrityError(
            f"{folder}: {INDEX} names {len(lost)} tensors that no file holds, the first {lost[0]}; fetch the model again"
        )
    return tensors


def unindexed(folder: Path, tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Tensors of a directory that its index does not name; none where it has no index."""
    named = _weight_map(folder)
    return [name for name, each in tensors.items() if each.name not in named] if named else []


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, which must be as long as its header says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        text = stream.read(length) if length <= MAX_HEADER_BYTES else b""
    start = LENGTH_BYTES + length
    try:
        entries = {name: entry for name, entry in parse_json(text).items() if name != "__metadata__"}
        tensors = {
            name: StoredTensor(
                file=file,
                name=name,
                dtype=str(entry["dtype"]),
                shape=tuple(entry["shape"]),
                begin=start + entry["data_offsets"][0],
                end=start + entry["data_offsets"][1],
            )
            for name, entry in entries.items()
        }
        if any(
            math.prod(each.shape) * BYTES[each.dtype] != each.end - each.begin
            for each in tensors.values()
            if each.dtype in BYTES
        ):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise IntegrityError(
            f"{file}: has {size:,} bytes, and no header of safetensors; fetch the model again"
        ) from None
    expected = max((tensor.end for tensor in tensors.values()), default=start)
    if size != expected:
        raise IntegrityError(
            f"{file}: has {size:,} bytes, not the {expected:,} that its header says; fetch the model again"
        )
    return tensors


def holds_own_head(tensors: Mapping[str, StoredTensor], tables: tuple[str, str]) -> bool:
    """Return whether the files hold an output table that is not the input table, whatever config.json says."""
    inputs, head = (tensors.get(name) for name in tables)
    return inputs is not None and head is not None and not _same(inputs, head)


def files_of(sizes: Mapping[str, int], max_bytes: int) -> dict[str, list[str]]:
    """Name of each file -> names of its tensors, in order; a tensor of more than `max_bytes` has a file of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {ALONE: shards[0]}
    return {
        f"model-{number:05}-of-{len(shards):05}.safetensors": names for number, names in enumerate(shards, 1)
    }


def write_weight_index(out: Path, places: Mapping[str, str], total_bytes: int) -> None:
    """Write which file holds which tensor; a model of one file needs none."""
    if len(set(places.values())) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
        (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / INDEX
    if not index.is_file():
        return {}
    try:
        content = parse_json(index.read_text(encoding="utf-8"))
        places: dict[Any, Any] = dict(content["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{index}: is not an index of safetensors files ({error!r}); fetch the model again"
        ) from None
    if not isinstance(content.get("metadata"), dict) and not (folder / ALONE).is_file():
        raise IntegrityError(
            f'{index}: has no `metadata`, without which transformers does not read it; add "metadata": {{}} to it'
        )
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise IntegrityError(
                f"{index}: names {name!r}, which is not a safetensors file beside it; do not use this model"
            )
    return places


def _no_weights(folder: Path) -> list[Path]:
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if pickled:
        raise IntegrityError(
            f"{folder}/{pickled[0]}: pickled weights can run code and are not loaded; convert to safetensors"
        )
    raise DataError(f"{folder}: no {ALONE} or {INDEX}; give a whole Hugging Face model directory")


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.begin)
        second.seek(other.begin)
        left = one.end - one.begin
        while left:
            pieces = [stream.read(min(left, 16 * MIB)) for stream in (first, second)]
            if pieces[0] != pieces[1] or not pieces[0]:
                return False
            left -= len(pieces[0])
    return True
