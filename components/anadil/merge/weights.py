"""Arithmetic of a merge, in FP32 and tensor by tensor: trained model, base and other models -> merged weights.

    theta = the trained model
    theta = (1 - base_share) * theta + base_share * base
    theta = theta + sum over i of weight_i * (model_i - minus_i)

Tables with rows of the base's vocabulary are carried into the model's: kept, moved, or made of their pieces, as pre-training
made them. A new token begins as the mean of its pieces' rows, so what the pieces learn elsewhere is what it would have
learnt. Rows of control tokens are taken whole of the model that means something by them.

Source: interpolation with the base, WiSE-FT, arXiv:2109.01903; task vectors, arXiv:2212.04089, for chats arXiv:2310.04799.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import MIB
from anadil.merge.model_weights import (
    ChatFormat,
    ModelWeights,
    chat_format_of,
    check_alike,
    check_lineage,
    check_vocabulary,
    open_weights,
    other_settings,
    write_chat_template,
)
from anadil.model.family_table import families
from anadil.model.load import refuse_not_numbers, save_settings
from anadil.model.safetensors_files import DTYPES, TensorLayout, read_rows, write_weights
from anadil.pretrain.embedding_init import BaseTable, VocabularyRows, new_rows, vocabulary_rows

log = logging.getLogger(__name__)

BLOCK_BYTES = 64 * MIB
"""Most FP32 bytes of a tensor that are merged at a time; a merge holds some eight times as much."""
FP32_BYTES = 4
Read = Callable[[int, int], torch.Tensor]
"""Reads rows by the first one and their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """An opened addition."""

    model: ModelWeights
    minus: ModelWeights
    relative_difference: float
    """Norm of the difference in the norm of `minus`, over the first rows of all matrices."""
    chat: ChatFormat | None
    """The chat format of `model`, if it has one."""

    @property
    def control_tokens(self) -> list[str]:
        """Tokens whose rows are taken whole."""
        return list(self.chat.ids) if self.chat else []


