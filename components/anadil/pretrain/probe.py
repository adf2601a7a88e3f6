"""What training relies on, tried on the model itself before the first step.

An architecture that attends in a way of its own would train on leaking documents without a sign
of it. The loss takes logits to be the head's product with the last hidden state.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from anadil.errors import DataError
from anadil.pretrain.parallel.objective import last_hidden

LENGTHS = (5, 7)
"""Tokens of the two documents that are tried."""
TOLERANCE = 1e-3
"""Largest difference, as a share of the largest value; a leak gives 0.1 and more, rounding 1e-6."""


@torch.no_grad()
def check_architecture(model: PreTrainedModel) -> None:
    """Run two documents packed and alone, and compare logits with the head's product.

    Raises:
        DataError: The architecture cannot be trained by this stage.
    """
    kind = model.config.model_type
    device = next(model.parameters()).device
    ids = (torch.arange(sum(LENGTHS), device=device) * 7 + 3)[None] % model.config.vocab_size
    positions = torch.cat([torch.arange(num, device=device) for num in LENGTHS])[None]
    borders = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    packed = last_hidden(model, ids, positions, borders)
    ids, positions = ids[:, LENGTHS[0] :], positions[:, LENGTHS[0] :]
    alone = last_hidden(model, ids, positions, torch.tensor([0, LENGTHS[1]], dtype=torch.int32))
    if _differs(packed[:, LENGTHS[0] :], alone):
        raise DataError(
            f"base.model: in a {kind} model packed documents see each other; use a Llama-like base.model"
        )
    whole: Any = model
    head: Any = model.get_output_embeddings()
    logits = whole(input_ids=ids, position_ids=positions, use_cache=False).logits
    if _differs(logits, nn.functional.linear(alone, head.weight)):
        raise DataError(
            f"base.model: a {kind} model changes its logits after the head; use a Llama-like base.model"
        )


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() > TOLERANCE * other.abs().max())
