"""Tensors of a Hugging Face directory, whole or in slices, without reading the rest."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from anadil.artifacts.weight_files import (
    LENGTH_BYTES,
    StoredTensor,
    files_of,
    stored_tensors,
    write_weight_index,
)
from anadil.core.errors import IntegrityError
from anadil.core.progress import progress

DTYPES = {
    "I64": torch.int64, "F64": torch.float64, "F32": torch.float32, "I32": torch.int32,
    "BF16": torch.bfloat16, "F16": torch.float16, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
"""Precisions by safetensors' words, in the order in which a file holds them. Source: safetensors 0.8, `Dtype`."""


class SafetensorsFiles:
    """The weights of a directory; tensors are read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Look into the headers of all files of a local directory."""
        self.folder = folder
        self.stored = stored_tensors(folder)
        self._opened: dict[Path, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)  # file after file

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; raises as `read` does."""
        return self._place(name).shape

    def dtype(self, name: str) -> str:
        """Return the precision of a tensor in safetensors' words; raises as `read` does."""
        return self._place(name).dtype

    def read(self, name: str, offset: Sequence[int] | None = None, shape: Sequence[int] = ()) -> torch.Tensor:
        """Read a tensor in the precision of the file, or the block of a `shape` that begins at `offset`."""
        place = self._place(name)
        file = place.file
        try:
            # A model has thousands of tensors in a few files, so they stay open.
            if file not in self._opened:
                self._opened[file] = safe_open(file, framework="pt", device="cpu")
            if offset is None:
                whole: torch.Tensor = self._opened[file].get_tensor(place.name)
                return whole
            block: torch.Tensor = self._opened[file].get_slice(place.name)[
                tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))
            ]
        except SafetensorError as error:
            raise IntegrityError(
                f"{file}: damaged safetensors ({error}); fetch or make the model again"
            ) from None
        return block

    def _place(self, name: str) -> StoredTensor:
        if name not in self.stored:
            raise IntegrityError(
                f"{self.folder}: weights do not fit config.json (no tensor {name}); fetch or make the model again"
            )
        return self.stored[name]


def read_rows(tensor: StoredTensor, first: int = 0, count: int | None = None) -> torch.Tensor:
    """Read rows of a tensor in the precision of the file, all without `count`, into memory that the caller may change."""
    # A mapped file would count as memory of the process, page by page, until it is closed.
    num_rows, *others = tensor.shape or (1,)
    shape = (num_rows - first if count is None else count, *others) if tensor.shape else ()
    rows = torch.empty(shape, dtype=DTYPES[tensor.dtype])
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin + (tensor.end - tensor.begin) // max(num_rows, 1) * first)
        if file.readinto(rows.flatten().view(torch.uint8).numpy().data) != rows.nbytes:
            raise IntegrityError(f"{tensor.file}: has become shorter; fetch or make the model again")
    return rows


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

    `blocks` gives a tensor's values by its name, whole or in blocks of rows, which are rounded here. A tensor larger than
    `shard_bytes` has a file of its own.
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
        entries[name] = {"dtype": WORDS[layout.dtype][1], "shape": layout.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // ALIGNMENT) * ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _bytes(block: torch.Tensor, dtype: torch.dtype) -> memoryview:
    plain = block.detach().to(dtype=dtype, device="cpu").contiguous().flatten()
    return plain.view(torch.uint8).numpy().data