class DifferenceTable(BaseTable):
    """A difference of two tables with the base's rows."""

    @cached_property
    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros: a row that no token has differs in nothing."""
        return torch.zeros(self.width), torch.zeros(self.width)


class Ends:
    """All models of a merge, checked; merged tensors are made when they are asked for."""

    def __init__(
        self, theta: ModelWeights, base: ModelWeights, vocabulary: VocabularyRows | None,
        vectors: Sequence[Vector], settings: Path,
    ) -> None:  # fmt: skip
        """Take models that `open` has checked; `settings` is the trained model's directory."""
        self.theta, self.base, self.vectors = theta, base, tuple(vectors)
        self._vocabulary, self._settings = vocabulary, settings
        self._tables: dict[tuple[str, int], BaseTable] = {}

    @classmethod
    def open(cls, model: Path, base: Path, tokenizer: Path, add: Sequence[tuple[Path, Path]] = ()) -> "Ends":
        """Open and check all models of a merge: headers first, then a few rows of each matrix."""
        theta = open_weights(model, "the trained model")
        opened_base = open_weights(base, "base.model")
        check_alike(theta, opened_base)
        vocabulary = vocabulary_rows(tokenizer, opened_base.num_tokens)
        expected = opened_base.num_tokens if vocabulary is None else len(vocabulary)
        if theta.num_tokens != expected:
            raise DataError(
                f"{model}: has {theta.num_tokens:,} embedding rows, and the map of {tokenizer} makes {expected:,}; give the "
                "tokenizer that it was trained with"
            )
        used = (
            range(opened_base.num_tokens)
            if vocabulary is None
            else {piece for pieces in vocabulary.sources for piece in pieces}
        )
        vectors = [_open_vector(place, each, opened_base, used, tokenizer) for place, each in enumerate(add)]
        return cls(theta, opened_base, vocabulary, vectors, model)

    @property
    def names(self) -> list[str]:
        """Names of all tensors in the model, in the order of its files; a tied head is the input table."""
        tied = {*families()[self.theta.config.model_type].names.tables} - {*self.theta.tables}
        return [name for name in self.theta.tensors if name not in tied]

    def chat(self, weights: Sequence[float]) -> ChatFormat | None:
        """Return the chat format that the merged model takes over: that of the last difference which brings a new one."""
        formats = [self.vectors[number].chat for number, _ in _active(weights)]
        return next((each for each in reversed(formats) if each and each.is_new), None)

    def tensor(self, name: str, base_share: float, weights: Sequence[float]) -> torch.Tensor:
        """Merge a whole tensor in FP32; raises as `rows`."""
        blocks = [block for _, block in self._blocks(name, base_share, weights)]
        return torch.cat(blocks) if blocks[1:] else blocks[0]

    def rows(
        self, name: str, base_share: float, weights: Sequence[float], first: int, count: int
    ) -> torch.Tensor:
        """Merge some rows of a tensor in FP32."""
        merged = self.theta.rows(name, first, count)
        if name not in self.theta.trained:
            return merged
        # Not `lerp` and `alpha=`, which may add without rounding the product: the bits are those of the formula.
        if base_share:
            merged.mul_(1 - base_share).add_(self._base(name)(first, count).mul_(base_share))
        for number, weight in _active(weights):
            merged.add_(self._difference(name, number)(first, count).mul_(weight))
        if name in self.theta.tables:
            for number, _ in _active(weights):
                vector = self.vectors[number]
                for ours, its in vector.chat.ids.values() if vector.chat else ():
                    if first <= ours < first + len(merged):
                        merged[ours - first] = vector.model.rows(name, its, 1)[0]
        if merged.numel() and not all(bool(each.isfinite()) for each in torch.aminmax(merged)):
            self._refuse_not_numbers(name, first, count)
        return merged

    def load_into(self, model: PreTrainedModel, base_share: float, weights: Sequence[float]) -> None:
        """Fill the parameters of a loaded model of the trained one's shape in place; raises as `rows`."""
        for name, parameter in model.named_parameters():
            for part in self.theta.parts.get(name, ()):
                part.of(parameter.data).copy_(self.tensor(part.stored, base_share, weights))
            if name not in self.theta.tensors:
                continue
            target = parameter.data.view(_num_rows(parameter.shape), -1)
            for first, block in self._blocks(name, base_share, weights):
                values = block.view(-1, target.shape[1])
                target[first : first + len(values)].copy_(values)

    def write(self, out: Path, base_share: float, weights: Sequence[float]) -> dict[str, int]:
        """Write the merged model as a Hugging Face directory, in the precision of the trained one; return counts."""
        names = {self.theta.in_files.get(name, name): name for name in self.names}
        tensors = self.theta.tensors
        layout = {
            stored: TensorLayout(DTYPES[tensors[name].dtype], tensors[name].shape)
            for stored, name in names.items()
        }

        def blocks(stored: str) -> Iterator[torch.Tensor]:
            name = names[stored]
            if name not in self.theta.trained:  # a constant, or a number that is none in FP32
                yield read_rows(tensors[name])
                return
            for _, block in self._blocks(name, base_share, weights):
                rounded = block.to(layout[stored].dtype)
                # FP16 ends at 65,504, and a sum may be larger than each of its parts.
                refuse_not_numbers(out, name, rounded)
                yield rounded

        counts = write_weights(out, layout, blocks)
        chats = [self.vectors[number].chat for number, _ in _active(weights)]
        save_settings(self._settings, out, ends=[end for each in chats if each for end in each.ends])
        if chat := self.chat(weights):
            write_chat_template(out, chat.template)
        return counts

    def _blocks(
        self, name: str, base_share: float, weights: Sequence[float]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Merge a tensor in blocks that bound memory: the first row of each, and its rows."""
        shape = self.theta.tensors[name].shape
        num_rows = _num_rows(shape)
        size = max(1, BLOCK_BYTES // max(1, FP32_BYTES * math.prod(shape[1:])))
        for first in range(0, max(num_rows, 1), size):
            yield first, self.rows(name, base_share, weights, first, min(size, num_rows - first))

    def _base(self, name: str) -> Read:
        return self._carried(name, -1, partial(self.base.rows, name), BaseTable)

    def _difference(self, name: str, number: int) -> Read:
        vector = self.vectors[number]

        def read(first: int, count: int) -> torch.Tensor:
            return vector.model.rows(name, first, count).sub_(vector.minus.rows(name, first, count))

        return self._carried(name, number, read, DifferenceTable)

    def _carried(self, name: str, number: int, read: Read, kind: type[BaseTable]) -> Read:
        """Let a read of the base's rows give the model's rows, where they are those of a vocabulary."""
        vocabulary = self._vocabulary
        if vocabulary is None or name not in self.theta.tables:
            return read
        if (name, number) not in self._tables:
            rows, width = self.base.tensors[name].shape
            self._tables[name, number] = kind(read, (rows, width), number=self.theta.tables.index(name))
        table = self._tables[name, number]
        return lambda first, count: torch.cat([rows for _, rows in new_rows(vocabulary, table, first, count)])

    def _refuse_not_numbers(self, name: str, first: int, count: int) -> None:
        # A row of a table is made of rows anywhere in other tables.
        models = [
            self.theta,
            self.base,
            *(each for vector in self.vectors for each in (vector.model, vector.minus)),
        ]
        for model in models:
            shape = model.tensors[name].shape
            begin, end = (0, _num_rows(shape)) if name in self.theta.tables else (first, first + count)
            for start in range(begin, end, count):
                refuse_not_numbers(model.folder, name, model.rows(name, start, min(count, end - start)))
        raise IntegrityError(f"{self.theta.folder}: {name} is beyond FP32 after the merge; lower the weights")


def _active(weights: Sequence[float]) -> list[tuple[int, float]]:
    return [(number, weight) for number, weight in enumerate(weights) if weight]


def _num_rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _open_vector(
    place: int, folders: tuple[Path, Path], base: ModelWeights, used: Collection[int], tokenizer: Path
) -> Vector:
    key = f"merge.add.{place}"
    model = open_weights(folders[0], f"{key}.model")
    is_base = folders[1].resolve() == base.folder.resolve()
    minus = replace(base, name=f"{key}.minus") if is_base else open_weights(folders[1], f"{key}.minus")
    for each in (model,) if is_base else (model, minus):
        check_alike(each, base)
        check_vocabulary(each, base, used)
    for line in other_settings(model, minus):
        log.warning("%s: %s", model.name, line)
    far = check_lineage(model, minus, base)
    chat = chat_format_of(model.folder, minus.folder, tokenizer, model.name)
    if chat and not chat.is_new:
        chat = replace(
            chat, ids={token: ids for token, ids in chat.ids.items() if _differs(model, minus, ids[1])}
        )
    if chat and chat.ids:
        log.info("%s: rows taken whole: %s", model.name, ", ".join(chat.ids))
    if chat and chat.absent:
        log.warning(
            "%s: its chat template also names %s, which the tokenizer of the trained model lacks; such chats are not written",
            model.name, ", ".join(chat.absent),
        )  # fmt: skip
    return Vector(model=model, minus=minus, relative_difference=far, chat=chat)


def _differs(model: ModelWeights, minus: ModelWeights, row: int) -> bool:
    return any(not torch.equal(model.rows(name, row, 1), minus.rows(name, row, 1)) for name in model.tables)
