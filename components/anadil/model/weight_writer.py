"""Writing of a model's weights as safetensors files, block by block: memory holds one block, whatever the model's size."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anadil.artifacts.weight_files import LENGTH_BYTES, files_of, write_weight_index
from anadil.core.progress import progress
from anadil.model.safetensors_files import DTYPES

SHARD_BYTES = 5 * 1000**3
"""Most bytes of tensors in a file. Source: the former default of transformers, `max_shard_size`."""
ALIGNMENT = 8
"""Bytes of which a header's length is a multiple. Source: safetensors, README."""
WORDS = {dtype: (place, word) for place, (word, dtype) in enumerate(DTYPES.items())}


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Precision and shape of a tensor in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_weights(
    out: Path,
    tensors: Mapping[str, TensorLayout],
    blocks: Callable[[str], Iterable[torch.Tensor]],
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, int]:
    """Write tensors in the order of their names' table, and the index of several files; return counts.

    Args:
        out: Directory of the files; it is made where it is missing.
        tensors: Layout of each tensor by its name in files.
        blocks: Gives a tensor's values by its name, whole or in blocks of rows; they are rounded here.
        shard_bytes: Most bytes of a file; a larger tensor has one of its own.
    """
    files = files_of({name: each.num_bytes for name, each in tensors.items()}, shard_bytes)
    out.mkdir(parents=True, exist_ok=True)
    with progress("writing the model", len(files)) as bar:
        for file, names in files.items():
            _write_file(out / file, {name: tensors[name] for name in names}, blocks)
            bar.advance()
    total = sum(each.num_bytes for each in tensors.values())
    write_weight_index(out, {name: file for file, names in files.items() for name in names}, total)
    return {"tensors": len(tensors), "bytes": total, "files": len(files)}


def _write_file(
    path: Path, tensors: Mapping[str, TensorLayout], blocks: Callable[[str], Iterable[torch.Tensor]]
) -> None:
    # safetensors' own writer takes a file's tensors all at once, 5 GB of them. The bytes here are those that it writes:
    # wide types first, then by name, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (WORDS[tensors[name].dtype][0], name))
    with path.open("wb") as file:
        file.write(_header(names, tensors))
        for name in names:
            written = sum(file.write(_bytes(block, tensors[name].dtype)) for block in blocks(name))
            assert written == tensors[name].num_bytes, f"{name}: {written:,} bytes of blocks"


def _header(names: Sequence[str], tensors: Mapping[str, TensorLayout]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in names:
        layout = tensors[name]
        end = begin + layout.num_bytes
        entries[name] = {
            "dtype": WORDS[layout.dtype][1],
            "shape": layout.shape,
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // ALIGNMENT) * ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _bytes(block: torch.Tensor, dtype: torch.dtype) -> memoryview:
    plain = block.detach().to(dtype=dtype, device="cpu").contiguous().flatten()
    return plain.view(torch.uint8).numpy().data
