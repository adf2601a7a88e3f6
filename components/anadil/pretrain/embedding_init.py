"""Embedding rows for a new vocabulary, made of the base model's rows.

`embedding_map.json` of the tokenizer names the sources of each row. `pretrain.embedding_init` says
how new rows are made of them. A whole model and one that is loaded shard by shard go through the
same arithmetic, so that rows do not depend on the number of processes.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from anadil.artifacts.base_vocabulary import read_embedding_map
from anadil.core.errors import DataError
from anadil.model.load import load_tokenizer

log = logging.getLogger(__name__)

Init = Literal["mean", "random"]

ROWS_AT_A_TIME = 1_024
"""New rows that are made from one reading of base rows."""
STATISTICS_AT_A_TIME = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyRows:
    """Sources of each row of the new embeddings, the same on every process."""

    sources: Sequence[Sequence[int]]
    """Base ids of each row; none: the mean of all base rows."""
    random: Collection[int] = ()
    """Rows with the mean and standard deviation of the base's rows."""
    seed: int = 0

    def __len__(self) -> int:
        return len(self.sources)


class BaseTable:
    """One of the base's embeddings, or some columns of it, read a few rows at a time."""

    def __init__(
        self, read: Callable[[int, int], torch.Tensor], shape: tuple[int, int], columns: slice = slice(None),
        number: int = 0,
    ) -> None:  # fmt: skip
        """Name a table of `shape`, of which `read` gives `columns` of rows by the first one and their number.

        `number` is 0 for the input, 1 for the output: each has noise of its own.
        """
        self.read, self.columns, self.number = read, columns, number
        self.num_rows, self.width = shape

    @cached_property
    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each column over all base rows."""
        # FP64: sums over a vocabulary lose digits in FP32, and rows must not depend on the layout.
        total, squares = torch.zeros(2, 1, dtype=torch.float64)
        for first in range(0, self.num_rows, STATISTICS_AT_A_TIME):
            rows = self.read(first, min(STATISTICS_AT_A_TIME, self.num_rows - first)).double()
            total, squares = total + rows.sum(0), squares + rows.square().sum(0)
        mean = total / self.num_rows
        return mean.float(), (squares / self.num_rows - mean.square()).clamp_min(0).sqrt().float()

    def noise(self, seed: int, row: int) -> torch.Tensor:
        """Standard normal numbers of one row."""
        # A generator for each row: a process then draws only its own rows.
        whole = np.random.default_rng([seed, self.number, row]).standard_normal(self.width, dtype=np.float32)
        return torch.from_numpy(whole)[self.columns]


def fit_vocabulary(model: PreTrainedModel, tokenizer: Path, init: Init = "mean", *, seed: int = 0) -> None:
    """Give `model` the embedding rows of the tokenizer artifact; tied tables stay tied."""
    # The mean of the rows of the base's pieces beat random rows by 0.11 bits per byte after 100 steps on
    # Azerbaijani. Tried: noise on the mean, and rows of tokens that the corpus uses alike (FOCUS,
    # arXiv:2305.14481). Neither was better after 300 steps (`benchmarks/tokenizer`).
    inputs: Any = model.get_input_embeddings()
    # Nothing is padded here: the padding token may be an ordinary one by now, and would never be trained.
    inputs.padding_idx = None
    rows = vocabulary_rows(tokenizer, inputs.weight.shape[0], init, seed=seed)
    if rows is None:
        return

    def tables() -> list[torch.Tensor]:
        modules: list[Any] = [model.get_input_embeddings()]
        if not model.config.tie_word_embeddings:
            modules.append(model.get_output_embeddings())
        return [module.weight.data for module in modules]

    weights = [whole_table(rows, table, number) for number, table in enumerate(tables())]
    model.resize_token_embeddings(len(rows), mean_resizing=False)
    for table, weight in zip(tables(), weights, strict=True):
        table.copy_(weight)
    num_new = sum(pieces != [token] for token, pieces in enumerate(rows.sources))
    log.info(
        "embeddings: %s rows, %s of them new or of other ids (%s)", f"{len(rows):,}", f"{num_new:,}", init
    )


WITHOUT_ROWS = "or give the base those rows (transformers: resize_token_embeddings)"


def vocabulary_rows(
    tokenizer: Path, num_base: int, init: Init = "mean", *, seed: int = 0
) -> VocabularyRows | None:
    """Find the sources of each row for a base of `num_base` rows; None where the base's own vocabulary stays."""
    rows, keeps_size = read_embedding_map(tokenizer)
    loaded = load_tokenizer(tokenizer)
    used = {index: token for token, index in loaded.get_vocab().items()}
    # Bases are published with a token for padding, or for images as Gemma 3 1B, that only the tokenizer was given.
    special = {index for index, each in loaded.added_tokens_decoder.items() if each.special}
    lacking = {index for index in special | {loaded.pad_token_id or 0} if index >= num_base}
    if rows is None:
        if max(used.keys() - lacking) >= num_base:
            raise DataError(
                f"{tokenizer}: {max(used) + 1} tokens, but the base model has {num_base} embedding rows; "
                f"make the tokenizer from the same base.model, {WITHOUT_ROWS}"
            )
        if not lacking:
            return None
        rows = [[row] for row in range(max(used) + 1)]
    without = [row for row, pieces in enumerate(rows) if len(pieces) == 1 and pieces[0] in lacking]
    _check(
        [pieces if row not in without else [0] for row, pieces in enumerate(rows)], tokenizer, used, num_base
    )
    for row in without:
        log.warning(
            "the base model has no embedding row for its special token %s: it gets the mean of its rows",
            used[row],
        )
        rows[row] = []
    if keeps_size:
        rows += [[] for _ in range(len(rows), num_base)]
    new = [row for row, pieces in enumerate(rows) if len(pieces) > 1]
    sources = [pieces or ([row] if row < num_base else []) for row, pieces in enumerate(rows)]
    if init == "mean":
        return VocabularyRows(sources=sources)
    for row in new:
        sources[row] = []
    return VocabularyRows(sources=sources, random=frozenset(new), seed=seed)


