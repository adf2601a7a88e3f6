"""Tensors of files by the names of the model: renamed, joined and stacked as transformers' own table of conversions says.

transformers 5 multiplies with all experts of a layer as one tensor, (experts, rows, columns). Published files, vLLM and
transformers 4 have an entry for each. What is written has the names and the entries of the base's files. Source:
transformers 5.24, conversion_mapping.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from anadil.artifacts.weight_files import StoredTensor
from anadil.core.errors import IntegrityError
from anadil.model.safetensors_files import SafetensorsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor of files inside a tensor of the model."""

    stored: str
    expert: int | None = None
    """Its place in a stack."""
    first: int = 0
    rows: int | None = None
    """None: all."""

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Cut the part out of the model's tensor."""
        whole = whole if self.expert is None else whole[self.expert]
        return whole if self.rows is None else whole[self.first : self.first + self.rows]


@cache
def _conversions(model_type: str) -> tuple[list[Any], list[Any]]:
    """Return what renames tensors of files, and what joins them."""
    # By class first, as transformers looks them up.
    keys = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type), model_type)
    given: list[Any] = next(filter(None, map(get_checkpoint_conversion_mapping, keys)), [])
    joins = [each for each in given if isinstance(each, WeightConverter)]
    assert all(isinstance(step, MergeModulelist | Concatenate) for each in joins for step in each.operations)
    # Others, such as `PrefixChange`, are for wrappers: the text model has its own names here.
    return [each for each in given if type(each) is WeightRenaming], joins


def in_model(name: str, model_type: str) -> str:
    """Return the name of a file's tensor in the model."""
    for each in _conversions(model_type)[0]:
        name, _ = each.rename_source_key(name)
    return name


def in_files(name: str, model_type: str) -> str:
    """Return the name that transformers gives a tensor in files."""
    for each in reversed(_conversions(model_type)[0]):
        name, _ = each.reverse_transform().rename_source_key(name)
    return name


def names_in_model(stored: Iterable[str], model: Any) -> dict[str, str]:
    """Return the model's name of each tensor in files, which may leave out the first part, as a model without its head does."""
    prefix, names = f"{model.base_model_prefix}.", model.state_dict().keys()
    renamed = {name: in_model(name, model.config.model_type) for name in stored}
    bare = not any(mine.startswith(prefix) for mine in renamed.values())
    return {
        name: f"{prefix}{mine}" if mine not in names and (bare or f"{prefix}{mine}" in names) else mine
        for name, mine in renamed.items()
    }


def written_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return names in new files by the model's, out of `names_in_model`: as in the old files, with the first part."""
    written = {}
    for name, mine in names.items():
        first, _, rest = mine.partition(".")
        written[mine] = f"{first}.{name}" if rest.startswith(f"{name.partition('.')[0]}.") else name
    return written


def parts_of(tensors: Mapping[str, StoredTensor], model: Any) -> dict[str, list[Part]]:
    """Return the parts of each tensor that files hold in parts, by expert. `tensors` have the model's names.

    Raises `IntegrityError` where a part is missing.
    """
    made: dict[str, list[Part]] = {}
    for name, whole in model.state_dict().items():
        for join in _conversions(model.config.model_type)[1]:
            begin, sources = name.removesuffix(join.target_patterns[0]), join.source_patterns
            if name in tensors or begin == name:
                continue
            is_stack = "*" in sources[0]
            entries = [
                (number if is_stack else None, f"{begin}{each.replace('*', str(number))}")
                for number in range(len(whole) if is_stack else 1)
                for each in sources
            ]
            if any(each in tensors for _, each in entries):
                made[name] = _placed(name, entries, tensors)
    return made


def _placed(
    name: str, entries: Sequence[tuple[int | None, str]], tensors: Mapping[str, StoredTensor]
) -> list[Part]:
    folder = next(iter(tensors.values())).file.parent
    if lost := next((each for _, each in entries if each not in tensors), None):
        raise IntegrityError(
            f"{folder}: {lost} is missing, and {name} is made of {len(entries)} tensors, fetch or make the model again"
        )
    parts: list[Part] = []
    for expert, each in entries:
        first = parts[-1].first + (parts[-1].rows or 0) if parts and parts[-1].expert == expert else 0
        parts.append(Part(stored=each, expert=expert, first=first, rows=(tensors[each].shape or (0,))[0]))
    shapes = [tensors[each].shape for _, each in entries]
    num = sum(expert == entries[0][0] for expert, _ in entries)
    if shapes != shapes[:num] * (len(shapes) // num):
        raise IntegrityError(f"{folder}: experts of {name} differ in shape, fetch the model again")
    return parts


def as_in_model(
    stored: Mapping[str, StoredTensor], model: Any, *, joined: bool = True
) -> dict[str, StoredTensor]:
    """Return tensors by the names of the model, parts as the tensor that they make unless they are not `joined`.

    A tensor of parts has no place in a file. Raises as `parts_of`.
    """
    names = names_in_model(stored, model)
    tensors = {names[name]: each for name, each in stored.items()}
    for name, parts in parts_of(tensors, model).items() if joined else ():
        last, of_parts = parts[-1], [tensors.pop(each.stored) for each in parts]
        shape = (last.first + (last.rows or 0), *of_parts[0].shape[1:])
        stack = () if last.expert is None else (last.expert + 1,)
        tensors[name] = replace(of_parts[0], shape=(*stack, *shape))
    return tensors


class ModelFiles(SafetensorsFiles):
    """The weights of a directory by the names of the model."""

    def __init__(self, folder: Path, model: Any) -> None:
        """Look into the headers of all files of a local directory. `model` may be a stage or a shard."""
        super().__init__(folder)
        entries = as_in_model(self.stored, model, joined=False)
        self._parts = parts_of(entries, model)
        self.stored = {**entries, **as_in_model(self.stored, model)}

    def read(self, name: str, offset: Sequence[int] | None = None, shape: Sequence[int] = ()) -> torch.Tensor:
        """Read a tensor as `SafetensorsFiles.read` does, or a block of its parts."""
        if name not in self._parts:
            return super().read(name, offset, shape)
        sizes = list(shape if offset else self.shape(name))
        at = list(offset or [0] * len(sizes))
        parts = self._parts[name]
        if parts[0].expert is None:
            return self._rows(parts, at, sizes)
        experts = range(at[0], at[0] + sizes[0])
        each = len(parts) // (1 + (parts[-1].expert or 0))
        return torch.stack(
            [self._rows(parts[expert * each : (expert + 1) * each], at[1:], sizes[1:]) for expert in experts]
        )

    def _rows(self, parts: Sequence[Part], offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Read rows of parts that lie one below the other."""
        blocks = []
        for part in parts:
            first = max(offset[0] - part.first, 0)
            last = min(offset[0] + shape[0] - part.first, part.rows or 0)
            if first < last:
                blocks.append(super().read(part.stored, (first, *offset[1:]), (last - first, *shape[1:])))
        return torch.cat(blocks)
