"""One model of a merge: its tensors by their names in the model, read in FP32, some rows at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anadil.artifacts.weight_files import StoredTensor, stored_tensors
from anadil.core.errors import DataError
from anadil.model.architecture import as_in_model, check_fit, empty_model, read_config
from anadil.model.family_table import families
from anadil.model.safetensors_files import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """A Hugging Face directory whose files were compared with its config.json."""

    name: str
    """Recipe key that names it, for messages."""
    folder: Path
    config: Any
    tensors: Mapping[str, StoredTensor]
    trained: frozenset[str]
    """Names of parameters; tied ones count once. Other tensors are constants."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Parameters with one row for each token: the input table, and the output table where it is not the same."""
        names = families()[self.config.model_type].names.tables
        return tuple(name for name in names if name in self.trained)

    @property
    def num_tokens(self) -> int:
        """Rows of a table."""
        return self.tensors[self.tables[0]].shape[0]

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Read rows of a tensor in FP32; those behind a table's end are 0."""
        tensor = self.tensors[name]
        present = max(0, min(count, (tensor.shape or (1,))[0] - first))
        rows = read_rows(tensor, first, present).float()
        if present == count:
            return rows
        padded = torch.zeros(count, *tensor.shape[1:])
        padded[:present] = rows
        return padded


def open_weights(folder: Path, name: str) -> ModelWeights:
    """Open the weights of a directory; nothing but headers is read."""
    check_fit(folder)
    config = read_config(folder)
    if config.model_type not in families():
        raise DataError(
            f"{name}: {folder} is of type {config.model_type!r}, which is not merged; take one of "
            f"{', '.join(sorted(families()))}"
        )
    model: Any = empty_model(folder)
    tensors = as_in_model(stored_tensors(folder), model)
    for name_of_copy, original in model.all_tied_weights_keys.items():  # files may hold either of them
        if name_of_copy in tensors:
            tensors.setdefault(original, tensors[name_of_copy])
    return ModelWeights(
        name=name,
        folder=folder,
        config=config,
        tensors=tensors,
        trained=frozenset(each for each, _ in model.named_parameters()),
    )
