"""Tensors of a Hugging Face directory, whole or in slices, without reading the rest."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from anadil.artifacts.weight_files import StoredTensor, stored_tensors
from anadil.core.errors import IntegrityError

DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
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
        file = self._place(name).file
        try:
            # A model has thousands of tensors in a few files, so they stay open.
            if file not in self._opened:
                self._opened[file] = safe_open(file, framework="pt", device="cpu")
            if offset is None:
                whole: torch.Tensor = self._opened[file].get_tensor(name)
                return whole
            block: torch.Tensor = self._opened[file].get_slice(name)[
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