def new_row_ids(tokenizer: Path) -> list[int]:
    """Find the rows that are made of several of the base's, the smallest first."""
    return [row for row, pieces in enumerate(read_embedding_map(tokenizer)[0] or ()) if len(pieces) > 1]


def _check(rows: list[list[int]], tokenizer: Path, used: Mapping[int, str], num_base: int) -> None:
    if len(rows) <= max(used):
        raise DataError(
            f"{tokenizer}/embedding_map.json: {len(rows)} rows for {max(used) + 1} tokens; "
            "run the tokenizer stage again"
        )
    for token, pieces in enumerate(rows):
        if not pieces and token in used:
            raise DataError(
                f"{tokenizer}/embedding_map.json: no row for {used[token]!r}, which transformers reads as token {token}; "
                "a token that tokenizer_config.json names has to stand in tokenizer.json: run the tokenizer stage again"
            )
        if any(not 0 <= piece < num_base for piece in pieces):
            raise DataError(
                f"{tokenizer}/embedding_map.json: token {token} is made of base ids {pieces[:8]}, but the "
                f"base model has {num_base} embedding rows; make the tokenizer from the same base.model, {WITHOUT_ROWS}"
            )


def whole_table(rows: VocabularyRows, table: torch.Tensor, number: int = 0) -> torch.Tensor:
    """Make all new rows of a base's table (rows, width), in FP32; see `BaseTable` for `number`."""
    num_rows, width = table.shape
    base = BaseTable(lambda first, count: table[first : first + count], (num_rows, width), number=number)
    made = torch.empty(len(rows), width)
    for start, chunk in new_rows(rows, base, 0, len(rows)):
        made[start : start + len(chunk)] = chunk
    return made


def new_rows(
    rows: VocabularyRows, base: BaseTable, first: int, count: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Make `count` new rows from row `first` on, in FP32, in chunks: a chunk's place after `first`, and the chunk."""
    for start in range(first, first + count, ROWS_AT_A_TIME):
        end = min(start + ROWS_AT_A_TIME, first + count)
        yield start - first, _chunk(rows, base, range(start, end))


def _chunk(rows: VocabularyRows, base: BaseTable, chosen: range) -> torch.Tensor:
    sources = [rows.sources[row] for row in chosen]
    ids = sorted({piece for pieces in sources for piece in pieces})
    place = {piece: number for number, piece in enumerate(ids)}
    empty = torch.empty(0, len(range(base.width)[base.columns]))
    table = torch.cat([empty, *(base.read(first, count).float() for first, count in _runs(ids))])
    made = torch.zeros(len(sources), table.shape[1])
    if len(table):
        flat = torch.tensor([place[piece] for pieces in sources for piece in pieces], dtype=torch.int64)
        sizes = torch.tensor([len(pieces) for pieces in sources])
        made = nn.functional.embedding_bag(flat, table, torch.cumsum(sizes, 0) - sizes, mode="mean")
    for number, row in enumerate(chosen):
        if not sources[number]:
            made[number] = base.statistics[0]
        if row in rows.random:
            made[number] += base.statistics[1] * base.noise(rows.seed, row)
    return made


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Group rising numbers into ranges without a gap: first number, and count."""
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield ids[start], end - start
            start = end
