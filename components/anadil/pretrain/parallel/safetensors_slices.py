"""Slices of the tensors in a Hugging Face directory, without reading the rest."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from anadil.core.errors import DataError, IntegrityError
from anadil.model.weight_files import INDEX

ALONE = "model.safetensors"


class SafetensorsFiles:
    """The safetensors files of a directory; tensors are read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Open all files of a local directory.

        Raises:
            DataError: It holds no safetensors weights.
            IntegrityError: A file is damaged, not there, or not in the directory.
        """
        self.folder = folder
        self._slices: dict[str, Any] = {}
        for file in _files(folder):
            try:
                opened: Any = safe_open(file, framework="pt", device="cpu")
                self._slices.update({name: opened.get_slice(name) for name in opened.keys()})  # noqa: SIM118  no mapping
            except FileNotFoundError:
                raise IntegrityError(
                    f"{file}: named by {INDEX}, but not there; fetch the model again"
                ) from None
            except SafetensorError as error:
                raise IntegrityError(
                    f"{file}: damaged safetensors ({error}); fetch or make the model again"
                ) from None

    def __contains__(self, name: object) -> bool:
        """Whether a file holds the tensor."""
        return name in self._slices

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            IntegrityError: There is no such tensor.
        """
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """A block of a tensor, in the precision of the file.

        Args:
            name: Name in the file.
            offset: Where the block begins, by dimension.
            shape: Of the block.

        Raises:
            IntegrityError: There is no such tensor.
        """
        block: torch.Tensor = self._slice(name)[
            tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))
        ]
        return block

    def _slice(self, name: str) -> Any:
        if name not in self._slices:
            raise IntegrityError(
                f"{self.folder}: weights do not fit config.json (no tensor {name}); fetch or make the model again"
            )
        return self._slices[name]


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        if not (folder / ALONE).is_file():
            raise DataError(f"{folder}: no {ALONE} or {INDEX}; give a whole Hugging Face model directory")
        return [folder / ALONE]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise IntegrityError(f"{index}: is no index of safetensors files; fetch the model again") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise IntegrityError(
                f"{index}: names {name}, which is no safetensors file beside it; do not use it"
            )
    return [folder / name for name in names]
