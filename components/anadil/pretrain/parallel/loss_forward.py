"""The training objective as the model's own `forward`, so that FSDP has gathered the head inside of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Last hidden states, the head's weight, labels -> summed loss in FP32."""


def train_on(model: PreTrainedModel, loss: Loss) -> None:
    """Replace the forward pass: `model(input_ids, position_ids, labels, borders)` is the summed loss."""
    changed: Any = model
    changed.forward = partial(_loss_of, model, loss)


def last_hidden(
    model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, borders: torch.Tensor
) -> torch.Tensor:
    """Last hidden states of packed sequences, (sequences, tokens, width).

    Args:
        model: With packed attention.
        ids: (sequences, tokens).
        positions: The same shape, from 0 in each document.
        borders: Borders of documents in all tokens one after another, int32 on the CPU.
    """
    inner: Any = model.base_model
    states: torch.Tensor = inner(
        input_ids=ids, position_ids=positions, borders=borders, use_cache=False
    ).last_hidden_state
    return states


def _loss_of(
    model: PreTrainedModel,
    loss: Loss,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    labels: torch.Tensor,
    borders: npt.NDArray[np.int32],
) -> torch.Tensor:
    head: Any = model.get_output_embeddings()
    weight: nn.Parameter = head.weight
    # Borders are numpy's: FSDP moves every tensor that a root module is given to the GPU, and reading them
    # there would wait for all its queued work. The states have no name, which would keep them in memory.
    return loss(last_hidden(model, input_ids, position_ids, torch.from_numpy(borders)), weight, labels)
