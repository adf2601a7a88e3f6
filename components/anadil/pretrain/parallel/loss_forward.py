"""The training objective as the model's own `forward`, so that FSDP has gathered the head inside of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from anadil.model.loss import IGNORED
from anadil.model.teacher import Teacher

Loss = Callable[..., torch.Tensor]
"""Last hidden states, the head's weight, labels, and the source of each row where there are several -> summed loss in FP32."""


@dataclass(slots=True, kw_only=True)
class Objective:
    """Summed loss with the z-loss, which a backward pass follows; added up by source beside it."""

    scored: Callable[..., torch.Tensor]
    """`summed_loss`, or that of a split head."""
    z_loss: float
    scale: float = 1.0
    """Factor of the head's product."""
    cap: float = 0.0
    by_source: torch.Tensor | None = None
    """FP64 sums of all passes since they were set, on the model's device; None adds none up."""
    teacher_weight: float = 0.0
    """Weight of the divergence from a teacher."""
    divergence: torch.Tensor | None = None
    """Nats of divergence and positions with a teacher, summed as `by_source`."""

    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
        sources: torch.Tensor | None = None, teacher: Teacher | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Sum the loss; `sources` is the number of each row's source."""
        if teacher is not None:
            teacher = replace(teacher, weight=self.teacher_weight, totals=self.divergence)
        # Without gradients, in validation, the loss alone.
        z_loss = self.z_loss if torch.is_grad_enabled() else 0.0
        hidden = hidden if self.scale == 1 else hidden * self.scale
        scored = partial(self.scored, hidden, weight, labels, z_loss=z_loss, cap=self.cap, teacher=teacher)
        if sources is None or self.by_source is None:
            return scored()
        token_losses = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
        loss = scored(token_losses=token_losses)
        row_losses = token_losses.sum(1, dtype=torch.float64)
        # A masked sum, not `index_add_`, which on a GPU adds in any order.
        numbers = torch.arange(len(self.by_source), device=sources.device)
        self.by_source += torch.where(sources == numbers[:, None], row_losses, 0).sum(1)
        return loss


def train_on(model: PreTrainedModel, loss: Loss) -> None:
    """Replace the forward pass: `model(input_ids, position_ids, labels, borders)` is the summed loss."""
    changed: Any = model
    changed.forward = partial(_loss_of, model, loss)


def last_hidden(
    model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, borders: torch.Tensor
) -> torch.Tensor:
    """Last hidden states of packed sequences, (sequences, tokens, width); see `Batch` for positions and borders."""
    states: torch.Tensor = _outputs(model, ids, positions, borders).last_hidden_state
    return states


def _outputs(
    model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, borders: torch.Tensor, **more: Any
) -> Any:
    inner: Any = model.base_model
    return inner(input_ids=ids, position_ids=positions, borders=borders, use_cache=False, **more)


def balances_experts(config: Any) -> bool:
    """True if config.json asks for the loss that spreads tokens over the experts of a mixture."""
    return bool(getattr(config, "output_router_logits", False) and config.router_aux_loss_coef)


def balance_loss(model: PreTrainedModel, router_logits: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Load-balancing loss of a token, over the tokens that this process passes at a time, with config.json's coefficient.

    Source: Fedus et al. 2021, "Switch Transformers", arXiv:2101.03961, equations 4 to 6.
    """
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config: Any = model.config
    num_experts, chosen = router_logits[0].shape[-1], int(config.num_experts_per_tok)
    loss: Any = load_balancing_loss_func(router_logits, num_experts, chosen)
    balance: torch.Tensor = loss * config.router_aux_loss_coef
    return balance


def _loss_of(
    model: PreTrainedModel, loss: Loss, input_ids: torch.Tensor, position_ids: torch.Tensor,
    labels: torch.Tensor, borders: npt.NDArray[np.int32], *more: Any,
) -> torch.Tensor:  # fmt: skip
    head: Any = model.get_output_embeddings()
    # The head's weight is read after the norm, with which FSDP gathers it.
    # Borders are numpy's: FSDP moves every tensor that a root module is given to the GPU, and reading them
    # there would wait for all its queued work. The states have no name, which would keep them in memory.
    if not (torch.is_grad_enabled() and balances_experts(model.config)):
        return loss(
            last_hidden(model, input_ids, position_ids, torch.from_numpy(borders)), head.weight, labels, *more
        )
    outputs = _outputs(model, input_ids, position_ids, torch.from_numpy(borders), output_router_logits=True)
    balance = balance_loss(model, outputs.router_logits) * (labels != IGNORED).sum()
    return loss(outputs.last_hidden_state, head.weight, labels, *more) + balance
