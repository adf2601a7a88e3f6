"""Embedding rows for a new vocabulary, out of the rows that the base model has."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from anadil.core.errors import DataError
from anadil.model.load import load_tokenizer

log = logging.getLogger(__name__)


def fit_vocabulary(model: PreTrainedModel, tokenizer: Path) -> None:
    """Give `model` one embedding row for each token of the tokenizer artifact.

    A new row is the mean of the rows of the tokens that the base cuts the new token into. On
    Azerbaijani it beat random rows by 0.11 bits per byte after 100 steps, and noise or
    similarity-weighted rows changed nothing. Tied models stay tied; of others, input and
    output rows are both made.

    Raises:
        DataError: The map does not fit the tokenizer or the base model.
    """
    held: Any = model.get_input_embeddings()
    # Nothing is padded here: it would be a token of the base's, or by now an ordinary one, that is never trained.
    held.padding_idx = None
    rows = vocabulary_rows(tokenizer, held.weight.shape[0])
    if rows is None:
        return
    tied = bool(model.config.tie_word_embeddings)
    made = [means(rows, table) for table in _tables(model, tied=tied)]
    model.resize_token_embeddings(len(rows), mean_resizing=False)
    with torch.no_grad():
        for table, weight in zip(_tables(model, tied=tied), made, strict=True):
            table.copy_(weight)
    num_new = sum(len(pieces) != 1 for pieces in rows)
    log.info("embeddings: %s rows, %s of them means of several base rows", f"{len(rows):,}", f"{num_new:,}")


def vocabulary_rows(tokenizer: Path, num_base: int) -> list[list[int]] | None:
    """Base ids whose rows each token's row is the mean of; None where the base's own vocabulary stays.

    Args:
        tokenizer: The tokenizer artifact.
        num_base: Embedding rows of the base model.

    Raises:
        DataError: The map does not fit the tokenizer or the base model.
    """
    rows = _rows(tokenizer)
    num_tokens = max(load_tokenizer(tokenizer).get_vocab().values()) + 1
    if rows is not None:
        _check(rows, tokenizer, num_tokens=num_tokens, num_base=num_base)
    elif num_tokens > num_base:
        raise DataError(
            f"{tokenizer}: {num_tokens} tokens, but the base model has {num_base} embedding rows; "
            "make the tokenizer from the same base.model"
        )
    return rows


def _rows(tokenizer: Path) -> list[list[int]] | None:
    """Base ids for each token; None where the base's own vocabulary stays."""
    file = tokenizer / "embedding_map.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; run the tokenizer stage again")
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = content["rows"]
    if rows is None:
        return None
    return [[token] if pieces is None else pieces for token, pieces in enumerate(rows)]


def _check(rows: list[list[int]], tokenizer: Path, *, num_tokens: int, num_base: int) -> None:
    if len(rows) != num_tokens:
        raise DataError(
            f"{tokenizer}/embedding_map.json: {len(rows)} rows for {num_tokens} tokens; "
            "run the tokenizer stage again"
        )
    for token, pieces in enumerate(rows):
        if not pieces or min(pieces) < 0 or max(pieces) >= num_base:
            raise DataError(
                f"{tokenizer}/embedding_map.json: token {token} is made of base ids {pieces[:8]}, but the "
                f"base model has {num_base} embedding rows; make the tokenizer from the same base.model"
            )


def _tables(model: PreTrainedModel, *, tied: bool) -> list[torch.Tensor]:
    modules: list[Any] = [model.get_input_embeddings()]
    if not tied:
        modules.append(model.get_output_embeddings())
    return [module.weight.data for module in modules]


def means(rows: Sequence[Sequence[int]], table: torch.Tensor) -> torch.Tensor:
    """Mean of some rows of `table` for each new row, in FP32.

    Args:
        rows: Places in `table`, at least one for each new row.
        table: (rows, width).
    """
    flat = torch.tensor([piece for pieces in rows for piece in pieces])
    sizes = torch.tensor([len(pieces) for pieces in rows])
    return nn.functional.embedding_bag(flat, table.float(), torch.cumsum(sizes, 0) - sizes, mode="mean")
