"""Stacks of a mixture of experts, out of files with an entry for each expert, and back.

transformers 5 multiplies with all experts of a layer as one tensor, (experts, rows, columns). Published files, vLLM and
transformers 4 have an entry for each. Source: transformers 5.24, conversion_mapping.py.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from anadil.artifacts.weight_files import StoredTensor
from anadil.core.errors import IntegrityError
from anadil.model.family import ExpertNames
from anadil.model.family_table import families
from anadil.model.safetensors_files import SafetensorsFiles

STACK = re.compile(r"(.*\.experts\.)(gate_up_proj|down_proj)")
ENTRY = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.weight")


def entries_of(name: str, experts: ExpertNames | None, num: int) -> list[list[str]]:
    """Return the entries that a stack of `num` experts is made of, by expert, or nothing for any other tensor."""
    stack = STACK.fullmatch(name) if experts and experts.is_split else None
    if experts is None or stack is None:
        return []
    parts = (experts.gate, experts.up) if stack[2] == "gate_up_proj" else (experts.down,)
    return [[f"{stack[1]}{expert}.{part}.weight" for part in parts] for expert in range(num)]


def stacked(stored: Mapping[str, StoredTensor], experts: ExpertNames) -> dict[str, StoredTensor]:
    """Return tensors with stacks in place of their entries, in the order of the files; a stack has no place in a file.

    Raises `IntegrityError` where an expert is missing.
    """
    counts: dict[str, int] = defaultdict(int)
    for entry in map(ENTRY.fullmatch, stored):
        if entry:
            counts[entry[1]] = max(counts[entry[1]], 1 + int(entry[2]))
    tensors = dict(stored)
    for prefix, num in counts.items():
        for name in (f"{prefix}gate_up_proj", f"{prefix}down_proj"):
            entries = entries_of(name, experts, num)
            if lost := next((each for of_one in entries for each in of_one if each not in tensors), None):
                raise IntegrityError(
                    f"{next(iter(stored.values())).file.parent}: {lost} is missing, and {prefix[:-1]} has {num} experts, "
                    "fetch or make the model again"
                )
            parts = [tensors.pop(each) for of_one in entries for each in of_one]
            if len({each.shape for each in parts}) > 1:
                raise IntegrityError(
                    f"{parts[0].file}: experts of {name} differ in shape, fetch the model again"
                )
            rows = sum(tensors_of.shape[0] for tensors_of in parts[: len(entries[0])])
            tensors[name] = replace(parts[0], shape=(num, rows, *parts[0].shape[1:]))
    return tensors


class ModelFiles(SafetensorsFiles):
    """The weights of a directory by the names of the model, with experts as stacks."""

    def __init__(self, folder: Path, model_type: str) -> None:
        """Look into the headers of all files of a local directory."""
        super().__init__(folder)
        family = families()[model_type]
        self._in_files = family.names.in_files
        self.stored |= {family.names.in_model(name): each for name, each in self.stored.items()}
        with_stacks = stacked(self.stored, family.experts) if family.experts else {}
        self._stacks = {
            name: entries_of(name, family.experts, each.shape[0])
            for name, each in with_stacks.items()
            if name not in self.stored
        }
        self.stored |= {name: with_stacks[name] for name in self._stacks}

    def read(self, name: str, offset: Sequence[int] | None = None, shape: Sequence[int] = ()) -> torch.Tensor:
        """Read a tensor as `SafetensorsFiles.read` does, or a block of a stack."""
        if name not in self._stacks:
            return super().read(self._in_files(name), offset, shape)
        first, *inner = offset or (0, 0, 0)
        num, *sizes = shape if offset else self.shape(name)
        return torch.stack(
            [self._rows(entries, inner, sizes) for entries in self._stacks[name][first : first + num]]
        )

    def _rows(self, entries: Sequence[str], offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Read rows of one expert, whose entries lie one below the other."""
        blocks, skipped = [], 0
        for entry in entries:
            rows = self.stored[entry].shape[0]
            first, last = max(offset[0] - skipped, 0), min(offset[0] + shape[0] - skipped, rows)
            if first < last:
                blocks.append(
                    super().read(self._in_files(entry), (first, *offset[1:]), (last - first, *shape[1:]))
                )
            skipped += rows
        return torch.cat(blocks)
