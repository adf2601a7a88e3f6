"""Merges in plain torch, which know nothing of the product: what its results are compared with, bit by bit."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

Weights = dict[str, torch.Tensor]
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def weights(folder: Path) -> Weights:
    """Read all tensors of a model's directory, in FP32."""
    tensors: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name: tensor.float() for name, tensor in load_file(file).items()}
    return tensors


def precisions(folder: Path) -> dict[str, torch.dtype]:
    """Precision in which each tensor of a model's directory is stored."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor.dtype for file in files for name, tensor in load_file(file).items()}


def sources(tokenizer: Path) -> list[list[int]] | None:
    """Base ids of each row of a tokenizer artifact's vocabulary; None where it is the base's."""
    rows: list[list[int] | None] | None = json.loads((tokenizer / "embedding_map.json").read_text())["rows"]
    return None if rows is None else [[at] if row is None else row for at, row in enumerate(rows)]


def carried(base: Weights, rows: Sequence[Sequence[int]] | None, *, difference: bool = False) -> Weights:
    """Give the tables the rows of another vocabulary: a new row is the mean of its pieces' rows."""
    if rows is None:
        return base
    result = dict(base)
    for name in TABLES:
        if name in base:
            table = base[name]
            # A row that fills the table up is no token: pre-training begins it as the mean, and nothing adds to it.
            mean = table.double().mean(0).float()
            unused = torch.zeros_like(mean) if difference else mean
            result[name] = torch.stack([mean_of(table, row) if row else unused for row in rows])
    return result


def mean_of(table: torch.Tensor, row: Sequence[int]) -> torch.Tensor:
    """Average rows, summed one after another: `mean` sums many rows in another order, and so to other bits."""
    total = table[row[0]].clone()
    for piece in row[1:]:
        total += table[piece]
    return total / len(row)


def interpolated(adapted: Weights, base: Weights, share: float) -> Weights:
    """Mix the weights of two models; `share` is that of the base."""
    return {name: (1 - share) * tensor + share * base[name] for name, tensor in adapted.items()}


def difference(model: Weights, minus: Weights) -> Weights:
    """Subtract the weights of a model from those that were trained on from it."""
    return {name: tensor - minus[name] for name, tensor in model.items()}


def added(model: Weights, vector: Weights, weight: float = 1.0) -> Weights:
    """Add a task vector."""
    return {name: tensor + weight * vector[name] for name, tensor in model.items()}


def dropped(vector: Weights, rate: float, seed: int = 0) -> Weights:
    """Drop numbers at random and enlarge the others (DARE, arXiv:2311.03099)."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: tensor * (torch.rand(tensor.shape, generator=random) >= rate) / (1 - rate)
        for name, tensor in vector.items()
    }


def trimmed(vector: Weights, share: float) -> Weights:
    """Keep the largest numbers of each tensor (TIES, arXiv:2306.01708; one vector has no signs to elect)."""
    result = {}
    for name, tensor in vector.items():
        size = tensor.abs().flatten()
        least = size.kthvalue(max(1, round((1 - share) * size.numel()))).values
        result[name] = torch.where(tensor.abs() > least, tensor, 0)
    return result
